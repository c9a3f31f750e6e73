"""What users ask of a job, as pure changes of its record; the reconciler carries them out.

Each function returns the changed record (or the same one when there is nothing to do) and raises
Conflict when the request doesn't fit the job's state.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gateway.record import JobRecord
from gateway.states import move
from services.api.views import JobState, RestoreRequest
from services.kit.errors import Conflict, InvalidInput

_ACTIVE = (JobState.STARTING, JobState.RUNNING)


def cancel(record: JobRecord, now: float) -> JobRecord:
    """Stops the job for good. Cancelling a cancelled job changes nothing."""
    ends_as = record.becomes if record.state == JobState.STOPPING else record.state
    if ends_as == JobState.CANCELLED:
        return record
    if ends_as in (JobState.SUCCEEDED, JobState.FAILED):
        raise Conflict(f"job {record.id} has {ends_as}; there is nothing to cancel")
    if record.state == JobState.PENDING:
        return move(record, JobState.CANCELLED, now, scale_to=None)
    if record.state == JobState.STOPPING:
        return dataclasses.replace(record, becomes=JobState.CANCELLED, updated=now)
    return move(record, JobState.STOPPING, now, becomes=JobState.CANCELLED, scale_to=None)


def restore(record: JobRecord, manifest: str, request: RestoreRequest, now: float) -> JobRecord:
    """Starts the next generation from `manifest`, with the counts the request gives."""
    changes: dict[str, Any] = {
        "restore": manifest,
        "restarts": 0,
        "not_before": 0.0,
        "scale_to": None,
        "error": "",
        "result": None,
        "spec": with_resources(
            record.spec,
            placement=request.placement,
            sparse_ps=request.sparse_ps,
            dense_ps=request.dense_ps,
            trainers=request.trainers,
        ),
    }
    if record.state == JobState.STOPPING:
        # Its processes still run with the present counts; who asks again in a moment finds it free.
        raise Conflict(f"job {record.id} is stopping; restore it when it has stopped")
    if record.state == JobState.PENDING:
        return dataclasses.replace(record, **changes, updated=now)
    if record.state in _ACTIVE:
        # The old processes are found by generation in the target, so the new counts can't hide one.
        return move(record, JobState.STOPPING, now, becomes=JobState.PENDING, **changes)
    return move(record, JobState.PENDING, now, **changes)


def scale(record: JobRecord, trainers: int, now: float) -> JobRecord:
    """Asks for another number of trainers: checkpoint, then the next generation from it."""
    if record.state not in _ACTIVE:
        raise Conflict(f"job {record.id} is {record.state}; only a starting or running job scales")
    if record.spec.get("checkpoint") is None:
        raise Conflict(
            f"job {record.id} has no `checkpoint` in its spec; scaling goes through a checkpoint, "
            "so it would lose all progress"
        )
    present = record.spec["resources"]["trainers"]
    wanted = None if trainers == present else trainers
    if wanted == record.scale_to:
        return record
    return dataclasses.replace(record, scale_to=wanted, scale_at=now, updated=now)


def with_resources(
    spec: dict[str, Any], placement: str | None = None, **counts: int | None
) -> dict[str, Any]:
    """The spec with other process counts or another placement; None leaves one as it is.

    Raises InvalidInput for a count of sparse-PS where trainers have the shards.
    """
    given = {name: count for name, count in counts.items() if count is not None}
    resources = {**spec["resources"], **given}
    if placement is not None:
        resources["placement"] = placement
    if resources.get("placement") == "embedded":
        if "sparse_ps" in given:
            raise InvalidInput(
                f"sparse_ps: {given['sparse_ps']} is asked for, but with placement embedded each "
                "trainer has one shard; give trainers"
            )
        resources["sparse_ps"] = resources["trainers"]
    return {**spec, "resources": resources}
