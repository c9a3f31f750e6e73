"""The shape of an end-to-end driver: named stages with timings, clean-up whatever happens, and one
JSON object as the last line of output.

Knows nothing of what the stages do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parent.parent
T = TypeVar("T")


class StageFailed(Exception):
    """Something a stage waited for or ran did not come true; the message says what."""


class Report:
    """What the last line tells: `ok`, the stages and how many seconds each took, and facts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begin = clock, clock()
        self.stages: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.error = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a block; says on stderr that it began and how long it took."""
        say(f"{name} …")
        begin = self._clock()
        try:
            yield
        except BaseException as error:
            self.error = self.error or f"{name}: {type(error).__name__}: {error}"
            raise
        finally:
            self.stages[name] = round(self._clock() - begin, 1)
            say(f"{name}: {self.stages[name]} s")

    def line(self) -> str:
        """The JSON object."""
        return json.dumps(
            {
                "ok": not self.error,
                **({"error": self.error} if self.error else {}),
                "seconds": round(self._clock() - self._begin, 1),
                "stages": self.stages,
                **self.facts,
            }
        )


def main(body: Callable[[Report], None], tear_down: Callable[[], None]) -> int:
    """Runs `body`, then `tear_down` also after a failure or Ctrl-C, and writes the last line. The
    exit code: 0 when all went well.
    """
    report = Report()
    try:
        body(report)
    except (Exception, KeyboardInterrupt) as error:
        report.error = report.error or f"{type(error).__name__}: {error}"
        say(report.error)
    try:
        with report.stage("tear down"):
            tear_down()
    except Exception as error:
        say(f"tear down: {error}")
    sys.stdout.write(report.line() + "\n")
    return 1 if report.error else 0


def say(text: str) -> None:
    """A line for people."""
    sys.stderr.write(f"e2e: {text}\n")


def until(look: Callable[[], T | None], *, seconds: float, what: str, pause: float = 0.5) -> T:
    """The first truthy answer of `look`. Raises StageFailed that names `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise StageFailed(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause)


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    seconds: float,
) -> str:
    """The command's output. Raises StageFailed with the end of what it wrote when it fails or takes
    longer than `seconds`.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=dict(env),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise StageFailed(f"{' '.join(words)} took longer than {seconds:.0f} s") from error
    if done.returncode:
        wrote = (done.stdout + done.stderr)[-3000:]
        raise StageFailed(f"{' '.join(words)} ended with {done.returncode}:\n{wrote}")
    return done.stdout
