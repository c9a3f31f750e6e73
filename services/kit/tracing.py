"""Traces of what happens across processes, for a receiver of OpenTelemetry's protocol (OTLP).

Off unless the settings name a receiver, and then OpenTelemetry isn't even imported: the parts that
are handed a `Tracing` ask it for spans either way. Only `services.kit.otlp` knows OpenTelemetry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import urllib.parse
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol, TypeAlias

import grpc
import prometheus_client

from services.kit.errors import InvalidInput

Attribute: TypeAlias = "str | int | float | bool | Sequence[str]"
Attributes: TypeAlias = Mapping[str, Attribute]
# As W3C names them: they carry a trace from one process to the next, over HTTP and gRPC alike.
HEADERS = ("traceparent", "tracestate")


@dataclasses.dataclass(frozen=True)
class TracingConfig:
    """Where traces go; the gateway hands it on to the processes of jobs."""

    PREFIX: ClassVar[str] = "EMBERMESH_OTLP_"
    endpoint: str = ""  # of the receiver (OTLP over gRPC), like http://collector:4317; empty: off
    step_every: int = 100  # of a trainer's steps one in so many leaves a trace

    def __post_init__(self) -> None:
        if self.endpoint:
            try:
                url = urllib.parse.urlsplit(self.endpoint)
                whole = url.scheme in ("http", "https") and url.hostname and url.port
            except ValueError:
                whole = False
            if not whole:
                raise InvalidInput(
                    f"{self.PREFIX}ENDPOINT={self.endpoint!r}: write it like http://HOST:4317"
                )
        if self.step_every < 1:
            raise InvalidInput(f"{self.PREFIX}STEP_EVERY={self.step_every} must be at least 1")


class Span(Protocol):
    """One piece of work under way."""

    def rename(self, name: str) -> None:
        """It has turned out what it is."""

    def note(self, attributes: Attributes) -> None:
        """More about it."""

    def fail(self, why: str) -> None:
        """It didn't come to a good end."""


class OutgoingCall(Protocol):
    """One call to another process."""

    metadata: Sequence[tuple[str, str]]  # goes with the call

    def end(self, code: grpc.StatusCode) -> None:
        """The call has ended with `code`."""


class Tracing(Protocol):
    """Makes spans; thread-safe. A span belongs to the present one of its thread or task."""

    on: bool

    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: str = "internal",
        carried: Mapping[str, str] | None = None,
        since: int | None = None,
    ) -> AbstractContextManager[Span]:
        """The work inside the block; an exception that leaves it fails the span.

        `kind`: internal, server. `carried` are the HEADERS that came with a call: the span belongs
        to the caller's. `since`: Unix nanoseconds, where the work began before the block.
        """

    def outgoing(self, service: str, verb: str) -> OutgoingCall:
        """A call that begins now; it is a span where the caller's work is one."""

    def carried(self) -> dict[str, str]:
        """The HEADERS by which later work, maybe elsewhere, belongs to the present span; empty
        without one.
        """

    def close(self) -> None:
        """Sends what is left, for a few seconds at most."""


class _NoSpan:
    """Takes everything and keeps nothing."""

    def rename(self, name: str) -> None:
        """See Span."""

    def note(self, attributes: Attributes) -> None:
        """See Span."""

    def fail(self, why: str) -> None:
        """See Span."""


class _NoCall:
    """A call that leaves no trace."""

    metadata: Sequence[tuple[str, str]] = ()

    def end(self, code: grpc.StatusCode) -> None:
        """See OutgoingCall."""


class Untraced:
    """Tracing that is off."""

    on = False
    _BLOCK: AbstractContextManager[Span] = contextlib.nullcontext(_NoSpan())
    _CALL = _NoCall()

    def span(
        self,
        name: str,  # noqa: ARG002  # the signature is that of Tracing, as below
        attributes: Attributes | None = None,  # noqa: ARG002
        *,
        kind: str = "internal",  # noqa: ARG002
        carried: Mapping[str, str] | None = None,  # noqa: ARG002
        since: int | None = None,  # noqa: ARG002
    ) -> AbstractContextManager[Span]:
        """See Tracing."""
        return self._BLOCK

    def outgoing(self, service: str, verb: str) -> OutgoingCall:  # noqa: ARG002
        """See Tracing."""
        return self._CALL

    def carried(self) -> dict[str, str]:
        """See Tracing."""
        return {}

    def close(self) -> None:
        """See Tracing."""


OFF: Tracing = Untraced()


def start(
    settings: TracingConfig,
    service: str,
    registry: prometheus_client.CollectorRegistry,
    attributes: Attributes | None = None,
) -> Tracing:
    """As the settings say. `service` and `attributes` tell this process from others.

    Raises InvalidInput when traces are wanted and the extra `otel` isn't installed.
    """
    if not settings.endpoint:
        return OFF
    try:
        from services.kit.otlp import OtlpTracing
    except ImportError as error:
        raise InvalidInput(
            f"{settings.PREFIX}ENDPOINT is set, but OpenTelemetry isn't installed; it is the "
            f"extra embermesh[otel] ({error})"
        ) from error
    return OtlpTracing(settings, service, registry, attributes or {})
