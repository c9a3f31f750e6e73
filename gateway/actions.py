"""What the reconciler may want done, as values; `gateway.loop` carries them out.

All are idempotent, for all but KeepLogs are derived again until their effect is seen. `kind` labels
the metric that counts them.
"""

from __future__ import annotations

import dataclasses

from services.kit.discovery import Role


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
class KeepLogs:
    """Keeps the last lines of processes that are about to be removed. Not derived again: what a
    gateway that dies right now doesn't keep is gone with its process.
    """

    kind = "keep_logs"
    places: tuple[tuple[Role, int], ...]


@dataclasses.dataclass(frozen=True)
class Emit:
    """Adds an event to the job's history."""

    kind = "emit"
    event: str
    message: str


Action = PublishRun | RetireRun | Start | Stop | TakeCheckpoint | KeepLogs | Emit
