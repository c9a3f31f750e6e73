"""What the reconciler may want done, as values; `gateway.loop` carries them out.

All are idempotent. `kind` labels the metric that counts them.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PublishRun:
    """Makes the present generation known to its processes and to the checkpoint service."""

    kind = "publish_run"


@dataclasses.dataclass(frozen=True)
class RetireRun:
    """Tells the checkpoint service to leave the job alone."""

    kind = "retire_run"


@dataclasses.dataclass(frozen=True)
class Start:
    """Starts the processes of the generation that were never started."""

    kind = "start"


@dataclasses.dataclass(frozen=True)
class Stop:
    """Ends all processes of the generation."""

    kind = "stop"
    kill: bool


@dataclasses.dataclass(frozen=True)
class TakeCheckpoint:
    """Asks the checkpoint service, in the background."""

    kind = "checkpoint"
    purpose: str


@dataclasses.dataclass(frozen=True)
class Emit:
    """Adds an event to the job's history."""

    kind = "emit"
    event: str
    message: str


Action = PublishRun | RetireRun | Start | Stop | TakeCheckpoint | Emit
