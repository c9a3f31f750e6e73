"""How a verb is answered, over gRPC or a bypass: errors become statuses, calls are counted and
belong to their caller's trail. Knows no verb by name.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc

from services.kit import errors, rpc_trail
from services.kit.laden import Laden, Method
from services.kit.rpc_metrics import RpcMetrics, service_and_verb
from services.kit.rpc_trail import Answer
from services.kit.tracing import Tracing

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 30  # of a message with its arrays
# A status message travels in a trailer: a longer one is refused by the peer's header limit, and the
# code with it.
MAX_DETAILS = 1_000


@dataclasses.dataclass(frozen=True)
class LadenVerb:
    """A verb with arrays beside its messages: `answer(request message, arrays)`."""

    method: Method
    answer: Callable[[Any, list[memoryview]], Laden]
    keeps: bool  # may look at the arrays after it has answered

    def __call__(self, request: Laden, _context: grpc.ServicerContext) -> Laden:
        """As a method of a servicer."""
        return self.answer(request.message, list(request.arrays))


@dataclasses.dataclass(frozen=True)
class LadenVerbs:
    """Some verbs of a server, and the memory that their arrays come into over a bypass."""

    verbs: Sequence[LadenVerb]
    room: Callable[[int], memoryview]  # see bypass.Room

    def by_path(self) -> dict[str, LadenVerb]:
        return {verb.method.path: verb for verb in self.verbs}


def joined(given: Iterable[LadenVerbs]) -> LadenVerbs | None:
    """The verbs of all; None for none."""
    all_of = list(given)
    return LadenVerbs([v for g in all_of for v in g.verbs], all_of[0].room) if all_of else None


class Answering:
    """What every verb of a server has in common."""

    def __init__(self, metrics: RpcMetrics, traces: Tracing) -> None:
        self.metrics, self._traces = metrics, traces

    def answer(self, verb: Answer, method: str, brought: Mapping[str, str]) -> Answer:
        """`verb`, a method of a servicer; what it raises goes to its context's `abort`. `brought`
        is what the call brought of its caller's trail.
        """
        service, name = service_and_verb(method)

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            code, start = grpc.StatusCode.OK, time.perf_counter()
            try:
                return verb(request, context)
            except errors.EmbermeshError as error:
                code = error.code
                context.abort(code, _shortened(str(error)))
            except Exception as error:  # a bug becomes a status: the server lives on
                code = grpc.StatusCode.INTERNAL
                about = {"fields": _of_caller(request)}
                log.exception("%s/%s failed", service, name, extra=about)
                context.abort(code, _shortened(f"{type(error).__name__}: {error}"))
            finally:
                self.metrics.seconds.labels(service, name).observe(time.perf_counter() - start)
                self.metrics.outcomes.labels(service, name, code.name).inc()

        return rpc_trail.followed(answer, method, brought, self._traces) if brought else answer


class Interceptor(grpc.ServerInterceptor):
    """Lets a gRPC server answer that way, and those of `laden` without their arrays being copied
    into messages.
    """

    def __init__(self, answering: Answering, laden: LadenVerbs | None) -> None:
        self._answering = answering
        self._laden = laden.by_path() if laden else {}

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """See grpc.ServerInterceptor."""
        handler = continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        brought = rpc_trail.carried(details.invocation_metadata)
        metrics, path = self._answering.metrics, details.method
        verb, reader, writer = (
            handler.unary_unary, handler.request_deserializer, handler.response_serializer
        )  # fmt: skip
        if path in self._laden:
            verb = self._laden[path]
            reader, writer = verb.method.read_request, verb.method.write_reply
        return grpc.unary_unary_rpc_method_handler(
            self._answering.answer(verb, path, brought),
            request_deserializer=metrics.reader(path, reader),
            response_serializer=metrics.writer(path, writer),
        )


def _of_caller(request: Any) -> dict[str, int]:
    """Whose step a request belongs to, for a log line; most requests of training say so."""
    message = request.message if isinstance(request, Laden) else request
    caller = getattr(message, "caller", None)
    return {} if caller is None else {"caller_rank": caller.rank, "step": caller.step}


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_DETAILS else text[: MAX_DETAILS - 1] + "…"
