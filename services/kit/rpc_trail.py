"""A call carries its caller's trail: the id of the request it is made for, and the trace.

They travel as gRPC metadata. Most calls of training are made for nobody's request and by no traced
step; they carry nothing, and nothing is done about them. Knows no verb by name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from services.kit import tracing, trail
from services.kit.rpc_metrics import service_and_verb
from services.kit.tracing import Tracing

log = logging.getLogger(__name__)

_REQUEST_ID = "x-request-id"
_CARRIED = frozenset((_REQUEST_ID, *tracing.HEADERS))
Answer = Callable[[Any, grpc.ServicerContext], Any]


def carry(channel: grpc.Channel, traces: Tracing) -> None:
    """Calls of the stubs made from `channel` after this carry their caller's trail."""
    plain = channel.unary_unary

    def unary_unary(method: str, *arguments: Any, **named: Any) -> Any:
        return _Carrying(plain(method, *arguments, **named), method, traces)

    channel.unary_unary = unary_unary  # type: ignore[method-assign]


def metadata(call: tracing.OutgoingCall) -> Sequence[tuple[str, str]]:
    """What `call` carries of the present trail; see `carried`."""
    request_id = trail.present().request_id
    more = ((_REQUEST_ID, request_id),) if request_id else ()
    return (*more, *call.metadata)


def carried(metadata: Sequence[tuple[str, str | bytes]] | None) -> Mapping[str, str]:
    """What a call brought of its caller's trail; empty for most."""
    return {
        key: value
        for key, value in metadata or ()
        if key in _CARRIED and isinstance(value, str)  # binary values have other keys
    }


def followed(answer: Answer, method: str, brought: Mapping[str, str], traces: Tracing) -> Answer:
    """`answer` as part of the trail that a call of `method` brought.

    What people asked for leaves a log line; steps of training, which are many, don't.
    """
    service, verb = service_and_verb(method)
    request_id = brought.get(_REQUEST_ID, "")

    def following(request: Any, context: grpc.ServicerContext) -> Any:
        start, code = time.perf_counter(), grpc.StatusCode.OK
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": verb}
        span = traces.span(f"{service}/{verb}", attributes, kind="server", carried=brought)
        with trail.following(request_id=request_id), span:
            try:
                return answer(request, context)
            except Exception:
                code = context.code() or grpc.StatusCode.UNKNOWN  # type: ignore[attr-defined]
                raise
            finally:
                if request_id:
                    seconds = time.perf_counter() - start
                    log.info("answered %s/%s with %s in %.3f s", service, verb, code.name, seconds)

    return following


class _Carrying(grpc.UnaryUnaryMultiCallable):  # type: ignore[type-arg]  # generic in stubs only
    """One verb whose calls carry the trail."""

    def __init__(self, plain: Any, method: str, traces: Tracing) -> None:
        self._plain, self._traces = plain, traces
        self._names = service_and_verb(method)

    def __call__(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        return self.with_call(request, *arguments, **named)[0]

    def with_call(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        call = self._traces.outgoing(*self._names)
        try:
            answer = self._plain.with_call(request, *arguments, **_with(named, call))
        except Exception as error:
            call.end(error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN)
            raise
        call.end(grpc.StatusCode.OK)
        return answer

    def future(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """See grpc.UnaryUnaryMultiCallable."""
        call = self._traces.outgoing(*self._names)
        future = self._plain.future(request, *arguments, **_with(named, call))
        future.add_done_callback(lambda done: call.end(done.code()))
        return future


def _with(named: dict[str, Any], call: tracing.OutgoingCall) -> dict[str, Any]:
    """The arguments of a call, with the trail in its metadata."""
    return {**named, "metadata": (*(named.get("metadata") or ()), *metadata(call))}
