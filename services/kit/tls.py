"""Mutual TLS between the platform's processes, when certificates are configured.

One private CA signs all of them; whoever holds a certificate of that CA is a peer, and nobody else
is. Peers are found by address, so a certificate carries one DNS name that is the same for all
(`name`), not the addresses of pods that come and go.

Files are read again when they change: a server uses the new pair from the next handshake on, a
channel from its next call on, and calls under way end on the old one. A pair that doesn't fit
together, as in the middle of a rotation, is left alone until it does. Whoever looks at the files
is also who warns that those in use are about to end.
"""

from __future__ import annotations

import dataclasses
import logging
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import grpc
import prometheus_client

from services.kit import config, expiry
from services.kit.errors import InvalidInput

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0  # at most so often a channel looks at the files
_Signature = tuple[tuple[int, int, int], ...]  # (inode, size, mtime) of each file


@dataclasses.dataclass(frozen=True)
class TlsConfig:
    """PEM files; all three, or none for plaintext."""

    PREFIX: ClassVar[str] = "EMBERMESH_TLS_"
    ca: str = ""  # certificates that sign the peers'
    cert: str = ""  # this process's certificate, and those between it and the CA
    key: str = ""  # its private key
    name: str = "embermesh"  # DNS name that every peer's certificate carries

    def __post_init__(self) -> None:
        given = [bool(self.ca), bool(self.cert), bool(self.key)]
        if any(given) and not all(given):
            raise InvalidInput(f"{self.PREFIX}CA, CERT and KEY go together; give all or none")


@dataclasses.dataclass(frozen=True)
class _Pem:
    ca: bytes
    cert: bytes
    key: bytes
    ends: expiry.Ends


class Tls:
    """What a server or a channel needs. Raises InvalidInput when a file can't be read or holds no
    PEM, or key and certificate don't fit. `clock` gives Unix seconds. Thread-safe.
    """

    def __init__(self, settings: TlsConfig, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._countdown = expiry.Countdown(clock, {"own": settings.cert, "ca": settings.ca})
        self._paths = tuple(Path(p) for p in (settings.ca, settings.cert, settings.key))
        self._lock = threading.Lock()  # guards what is below, and _countdown
        try:
            self._signature, self._pem = self._read()
        except (OSError, ssl.SSLError, InvalidInput) as error:
            files = ", ".join(str(path) for path in self._paths)
            raise InvalidInput(f"certificates {files}: {error}") from error
        self._countdown.look(self._pem.ends)

    def expose(self, registry: prometheus_client.CollectorRegistry) -> None:
        """Declares when the certificates in use end."""
        expiry.expose(registry, lambda: self.current().ends)

    def server_credentials(self) -> grpc.ServerCredentials:
        """Of a server that takes calls of peers only."""
        served = self.current()
        lock = threading.Lock()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            with lock:
                newest = self.current()
                if newest is served:
                    return None
                served = newest
            log.info("serving with the certificate that was read again")
            return _server_configuration(newest)

        return grpc.dynamic_ssl_server_credentials(
            _server_configuration(served),
            fetch,  # type: ignore[arg-type]  # None is "no change", says grpc's documentation
            require_client_authentication=True,
        )

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """A channel to a peer at `address`, whatever name that has."""
        return _RenewedChannel(self, address, options)

    def current(self) -> _Pem:
        """The files' content; the same object until it has changed."""
        with self._lock:
            try:
                if self._look() != self._signature:
                    self._signature, self._pem = self._read()
            except (OSError, ssl.SSLError, InvalidInput) as error:
                log.warning("certificates not read again yet: %s", error)
            self._countdown.look(self._pem.ends)
            return self._pem

    def connect(self, pem: _Pem, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """A channel with just that certificate."""
        credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        named = [*options, ("grpc.ssl_target_name_override", self.settings.name)]
        return grpc.secure_channel(address, credentials, options=named)

    def _look(self) -> _Signature:
        stats = (path.stat() for path in self._paths)
        return tuple((s.st_ino, s.st_size, s.st_mtime_ns) for s in stats)

    def _read(self) -> tuple[_Signature, _Pem]:
        before = self._look()
        ca, cert, key = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        context.load_verify_locations(ca)
        roots, own, secret = (path.read_bytes() for path in self._paths)
        if self._look() != before:
            raise InvalidInput("they change right now")
        ends = expiry.Ends(own=expiry.first_end(own), ca=expiry.first_end(roots))
        return before, _Pem(roots, own, secret, ends)


def load(env: Mapping[str, str] | None = None) -> Tls | None:
    """As the environment says; None without certificates. Raises InvalidInput like Tls."""
    settings = config.load(TlsConfig, env)
    return Tls(settings) if settings.ca else None


def _server_configuration(pem: _Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], pem.ca)


class _RenewedChannel(grpc.Channel):
    """A channel that is made anew with a new certificate; it knows unary verbs only, as we do."""

    def __init__(self, tls: Tls, address: str, options: Sequence[tuple[str, Any]]) -> None:
        self._tls, self._address, self._options = tls, address, options
        self._lock = threading.Lock()  # guards all below
        self._pem = tls.current()
        self._channel = tls.connect(self._pem, address, options)
        self._before: grpc.Channel | None = None  # calls that began on it end there
        self._looked = time.monotonic()

    def newest(self) -> grpc.Channel:
        """The channel that a call should begin on."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked >= _LOOK_SECONDS:
                self._looked = now
                pem = self._tls.current()
                if pem is not self._pem:
                    self._renew(pem)
            return self._channel

    def _renew(self, pem: _Pem) -> None:
        if self._before is not None:
            self._before.close()
        self._before, self._pem = self._channel, pem
        self._channel = self._tls.connect(pem, self._address, self._options)

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        """See grpc.Channel."""
        return _Method(self, (method, *arguments), named)

    def unary_stream(self, *_: Any, **__: Any) -> Any:
        """Not of ours."""
        raise NotImplementedError("our verbs are unary")

    stream_unary = stream_stream = unary_stream

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """See grpc.Channel; of the present one."""
        self.newest().subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        """See grpc.Channel."""
        self.newest().unsubscribe(callback)

    def close(self) -> None:
        """Ends the calls under way."""
        with self._lock:
            for channel in (self._before, self._channel):
                if channel is not None:
                    channel.close()

    def __enter__(self) -> _RenewedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method(grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]  # generic in stubs only
    """One verb, on whichever channel is the newest."""

    def __init__(
        self, channel: _RenewedChannel, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self._owner, self._arguments, self._named = channel, arguments, named
        self._made: tuple[grpc.Channel, Any] | None = None

    def _callable(self) -> Any:
        channel, made = self._owner.newest(), self._made
        if made is None or made[0] is not channel:
            made = (channel, channel.unary_unary(*self._arguments, **self._named))
            self._made = made
        return made[1]

    def __call__(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        return self._callable()(request, *arguments, **named)

    def with_call(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        return self._callable().with_call(request, *arguments, **named)

    def future(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        return self._callable().future(request, *arguments, **named)
