"""Peers: the servers of one role, and the identity under which one trainer calls them.

Both clients stand on it. Every verb goes to all asked servers at once and has a deadline; a server
that is away is retried within it. Repeating is safe: reads change nothing that a repeat would not,
and pushes are numbered by (rank, step) and name the rows they are made of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, TypeVar

from ps_service import codec
from ps_service.client.laden import Way
from ps_service.ranges import position_to_proto
from services.api.manifest import PositionEntry
from services.kit import rpc
from services.kit.bypass import Bypass, Closed
from services.kit.rpc import Call
from services.kit.rpc_metrics import ClientMetrics
from services.kit.tls import Tls
from services.kit.tracing import Tracing
from services.wire import ps_pb2

CALL_SECONDS = 150.0  # longer than a server waits for missing trainers, so that its answer arrives
CONFIGURE_SECONDS = 1_800.0  # a restore reads the server's whole share of a checkpoint

StubT = TypeVar("StubT")
PeersT = TypeVar("PeersT", bound="Peers[Any]")


class Peers(Generic[StubT]):
    """Stub i talks to addresses[i]. Thread-safe; a context manager that closes the channels."""

    def __init__(
        self,
        role: str,
        stub: Callable[[Way], StubT],
        addresses: Sequence[str],
        *,
        generation: int,
        epoch: int,
        rank: int,
        incarnation: int,
        timeout: float,
        stop: threading.Event | None,
        metrics: ClientMetrics | None = None,
        tls: Tls | None = None,
        traces: Tracing | None = None,
        own: Mapping[int, StubT] | None = None,
    ) -> None:
        """`stop` ends running calls with Unavailable; `timeout` in seconds bounds each verb but
        configure; `metrics` counts bytes; with `traces` calls carry their caller's trail. Servers
        of this process are called through their stub in `own`, those of this machine over a bypass
        unless there is `tls`.
        """
        own = own or {}
        self.names = [
            f"{role} {i} {'of this process' if i in own else f'at {a}'}"
            for i, a in enumerate(addresses)
        ]

        def way(address: str) -> Way:
            channel, bypass = rpc.connect(address, tls, metrics, traces), None
            if tls is None:
                with suppress(Closed):  # it is on another machine
                    bypass = Bypass(address, codec.room, stop, metrics, traces)
            return Way(channel, bypass, threads=len(addresses) > 1)

        self._ways = {i: way(a) for i, a in enumerate(addresses) if i not in own}
        self.stubs = [own[i] if i in own else stub(self._ways[i]) for i in range(len(addresses))]
        self._generation, self._epoch = generation, epoch
        self._rank, self._incarnation = rank, incarnation
        self._timeout, self._stop = timeout, stop

    def __len__(self) -> int:
        return len(self.stubs)

    def has_bypass(self, server: int) -> bool:
        """Whether the verbs of a server that have arrays are called over a bypass."""
        return server in self._ways and self._ways[server].bypass is not None

    def caller(self, step: int) -> ps_pb2.Caller:
        """This trainer at `step`."""
        return ps_pb2.Caller(
            generation=self._generation,
            epoch=self._epoch,
            rank=self._rank,
            step=step,
            incarnation=self._incarnation,
        )

    def claim_request(self, starts: Sequence[PositionEntry], step: int) -> ps_pb2.ClaimRequest:
        """This trainer takes source partitions over, to go on after `step`."""
        return ps_pb2.ClaimRequest(caller=self.caller(step), starts=map(position_to_proto, starts))

    def ask(
        self,
        verb: Callable[[StubT], Any],
        requests: Iterable[tuple[int, Any]],
        *,
        at_least_seconds: float = 0.0,
    ) -> list[Any]:
        """Sends each (server, request) at once; replies in this order. Raises the first failure."""
        calls = [Call(verb(self.stubs[i]), request, self.names[i]) for i, request in requests]
        timeout = max(self._timeout, at_least_seconds)
        return rpc.call_all(calls, timeout=timeout, stop=self._stop)

    def ask_all(
        self, verb: Callable[[StubT], Any], request: Any, *, at_least_seconds: float = 0.0
    ) -> list[Any]:
        """Sends the same request to every server."""
        everyone = ((i, request) for i in range(len(self)))
        return self.ask(verb, everyone, at_least_seconds=at_least_seconds)

    def close(self) -> None:
        """Closes the channels and bypasses."""
        for way in self._ways.values():
            way.close()

    def __enter__(self: PeersT) -> PeersT:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
