"""The audit log: one JSON line for every change that was asked for, and for every refusal.

    {"who": "token:ab…", "tenant": "ads", "role": "operator", "from": "10.0.0.7",
     "what": "POST /v1/jobs/{job}:cancel", "on": {"job": "clicks-x7k2qa"}, "status": 202, …}

A line holds names and ids only: no header, no body, no query string, so no secret can be in it.
Looks at things that were allowed leave no line.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.types import Scope

from gateway.identity import Identity
from services.kit.errors import InvalidInput

LOGGER = "embermesh.audit"
_LOOKS = ("GET", "HEAD", "OPTIONS")
_REFUSALS = (401, 403, 429)


class Audit:
    """Writes to `file`, or to the process's log when it is empty. Raises InvalidInput for a file
    that can't be written.
    """

    def __init__(self, file: str = "", clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._log = logging.getLogger(LOGGER)
        self._handler: logging.Handler | None = None
        if file:
            try:
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                # Opens the file anew after a rotation by others.
                self._handler = logging.handlers.WatchedFileHandler(file, encoding="utf-8")
            except OSError as error:
                raise InvalidInput(f"audit_file {file!r}: {error}") from error

    def record(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        """Notes the answered request if it belongs here."""
        method = scope["method"]
        if route == "none" or (method in _LOOKS and status not in _REFUSALS):
            return
        state: dict[str, Any] = scope.get("state", {})
        who: Identity | None = state.get("identity")
        client = scope.get("client")
        fields: dict[str, Any] = {
            "time": round(self._clock(), 3),
            "who": who.subject if who else None,
            "tenant": who.tenant if who else None,
            "role": str(who.role) if who else None,
            "from": client[0] if client else None,
            "what": f"{method} {route}",
            "on": dict(scope.get("path_params", {})),
            "status": status,
            "seconds": round(seconds, 4),
            "request_id": state.get("request_id"),
        }
        if "job" in state:  # of a submission: the path doesn't name it
            fields["on"]["job"] = state["job"]
        if self._handler is None:
            self._log.info("audit", extra={"fields": {"audit": fields}})
            return
        line = json.dumps(fields)
        self._handler.handle(self._log.makeRecord(LOGGER, logging.INFO, "", 0, line, (), None))

    def close(self) -> None:
        """Closes the file."""
        if self._handler is not None:
            self._handler.close()
