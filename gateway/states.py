"""The states of a job as a table, and the one function that moves a job along it.

    pending ─► starting ─► running ◄─► pausing ─► stopping ─► succeeded | failed | cancelled
       ▲          │           └──────────────────►│  │ │             │
       │          └──────────────────────────────►│  │ └────► paused  │
       └─────────────── next generation ─────────────┘          │    │
       └──────────────────────────────── :resume, :restore ─────┘────┘

Every generation begins in `pending`, so there is one way to start, and ends in `stopping`, so there
is one way to stop: a record leaves `stopping` only when no process of its generation is left. What
has no process (`pending`, `paused`) can also be paused or cancelled at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gateway.record import JobRecord
from services.api.views import JobState
from services.kit.errors import Conflict

MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.STARTING, JobState.PAUSED, JobState.CANCELLED}),
    JobState.STARTING: frozenset({JobState.RUNNING, JobState.STOPPING}),
    JobState.RUNNING: frozenset({JobState.PAUSING, JobState.STOPPING}),
    JobState.PAUSING: frozenset({JobState.RUNNING, JobState.STOPPING}),
    JobState.STOPPING: frozenset(
        {
            JobState.PENDING,
            JobState.PAUSED,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.PAUSED: frozenset({JobState.PENDING, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset({JobState.PENDING}),
    JobState.FAILED: frozenset({JobState.PENDING}),
    JobState.CANCELLED: frozenset({JobState.PENDING}),
}


def move(record: JobRecord, to: JobState, now: float, **changes: Any) -> JobRecord:
    """The record in state `to`, with further changes. Raises Conflict when the table has no such
    move.
    """
    if to not in MOVES[record.state]:
        raise Conflict(f"job {record.id} is {record.state}; it can't become {to}")
    return dataclasses.replace(record, **{**changes, "state": to, "since": now, "updated": now})
