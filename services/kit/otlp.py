"""Tracing by OpenTelemetry's SDK: spans go to an OTLP receiver from a thread of their own.

The only module that knows OpenTelemetry. Nothing global of it is set, so two services can live in
one process. A receiver that is away costs spans, which are counted, and never time of the work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import grpc
import prometheus_client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.kit import trail
from services.kit.tracing import Attributes, OutgoingCall, Span, TracingConfig

_SEND_SECONDS = 5  # for one try to send a batch
_CLOSE_SECONDS = 3.0  # to send what is left when the process ends
_BATCH_MILLIS = 1_000  # spans wait so long for others
_KINDS = {"internal": trace.SpanKind.INTERNAL, "server": trace.SpanKind.SERVER}


class OtlpTracing:
    """See `services.kit.tracing.Tracing`."""

    on = True

    def __init__(
        self,
        settings: TracingConfig,
        service: str,
        registry: prometheus_client.CollectorRegistry,
        attributes: Attributes,
    ) -> None:
        about = {"service.name": f"embermesh-{service}", "service.namespace": "embermesh"}
        exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            insecure=settings.endpoint.startswith("http://"),
            timeout=_SEND_SECONDS,
            channel_options=(("grpc.enable_http_proxy", "0"),),  # as for all our calls
        )
        self._processor = BatchSpanProcessor(
            _Counting(exporter, registry), schedule_delay_millis=_BATCH_MILLIS
        )
        self._provider = TracerProvider(
            resource=Resource.create({**about, **attributes}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("embermesh")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: str = "internal",
        carried: Mapping[str, str] | None = None,
        since: int | None = None,
    ) -> Iterator[Span]:
        """See Tracing."""
        span = self._tracer.start_span(
            name,
            context=None if carried is None else self._propagator.extract(dict(carried)),
            kind=_KINDS[kind],
            attributes=attributes,
            start_time=since,
        )
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        working = _Working(span)
        with (
            trace.use_span(
                span, end_on_exit=True, record_exception=False, set_status_on_exception=False
            ),
            trail.following(trace_id=trace_id),
        ):
            try:
                yield working
            except BaseException as error:
                working.fail(f"{type(error).__name__}: {error}")
                raise

    def outgoing(self, service: str, verb: str) -> OutgoingCall:
        """See Tracing."""
        if not trace.get_current_span().get_span_context().is_valid:
            return _Calling(None, ())
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": verb}
        span = self._tracer.start_span(
            f"{service}/{verb}", kind=trace.SpanKind.CLIENT, attributes=attributes
        )
        headers: dict[str, str] = {}
        self._propagator.inject(headers, context=trace.set_span_in_context(span))
        return _Calling(span, tuple(headers.items()))

    def carried(self) -> dict[str, str]:
        """See Tracing."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers)  # nothing where there is no span
        return headers

    def close(self) -> None:
        """See Tracing."""
        # The SDK waits for a receiver that is away as long as one try may take, and longer.
        thread = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        thread.start()
        thread.join(_CLOSE_SECONDS)


class _Working:
    """See Span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        """See Span."""
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        """See Span."""
        self._span.set_attributes(attributes)

    def fail(self, why: str) -> None:
        """See Span."""
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, why))


class _Calling:
    """See OutgoingCall; without a span a call that nobody traces."""

    def __init__(self, span: trace.Span | None, metadata: Sequence[tuple[str, str]]) -> None:
        self._span, self.metadata = span, metadata

    def end(self, code: grpc.StatusCode) -> None:
        """See OutgoingCall."""
        if self._span is None:
            return
        self._span.set_attribute("rpc.grpc.status_code", code.value[0])
        if code != grpc.StatusCode.OK:
            self._span.set_status(trace.Status(trace.StatusCode.ERROR, code.name))
        self._span.end()


class _Counting(SpanExporter):
    """Counts what an exporter sends."""

    def __init__(
        self, exporter: SpanExporter, registry: prometheus_client.CollectorRegistry
    ) -> None:
        self._exporter = exporter
        self._spans = prometheus_client.Counter(
            "embermesh_trace_spans_total",
            "Spans that the receiver of traces has taken (sent), and those it has not (lost).",
            ["fate"],
            registry=registry,
        )

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See SpanExporter."""
        result = self._exporter.export(spans)
        sent = result is SpanExportResult.SUCCESS
        self._spans.labels("sent" if sent else "lost").inc(len(spans))
        return result

    def shutdown(self) -> None:
        """See SpanExporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See SpanExporter."""
        return self._exporter.force_flush(timeout_millis)
