"""When certificates end: read from PEM, shown as a metric, and warned of in the log. It must not
know who uses them, nor where the files are.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime
import logging
import re
from collections.abc import Callable, Mapping

import prometheus_client

from services.kit.errors import InvalidInput

log = logging.getLogger(__name__)

WARN_DAYS = 14  # EmbermeshCertificateExpires warns from there, too
_DAY = 86_400.0  # seconds
_LABEL = rb"(?:X509 |TRUSTED )?CERTIFICATE-----"
_PEM = re.compile(rb"-----BEGIN " + _LABEL + rb"(.+?)-----END " + _LABEL, re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18  # tags of DER
_CENTURY_TURNS = 50  # a UTCTime's two digits from here on are of the 20th (RFC 5280, 4.1.2.5.1)


@dataclasses.dataclass(frozen=True)
class Ends:
    """Unix seconds of the first end among the certificates of each file."""

    own: float
    ca: float


def first_end(pem: bytes) -> float:
    """Unix seconds at which the first of the certificates ends: with it a chain is broken, and a
    bundle no longer trusts all that it did. Raises InvalidInput when there is none to read.
    """
    try:
        ends = [_not_after(base64.b64decode(body)) for body in _PEM.findall(pem)]
    except (ValueError, IndexError, binascii.Error) as error:
        raise InvalidInput(f"a certificate whose end can't be read: {error}") from error
    if not ends:
        raise InvalidInput("no certificate in it")
    return min(ends)


def expose(registry: prometheus_client.CollectorRegistry, look: Callable[[], Ends]) -> None:
    """Declares the metric; `look()` is asked at every scrape."""
    gauge = prometheus_client.Gauge(
        "embermesh_tls_certificate_expiry_timestamp_seconds",
        "When the certificate in use ends (Unix time): this process's own, with those between it "
        "and the CA, and the CA's; of several the first. Only where certificates are configured.",
        ["certificate"],
        registry=registry,
    )
    gauge.labels("own").set_function(lambda: look().own)
    gauge.labels("ca").set_function(lambda: look().ca)


class Countdown:
    """Warns once a day of each certificate that ends within WARN_DAYS, and at once of one that
    took the place of another and does so too. Not thread-safe.
    """

    def __init__(self, clock: Callable[[], float], paths: Mapping[str, str]) -> None:
        self._clock, self._paths = clock, dict(paths)
        self._warned: dict[str, tuple[float, float]] = {}  # name -> its end, and when it was said

    def look(self, ends: Ends) -> None:
        """Says what there is to say now."""
        now = self._clock()
        for name, end in dataclasses.asdict(ends).items():
            before, at = self._warned.get(name, (end, now - _DAY))
            if end - now >= WARN_DAYS * _DAY or (before == end and now - at < _DAY):
                continue
            self._warned[name] = end, now
            days, date = (
                (end - now) / _DAY,
                datetime.datetime.fromtimestamp(end, datetime.timezone.utc),
            )
            when = f"ends in {days:.1f} days" if days > 0 else f"ended {-days:.1f} days ago"
            log.warning("certificate %s (%s) %s, at %s", self._paths[name], name, when, date)


def _not_after(der: bytes) -> float:
    """validity.notAfter of an X.509 certificate (RFC 5280, 4.1), in Unix seconds."""
    body = _inside(der, 0, _SEQUENCE)  # Certificate
    at = _inside(der, body, _SEQUENCE)  # TBSCertificate
    if der[at] == _VERSION:
        at = _behind(der, at)
    for _ in ("serialNumber", "signature", "issuer"):
        at = _behind(der, at)
    at = _behind(der, _inside(der, at, _SEQUENCE))  # validity, in it behind notBefore
    start, end = _extent(der, at)
    text = der[start:end].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _CENTURY_TURNS else "20") + text
    elif der[at] != _GENERALIZED_TIME:
        raise ValueError(f"tag {der[at]:#x} where a time should be")
    moment = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    return moment.replace(tzinfo=datetime.timezone.utc).timestamp()


def _inside(der: bytes, at: int, tag: int) -> int:
    if der[at] != tag:
        raise ValueError(f"tag {der[at]:#x} where {tag:#x} should be")
    return _extent(der, at)[0]


def _behind(der: bytes, at: int) -> int:
    return _extent(der, at)[1]


def _extent(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at `at` begins and ends."""
    length, start = der[at + 1], at + 2
    if length & 0x80:  # the long form: so many bytes of length
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + length > len(der):
        raise ValueError("it is cut off")
    return start, start + length
