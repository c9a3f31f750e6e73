"""Observability of every process: JSON logs, and /metrics, /healthz and /readyz over HTTP.

Metrics are declared in each package's `metrics.py` against the registry made here; nothing global
is used, so that two services can live in one test process.
"""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import prometheus_client

from services.kit import trail
from services.kit.errors import InvalidInput, Unavailable
from services.kit.net import advertised

log = logging.getLogger(__name__)

# Seconds.
LATENCY_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
LOG_LEVELS = ("debug", "info", "warning", "error")
_IDLE_SECONDS = 30  # an HTTP connection that says nothing is closed


class LogFields:
    """What every log line of the process says about it."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fixed = dict(fields)
        self._live: dict[str, Callable[[], object]] = {}

    def follow(self, name: str, look: Callable[[], object]) -> None:
        """Lines from now on have the field `name` as `look()` gives it, on whatever thread."""
        self._live = {**self._live, name: look}

    def now(self) -> dict[str, object]:
        """The fields of a line that is written now."""
        return {**self._fixed, **{name: look() for name, look in self._live.items()}}


class _JsonFormatter(logging.Formatter):
    def __init__(self, fields: LogFields) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            **self._fields.now(),
            **trail.present().fields(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),  # of this line alone: `extra={"fields": {...}}`
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def setup_logging(level: str, **fields: object) -> LogFields:
    """Sends JSON lines to stderr; `fields` (service, job, rank, …) are on every line, and so are
    the request and the trace that the work at hand belongs to.

    Raises InvalidInput for a level that isn't one of LOG_LEVELS.
    """
    if level.lower() not in LOG_LEVELS:
        raise InvalidInput(f"log_level {level!r} is not one of {', '.join(LOG_LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    about = LogFields(fields)
    handler.setFormatter(_JsonFormatter(about))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return about


@contextmanager
def timed(histogram: prometheus_client.Histogram) -> Iterator[None]:
    """Observes the seconds a block takes."""
    start = time.perf_counter()
    try:
        yield
    finally:
        histogram.observe(time.perf_counter() - start)


class TelemetryServer:
    """Serves /metrics, /healthz (alive) and /readyz (`ready()` says so) on its own thread.

    `address` is where others reach it. Raises Unavailable when the port is in use.
    """

    def __init__(
        self,
        registry: prometheus_client.CollectorRegistry,
        ready: Callable[[], bool],
        host: str,
        port: int,
    ) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _IDLE_SECONDS

            def do_GET(self) -> None:  # the base class fixes this name
                status, kind, body = _answer(self.path, registry, ready)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not worth a log line."""

        try:
            self._server = _HttpServer((host, port), Handler)
        except OSError as error:
            raise Unavailable(f"can't serve metrics on {host}:{port}: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="telemetry", daemon=True
        )
        self._thread.start()
        self.address = f"{advertised(host)}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stops serving and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _HttpServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that hangs up is no fault of ours; the base class would write a trace."""
        log.debug("telemetry: %s on %s went away", client_address, request, exc_info=True)


def _answer(
    path: str, registry: prometheus_client.CollectorRegistry, ready: Callable[[], bool]
) -> tuple[int, str, bytes]:
    """Status, content type and body for a GET of `path`."""
    route, plain = path.split("?", 1)[0], "text/plain; charset=utf-8"
    try:
        if route == "/metrics":
            body = prometheus_client.generate_latest(registry)
            return 200, prometheus_client.CONTENT_TYPE_LATEST, body
        if route == "/healthz":
            return 200, plain, b"ok\n"
        if route == "/readyz":
            return (200, plain, b"ready\n") if ready() else (503, plain, b"starting\n")
    except Exception as error:  # a gauge's callback: an answer tells more than a closed connection
        log.exception("GET %s failed", route)
        return 500, plain, f"{type(error).__name__}: {error}\n".encode()
    return 404, plain, b"try /metrics, /healthz or /readyz\n"
