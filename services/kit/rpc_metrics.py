"""What a process's calls cost: latency and outcome of those it answers, bytes of both sides.

Bytes are counted where messages are bytes: asking a message for its size serializes it once more.
Knows no verb by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import prometheus_client

from services.kit.telemetry import LATENCY_BUCKETS


class RpcMetrics:
    """Latency, outcome and size of every verb a server answers."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self.seconds = prometheus_client.Histogram(
            "embermesh_rpc_seconds",
            "Time a verb took on the server, barriers included.",
            ["service", "verb"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.outcomes = prometheus_client.Counter(
            "embermesh_rpc_total",
            "Answered calls by gRPC status code.",
            ["service", "verb", "code"],
            registry=registry,
        )
        self._bytes = prometheus_client.Counter(
            "embermesh_rpc_bytes_total",
            "Bytes of requests (direction in) and replies (out), headers of the transport left "
            "out.",
            ["service", "verb", "direction"],
            registry=registry,
        )

    def count(self, method: str, *, received: int, sent: int) -> None:
        """One call of `method` that came over a bypass."""
        _count(self._bytes, method, received, sent)

    def reader(self, method: str, parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """`parse`, counting what it reads as requests of `method`."""
        return _counted_reader(parse, self._bytes.labels(*service_and_verb(method), "in"))

    def writer(self, method: str, serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """`serialize`, counting what it writes as replies of `method`."""
        return _counted_writer(serialize, self._bytes.labels(*service_and_verb(method), "out"))


class ClientMetrics:
    """Size of every call that a process makes; one object for all its channels."""

    def __init__(self, registry: prometheus_client.CollectorRegistry) -> None:
        self._bytes = prometheus_client.Counter(
            "embermesh_rpc_client_bytes_total",
            "Bytes of requests (direction out) and replies (in) of the calls this process makes, "
            "headers of the transport left out; a repeated call counts again.",
            ["service", "verb", "direction"],
            registry=registry,
        )

        self.bypasses = prometheus_client.Gauge(
            "embermesh_rpc_client_bypasses",
            "Servers that this process calls over a bypass instead of by gRPC.",
            registry=registry,
        )

    def count(self, method: str, *, received: int, sent: int) -> None:
        """One call of `method` over a bypass."""
        _count(self._bytes, method, received, sent)

    def watch(self, channel: grpc.Channel) -> None:
        """Counts the calls of the stubs made from `channel` after this."""
        plain = channel.unary_unary

        def unary_unary(
            method: str, request_serializer: Any, response_deserializer: Any, **other: Any
        ) -> Any:
            names = service_and_verb(method)
            sent, received = self._bytes.labels(*names, "out"), self._bytes.labels(*names, "in")
            return plain(
                method,
                request_serializer=_counted_writer(request_serializer, sent),
                response_deserializer=_counted_reader(response_deserializer, received),
                **other,
            )

        channel.unary_unary = unary_unary  # type: ignore[method-assign,assignment]


def service_and_verb(method: str) -> tuple[str, str]:
    """Names in a method's path: of /embermesh.wire.v1.SparsePs/Pull they are SparsePs and Pull."""
    service, verb = method.rsplit("/", 1)
    return service.rsplit(".", 1)[-1].removeprefix("/"), verb


def _count(counter: prometheus_client.Counter, method: str, received: int, sent: int) -> None:
    names = service_and_verb(method)
    counter.labels(*names, "in").inc(received)
    counter.labels(*names, "out").inc(sent)


def _counted_reader(
    parse: Callable[[bytes], Any], counter: prometheus_client.Counter
) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        counter.inc(len(data))
        return parse(data)

    return read


def _counted_writer(
    serialize: Callable[[Any], bytes], counter: prometheus_client.Counter
) -> Callable[[Any], bytes]:
    def write(message: Any) -> bytes:
        data = serialize(message)
        counter.inc(len(data))
        return data

    return write
