"""The one process an agent runs: started, signalled, its output passed on and its end remembered.

Knows nothing of Redis or of what the process does. The process dies with the thread that started
it (PR_SET_PDEATHSIG, set by util-linux's `setpriv`), so that an agent killed by SIGKILL leaves
nobody behind: whoever watches the agent's lease may take the process for dead too.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, BinaryIO

log = logging.getLogger(__name__)

_TAIL_BYTES = 1 << 20  # of a process's output are kept
_LINE_BYTES = 1 << 16  # a longer line is kept as several
_NOT_STARTED = 127  # exit code of a program that can't be run, as a shell gives it
_OUTPUT_SECONDS = 2.0  # for the last lines of an ended process


class Tail:
    """The end of an output, bounded in bytes. Thread-safe."""

    def __init__(self, limit: int = _TAIL_BYTES) -> None:
        self._limit, self._size = limit, 0
        self._lines: collections.deque[bytes] = collections.deque()
        self._lock = threading.Lock()

    def add(self, line: bytes) -> None:
        """Appends a line, and drops the oldest ones beyond the limit."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            while self._size > self._limit:
                self._size -= len(self._lines.popleft())

    def last(self, lines: int) -> str:
        """The last `lines` lines."""
        with self._lock:
            kept = list(self._lines)[-lines:] if lines > 0 else []
        return b"".join(kept).decode(errors="replace")


class Child:
    """A process in a session of its own; what it writes goes to `out` and to `tail`."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], out: BinaryIO) -> None:
        """Starts it. The calling thread must live as long as the process shall. A program that
        can't be started is a child that ended with 127 and says why.
        """
        self.tail = Tail()
        self._out = out
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self.tail.add(f"can't start {command[0]}: {error}\n".encode())
            return
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._pass_on, args=(self._process.stdout,), name="output", daemon=True
        )
        self._reader.start()

    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        if self._process is None:
            return _NOT_STARTED
        code = self._process.poll()
        if code is not None and self._reader is not None:
            self._reader.join(_OUTPUT_SECONDS)  # whom it started may hold its output open
        return code

    def signal(self, number: signal.Signals) -> None:
        """Signals it and all it started."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _pass_on(self, output: IO[bytes]) -> None:
        with output:
            for line in iter(lambda: output.readline(_LINE_BYTES), b""):
                self.tail.add(line)
                try:
                    self._out.write(line)
                    self._out.flush()
                except (OSError, ValueError):  # nobody reads the container's log; the tail remains
                    log.debug("could not pass a line on", exc_info=True)
