"""What users ask of a job, as pure changes of its record; the reconciler carries them out.

Each function returns the changed record (or the same one when there is nothing to do) and raises
Conflict when the request doesn't fit the job's state. `once` and `at_version` wrap such a
change with what the request's headers ask.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.record import JobRecord
from gateway.states import move
from services.api.views import JobState, RestoreRequest
from services.kit.errors import Conflict, InvalidInput, PreconditionFailed

Change = Callable[[JobRecord], JobRecord]

_COMMANDS_KEPT = 16  # keyed commands that a job remembers
_ACTIVE = (JobState.STARTING, JobState.RUNNING, JobState.PAUSING)
# No other counts are asked for.
UNSCALED: dict[str, Any] = {
    "scale_to": None,
    "scale_sparse_to": None,
    "scale_dense_to": None,
    "scale_request": "",
    "scale_trace": {},
}


def cancel(record: JobRecord, now: float) -> JobRecord:
    """Stops the job for good. Cancelling a cancelled job changes nothing."""
    ends_as = _heads_for(record)
    if ends_as == JobState.CANCELLED:
        return record
    if ends_as in (JobState.SUCCEEDED, JobState.FAILED):
        raise Conflict(f"job {record.id} has {ends_as}; there is nothing to cancel")
    if record.state in (JobState.PENDING, JobState.PAUSED):
        return move(record, JobState.CANCELLED, now, **UNSCALED)
    if record.state == JobState.STOPPING:
        return dataclasses.replace(record, becomes=JobState.CANCELLED, updated=now)
    return move(record, JobState.STOPPING, now, becomes=JobState.CANCELLED, **UNSCALED)


def pause(record: JobRecord, now: float) -> JobRecord:
    """Asks for a checkpoint, then for no processes until `resume`. Pausing a paused job changes
    nothing.

    Before all its processes were ready, a generation has no progress of its own worth a checkpoint:
    it ends at once, and the resumed job begins where this generation did. Counts that were asked
    for and not carried out are those it resumes with.
    """
    heads_for = _heads_for(record)
    if heads_for in (JobState.PAUSING, JobState.PAUSED):
        return record
    if heads_for.final:
        raise Conflict(
            f"job {record.id} {_is(record, heads_for)}; only a job that is not over can be paused"
        )
    _require_checkpoints(record, "pausing")
    if record.state == JobState.RUNNING:
        return move(record, JobState.PAUSING, now)
    if record.state == JobState.STARTING:
        return move(record, JobState.STOPPING, now, becomes=JobState.PAUSED)
    if record.state == JobState.STOPPING:
        return dataclasses.replace(record, becomes=JobState.PAUSED, updated=now)
    return paused(record, now)


def paused(record: JobRecord, now: float) -> JobRecord:
    """The record of a job whose last process is gone: with the counts it will resume with, and the
    samples and rows of the checkpoint it will resume from.
    """
    spec, progress, origin = with_asked(record), record.progress, record.checkpoint
    if origin is not None and origin.uri == record.restore:
        progress = progress.model_copy(update={"samples": origin.samples, "rows": origin.rows})
    changes = {"becomes": None, "spec": spec, "progress": progress}
    return move(record, JobState.PAUSED, now, **changes, **UNSCALED)


def resume(record: JobRecord, now: float) -> JobRecord:
    """Starts the next generation of a paused job where the last one was paused; takes a pause back
    that is under way. Resuming a job that goes on anyway changes nothing.
    """
    heads_for = _heads_for(record)
    if heads_for.final:
        raise Conflict(
            f"job {record.id} {_is(record, heads_for)}; only a paused job can be resumed, one that "
            "is over can be restored"
        )
    changes: dict[str, Any] = {"restarts": 0, "not_before": 0.0, "error": ""}
    if record.state == JobState.PAUSED:
        return move(record, JobState.PENDING, now, **changes)
    if record.state == JobState.PAUSING:
        return move(record, JobState.RUNNING, now)
    if heads_for == JobState.PAUSED:
        return dataclasses.replace(record, becomes=JobState.PENDING, updated=now, **changes)
    return record


def restore(record: JobRecord, manifest: str, request: RestoreRequest, now: float) -> JobRecord:
    """Starts the next generation from `manifest`, with the counts the request gives."""
    changes: dict[str, Any] = {
        "restore": manifest,
        "restarts": 0,
        "not_before": 0.0,
        **UNSCALED,
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


def scale(
    record: JobRecord,
    trainers: int | None,
    now: float,
    *,
    sparse_ps: int | None = None,
    dense_ps: int | None = None,
    request: str = "",
    trace: Mapping[str, str] = MappingProxyType({}),
) -> JobRecord:
    """Asks for other numbers of processes: checkpoint, then the next generation from it. None
    leaves a number as it is, or as it was asked for before; the present number takes that back. A
    paused job resumes with them. What is done for it belongs to that `request` (its id) and `trace`
    (tracing.HEADERS).

    Raises InvalidInput for a number of sparse-PS where trainers have the shards.
    """
    if record.state not in (*_ACTIVE, JobState.PAUSED):
        raise Conflict(
            f"job {record.id} is {record.state}; only a starting, running or paused job scales"
        )
    _require_checkpoints(record, "scaling")
    # Refused now, not when the reconciler comes to it.
    spec = with_resources(record.spec, trainers=trainers, sparse_ps=sparse_ps, dense_ps=dense_ps)
    if record.state == JobState.PAUSED:
        changed = dataclasses.replace(record, spec=spec)
        return record if changed == record else dataclasses.replace(changed, updated=now)
    present = record.spec["resources"]

    def asked(role: str, count: int | None, before: int | None) -> int | None:
        if count is None:
            return before
        return None if count == present[role] else count

    changed = dataclasses.replace(
        record,
        scale_to=asked("trainers", trainers, record.scale_to),
        scale_sparse_to=asked("sparse_ps", sparse_ps, record.scale_sparse_to),
        scale_dense_to=asked("dense_ps", dense_ps, record.scale_dense_to),
    )
    if changed == record:
        return record
    return dataclasses.replace(
        changed, scale_at=now, scale_request=request, scale_trace=dict(trace), updated=now
    )


def with_asked(record: JobRecord) -> dict[str, Any]:
    """The spec with the counts that were asked for and not carried out yet."""
    return with_resources(
        record.spec,
        trainers=record.scale_to,
        sparse_ps=record.scale_sparse_to,
        dense_ps=record.scale_dense_to,
    )


def with_resources(
    spec: dict[str, Any], placement: str | None = None, **counts: int | None
) -> dict[str, Any]:
    """The spec with other process counts or another placement; None leaves one as it is.

    Raises InvalidInput for a count of sparse-PS, or its autoscaling, where trainers have the
    shards.
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
        if (spec.get("autoscale") or {}).get("sparse_ps"):
            raise InvalidInput(
                "placement: embedded is asked for, but the job's autoscale.sparse_ps chooses a "
                "number of shards of its own"
            )
        resources["sparse_ps"] = resources["trainers"]
    return {**spec, "resources": resources}


def _heads_for(record: JobRecord) -> JobState:
    """The state, or the one that follows when the job is stopping."""
    if record.state == JobState.STOPPING:
        return record.becomes or JobState.FAILED
    return record.state


def _is(record: JobRecord, heads_for: JobState) -> str:
    return f"is {record.state}" + (f", then {heads_for}" if heads_for != record.state else "")


def _require_checkpoints(record: JobRecord, what: str) -> None:
    if record.spec.get("checkpoint") is None:
        raise Conflict(
            f"job {record.id} has no `checkpoint` in its spec; {what} goes through a checkpoint, "
            "so it would lose all progress"
        )


def etag(record: JobRecord) -> str:
    """Names this version of the record, as the header writes it."""
    return f'"{record.version}"'


def at_version(change: Change, if_match: str) -> Change:
    """`change`, only if the header If-Match names the present version; an empty one asks nothing.

    Raises PreconditionFailed. A weak tag never matches (RFC 9110, 13.1.1).
    """
    wanted = {tag.strip() for tag in if_match.split(",") if tag.strip()}

    def checked(record: JobRecord) -> JobRecord:
        if wanted and "*" not in wanted and etag(record) not in wanted:
            raise PreconditionFailed(
                f"job {record.id} is at version {etag(record)}, not at {if_match.strip()}"
            )
        return change(record)

    return checked


def once(change: Change, key: str, what: str) -> Change:
    """`change`, unless the same `key` already made it: then the record stays as it is, whatever
    became of the job since. `what` is the request's text. An empty key asks nothing.

    The key is stored with the change itself, so no crash can part them. Raises Conflict when it
    came with another request.
    """
    if not key:
        return change
    digest = hashlib.sha256(what.encode()).hexdigest()[:32]
    entry = f"{digest} {key}"

    def keyed(record: JobRecord) -> JobRecord:
        if entry in record.commands:
            return record
        if any(other.partition(" ")[2] == key for other in record.commands):
            raise Conflict(f"Idempotency-Key {key!r} was used with another request to {record.id}")
        changed = change(record)
        kept = (*changed.commands, entry)[-_COMMANDS_KEPT:]
        return dataclasses.replace(changed, commands=kept)

    return keyed
