"""When certificates end, against what the cryptography library reads; the warnings; the metric."""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

import prometheus_client
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from services.kit import expiry
from services.kit.errors import InvalidInput
from services.kit.tls import Tls
from tests.fixtures.certificates import Authority

DAY = 86_400.0
UTC = datetime.timezone.utc
METRIC = "embermesh_tls_certificate_expiry_timestamp_seconds"


def certificate(
    end: datetime.datetime,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    name: str = "x",
    serial: int = 7,
) -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who).serial_number(serial)
    builder = builder.not_valid_before(datetime.datetime(1990, 1, 1)).not_valid_after(end)
    signed = builder.public_key(key.public_key()).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def parsed(pem: bytes) -> float:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


@pytest.mark.parametrize(
    "end",
    [
        datetime.datetime(1999, 12, 31, 23, 59, 59),
        datetime.datetime(2026, 2, 28, 12, 30, 1),
        datetime.datetime(2049, 12, 31, 23, 59, 59),  # the last of two digits' years
        datetime.datetime(2050, 1, 1),
        datetime.datetime(9999, 12, 31, 23, 59, 59),  # "no end", RFC 5280
    ],
    ids=str,
)
def test_the_end_is_what_the_certificate_says(end: datetime.datetime) -> None:
    pem = certificate(end)
    assert expiry.first_end(pem) == parsed(pem) == end.replace(tzinfo=UTC).timestamp()


def test_long_names_serials_and_keys_are_passed_over() -> None:
    key = rsa.generate_private_key(65537, 2048)
    end = datetime.datetime(2031, 5, 6, 7, 8, 9)
    for pem in (
        certificate(end, key, "a" * 60 + "é" * 60, serial=2**158),
        certificate(end, name="n" * 128),
    ):
        assert expiry.first_end(pem) == parsed(pem)


def test_of_a_chain_the_first_end_counts() -> None:
    years = (2033, 2031, 2032)
    pems = [certificate(datetime.datetime(year, 1, 1)) for year in years]
    chain = b"subject=/CN=x\n" + b"# a comment\n".join(pems)
    assert expiry.first_end(chain) == parsed(pems[1])


def test_what_is_no_certificate_is_refused() -> None:
    whole = certificate(datetime.datetime(2030, 1, 1))
    with pytest.raises(InvalidInput, match="no certificate in it"):
        expiry.first_end(b"nothing")
    lines = whole.splitlines()
    for cut in (
        [*lines[:2], lines[-1]],
        [lines[0], b"AAAA", lines[-1]],
        [lines[0], b"%", lines[-1]],
    ):
        with pytest.raises(InvalidInput, match="can't be read"):
            expiry.first_end(b"\n".join(cut))


def value(registry: prometheus_client.CollectorRegistry, which: str) -> float | None:
    return registry.get_sample_value(METRIC, {"certificate": which})


def test_the_metric_follows_the_files(tmp_path: Path) -> None:
    authority, registry = Authority(), prometheus_client.CollectorRegistry()
    settings = authority.issue(tmp_path, "trainer", days=3)
    Tls(settings).expose(registry)
    assert value(registry, "own") == parsed(Path(settings.cert).read_bytes())
    assert value(registry, "ca") == parsed(Path(settings.ca).read_bytes())
    old_key = Path(settings.key).read_bytes()
    before = value(registry, "own")
    authority.issue(tmp_path, "trainer", days=20)
    new_key = Path(settings.key).read_bytes()
    Path(settings.key).write_bytes(old_key)
    assert value(registry, "own") == before  # half a rotation: the old one is in use
    Path(settings.key).write_bytes(new_key)
    assert value(registry, "own") == parsed(Path(settings.cert).read_bytes()) != before


def test_it_is_said_once_a_day_and_of_every_new_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [datetime.datetime.now(UTC).timestamp()]
    authority = Authority()  # its own certificate lasts 30 days
    with caplog.at_level(logging.WARNING):
        tls = Tls(authority.issue(tmp_path, "trainer", days=14.5), lambda: now[0])
        assert not caplog.messages
        now[0] += DAY
        for _ in range(3):
            tls.current()
        (said,) = caplog.messages
        assert f"{tmp_path}/cert.pem (own) ends in 13.5 days, at " in said
        now[0] += DAY
        tls.current()
        assert len(caplog.messages) == 2
        authority.issue(tmp_path, "trainer", days=5)  # ends in 3 days by this clock
        tls.current()
        assert "(own) ends in 3.0 days" in caplog.messages[-1]
        authority.issue(tmp_path, "trainer", days=29)
        now[0] += DAY
        tls.current()
        assert len(caplog.messages) == 3
        now[0] += 30 * DAY
        tls.current()
    assert [m.partition("pem ")[2].split(", at")[0] for m in caplog.messages[3:]] == [
        "(own) ended 4.0 days ago",
        "(ca) ended 3.0 days ago",
    ]
