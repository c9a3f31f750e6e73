"""What to do about a job: `step(record, seen, now)`, a pure function of what is wanted and what is
there.

It answers with the changed record and the actions to take *after* that record is stored. Everything
is level-driven: an action that got lost (the gateway died, Redis was away) is derived again from
the next look, so none needs to be remembered; all actions are idempotent.

A trainer that ended, failed or fell silent is replaced where the mode allows (`replacement`). Else
a generation ends by the first of: a process that ended, failed, or fell silent; all trainers done
(after the final checkpoint, if the spec wants checkpoints); a user's request. Then all of its
processes are stopped before anything else happens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from gateway import compile as compiling
from gateway import replacement
from gateway.actions import (
    Action,
    Emit,
    KeepLogs,
    PublishRun,
    RetireRun,
    Start,
    Stop,
    TakeCheckpoint,
)
from gateway.checkpoints import Call
from gateway.commands import UNSCALED, paused, with_asked
from gateway.failures import Failure, failures_of
from gateway.progress import result_of
from gateway.record import JobRecord
from gateway.states import move
from gateway.targets import Process
from services.api.spec import JobSpec
from services.api.views import CheckpointView, JobState
from services.kit.discovery import Checkpoint, Member, Phase, Role, Run, incarnation_of

FINAL, SCALE, PAUSE = "final", "scale", "pause"
_LOGS_KEPT = 4  # of processes that fail at once: more would hold up the other jobs
_RETRY_SECONDS = 2.0  # between two tries of a checkpoint
_FIRST_BACKOFF, _MAX_BACKOFF = 0.5, 30.0  # seconds before a restart; doubles with each


@dataclasses.dataclass(frozen=True)
class Seen:
    """What there is of the record's present generation."""

    run: Run | None = None  # the job's published run, of whatever generation
    processes: tuple[Process, ...] = ()
    members: tuple[Member, ...] = ()
    silent: Mapping[tuple[Role, int], float] = dataclasses.field(
        default_factory=dict
    )  # seconds without a lease
    newest: Checkpoint | None = None
    call: Call | None = None  # the last checkpoint that this gateway asked for
    trouble: str = ""  # why the last actions failed
    waits: str = ""  # what the target has no room for at present, in words


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of patience in seconds."""

    start: float
    stop: float
    silence: float
    checkpoint: float


@dataclasses.dataclass(frozen=True)
class Step:
    """The record to store if it changed, then the actions to take in order."""

    record: JobRecord
    actions: tuple[Action, ...] = ()


def step(record: JobRecord, seen: Seen, now: float, limits: Limits) -> Step:
    """The next step of a job. One that is over or paused needs none."""
    if record.state.at_rest:
        return Step(record)
    spec = record.job_spec
    if record.state == JobState.PENDING:
        return _pending(record, seen, now)
    if record.state == JobState.STOPPING:
        return _stopping(record, seen, now, limits, spec)
    seen = _present(record, seen)
    failures = failures_of(seen.processes, seen.members, seen.silent, limits.silence)
    if record.state.trains:
        failures += replacement.vanished(record, seen.processes, compiling.expected(spec))
        failures += replacement.late(record, seen.members, seen.silent, now, limits.start)
        if failures and replacement.possible(record, failures, spec):
            replaced = replacement.replace(record, failures, seen.members, now)
            told = Emit("replacing", replacement.told(replaced, failures, spec))
            return _keeping_logs(Step(replaced, (told,)), failures)
    if failures:
        return _keeping_logs(_failed(record, seen, now, failures[0], spec), failures)
    if record.state == JobState.STARTING:
        return _waiting(_starting(record, seen, now, limits, spec), seen, now, limits)
    return _waiting(_running(record, seen, now, limits, spec), seen, now, limits)


def _keeping_logs(step: Step, failures: Sequence[Failure]) -> Step:
    """`step`, and the last lines of those to blame are kept before they are removed."""
    places = tuple(dict.fromkeys(f.place for f in failures if f.place is not None))[:_LOGS_KEPT]
    kept = (KeepLogs(places),) if places else ()
    return dataclasses.replace(step, actions=(*step.actions, *kept))


def _waiting(step: Step, seen: Seen, now: float, limits: Limits) -> Step:
    """A job that the target has no room for says so, once for each reason, and the time in which it
    waits doesn't count against it.
    """
    record = step.record
    starting = record.state == JobState.STARTING
    if not (starting or record.state.trains) or not (seen.waits or record.error):
        return step
    if not seen.waits:
        return step if starting else Step(dataclasses.replace(record, error=""), step.actions)
    # Not at every look: each change of a record is a write.
    if starting and now - record.since > limits.start / 2:
        record = dataclasses.replace(record, since=now)
    elif not starting and now - record.replaced_at > limits.start / 2:
        record = dataclasses.replace(record, replaced_at=now)
    if record.error == seen.waits:
        return Step(record, step.actions)
    told = dataclasses.replace(record, error=seen.waits, updated=now)
    return Step(told, (Emit("waiting", seen.waits), *step.actions))


def _present(record: JobRecord, seen: Seen) -> Seen:
    """Without what trainers left behind that have been replaced."""

    def present(what: Process | Member) -> bool:
        wanted = incarnation_of(record.incarnations, what.role, what.rank)
        return what.incarnation == wanted

    return dataclasses.replace(
        seen,
        processes=tuple(filter(present, seen.processes)),
        members=tuple(filter(present, seen.members)),
    )


def _pending(record: JobRecord, seen: Seen, now: float) -> Step:
    if now < record.not_before:
        return Step(record)
    started = move(
        record,
        JobState.STARTING,
        now,
        generation=record.generation + 1,
        incarnations=(),
        replaced_at=0.0,
        checkpoint_before="" if seen.newest is None else seen.newest.id,
    )
    text = f"generation {started.generation} {_origin(record.restore)}"
    return Step(started, (Emit("starting", text),))


def _origin(manifest: str) -> str:
    return f"from {manifest}" if manifest else "from scratch"


def _starting(record: JobRecord, seen: Seen, now: float, limits: Limits, spec: JobSpec) -> Step:
    phases = {(m.role, m.rank): m.phase for m in seen.members}
    waiting = [
        p for p in compiling.expected(spec) if phases.get(p) not in (Phase.READY, Phase.DONE)
    ]
    if not waiting:
        running = move(record, JobState.RUNNING, now, error="")
        return Step(
            running, (Emit("running", f"all {len(compiling.expected(spec))} processes are ready"),)
        )
    if now - record.since > limits.start:
        names = ", ".join(f"{role} {rank}" for role, rank in waiting)
        waits = [f"{p.role} {p.rank} waits: {p.waits_for}" for p in seen.processes if p.waits_for]
        cause = f": {seen.trouble or waits[0]}" if seen.trouble or waits else ""
        text = f"not ready within {limits.start:.0f} s: {names}{cause}"
        late = [Failure(text, place=place) for place in waiting]
        return _keeping_logs(_failed(record, seen, now, late[0], spec), late)
    started = {(p.role, p.rank) for p in seen.processes}
    actions: list[Action] = [*_published(record, seen)]
    if not started.issuperset(compiling.expected(spec)):
        actions.append(Start())
    return Step(record, tuple(actions))


def _running(record: JobRecord, seen: Seen, now: float, limits: Limits, spec: JobSpec) -> Step:
    there = {(p.role, p.rank) for p in seen.processes}
    if not there.issuperset(compiling.expected(spec)):  # replacements that have not been started
        if record.state == JobState.PAUSING and now - record.since >= limits.checkpoint:
            return _unpaused(record, now, seen.waits or seen.trouble or "a process is missing")
        return Step(record, (*_published(record, seen), Start()))
    done = {m.rank for m in seen.members if m.role == Role.TRAINER and m.phase == Phase.DONE}
    if done.issuperset(range(spec.resources.trainers)):
        return _finishing(record, seen, now, limits, spec)
    if record.state == JobState.PAUSING:
        return _pausing(record, seen, now, limits)
    if record.scaling:
        return _scaling(record, seen, now, limits)
    return Step(record, _published(record, seen))


def _published(record: JobRecord, seen: Seen) -> tuple[Action, ...]:
    # A former leader's late word may have overwritten the run; the present leader's prevails.
    present = seen.run
    if (
        present is not None
        and present.active
        and present.generation == record.generation
        and tuple(present.incarnations) == record.incarnations
    ):
        return ()
    return (PublishRun(),)


def _finishing(record: JobRecord, seen: Seen, now: float, limits: Limits, spec: JobSpec) -> Step:
    """All trainers are done: the final checkpoint, then success."""
    if spec.checkpoint is not None:
        outcome = _outcome(seen.call, FINAL, now, limits)
        if isinstance(outcome, str):
            text = f"the final checkpoint failed: {outcome}"
            return _end(record, JobState.FAILED, now, Emit("failed", text), error=text)
        if not isinstance(outcome, CheckpointView):
            return Step(record, outcome)
    result = result_of(seen.members)
    text = (
        "training is complete" if result is None else f"training is complete, test AUC {result.auc}"
    )
    return _end(record, JobState.SUCCEEDED, now, Emit("trained", text), result=result, **UNSCALED)


def _scaling(record: JobRecord, seen: Seen, now: float, limits: Limits) -> Step:
    """A checkpoint, then the next generation from it with other numbers of processes."""
    outcome = _outcome(seen.call, f"{SCALE} {record.scale_at}", now, limits)
    if isinstance(outcome, str):
        kept = dataclasses.replace(record, **UNSCALED, updated=now)
        return Step(kept, (Emit("scale-failed", f"all processes stay as they are: {outcome}"),))
    if not isinstance(outcome, CheckpointView):
        return Step(record, (*_published(record, seen), *outcome))
    spec = with_asked(record)
    counts = "{trainers} trainers, {sparse_ps} sparse-PS and {dense_ps} dense-PS".format(
        **spec["resources"]
    )
    return _end(
        record,
        JobState.PENDING,
        now,
        Emit("scaling", f"to {counts} from checkpoint {outcome.id}"),
        restore=outcome.uri,
        spec=spec,
        **UNSCALED,
        not_before=0.0,
    )


def _pausing(record: JobRecord, seen: Seen, now: float, limits: Limits) -> Step:
    """A checkpoint, then no processes until the user resumes from it."""
    outcome = _outcome(seen.call, f"{PAUSE} {record.since}", now, limits)
    if isinstance(outcome, str):
        return _unpaused(record, now, outcome)
    if not isinstance(outcome, CheckpointView):
        return Step(record, (*_published(record, seen), *outcome))
    return _end(
        record,
        JobState.PAUSED,
        now,
        Emit("pausing", f"its processes end; it resumes from checkpoint {outcome.id}"),
        restore=outcome.uri,
        not_before=0.0,
    )


def _unpaused(record: JobRecord, now: float, why: str) -> Step:
    """There can be no checkpoint: rather than lose what was trained, the job runs on."""
    told = Emit("pause-failed", f"the job goes on as it is: {why}")
    return Step(move(record, JobState.RUNNING, now), (told,))


def _outcome(
    call: Call | None, purpose: str, now: float, limits: Limits
) -> CheckpointView | str | tuple[Action, ...]:
    """The checkpoint taken for `purpose`, why there can be none, or what to do to get it (nothing:
    wait).
    """
    if call is None or (call.ended is not None and call.purpose != purpose):
        return (TakeCheckpoint(purpose),)
    if call.ended is None:
        return ()
    if call.checkpoint is not None:
        return call.checkpoint
    if call.permanent or now - call.began >= limits.checkpoint:
        return call.error
    return (TakeCheckpoint(purpose),) if now - call.ended >= _RETRY_SECONDS else ()


def _failed(record: JobRecord, seen: Seen, now: float, failure: Failure, spec: JobSpec) -> Step:
    if failure.permanent:
        return _end(record, JobState.FAILED, now, Emit("failed", failure.text), error=failure.text)
    if record.restarts >= spec.max_restarts:
        text = f"{failure.text} (after {record.restarts} of max_restarts {spec.max_restarts})"
        return _end(record, JobState.FAILED, now, Emit("failed", text), error=text)
    restore = _restart_from(record, seen.newest)
    if record.state == JobState.PAUSING:  # what was asked for, from where a restart would begin
        text = f"its checkpoint for the pause was not complete: {failure.text}"
        return _end(
            record,
            JobState.PAUSED,
            now,
            Emit("pausing", f"{text}; it resumes {_origin(restore)}"),
            error=failure.text,
            restore=restore,
        )
    return _end(
        record,
        JobState.PENDING,
        now,
        Emit("restarting", f"restart {record.restarts + 1} of {spec.max_restarts}: {failure.text}"),
        error=failure.text,
        restarts=record.restarts + 1,
        restore=restore,
        not_before=now + min(_MAX_BACKOFF, _FIRST_BACKOFF * 2**record.restarts),
    )


def _restart_from(record: JobRecord, newest: Checkpoint | None) -> str:
    """The newest checkpoint if this generation took it, else where this generation began.

    After `:restore` of an older checkpoint the newest one belongs to the history that the user
    left.
    """
    if newest is None or newest.id == record.checkpoint_before:
        return record.restore
    return newest.uri


def _end(record: JobRecord, becomes: JobState, now: float, event: Emit, **changes: Any) -> Step:
    return Step(move(record, JobState.STOPPING, now, becomes=becomes, **changes), (event,))


def _stopping(record: JobRecord, seen: Seen, now: float, limits: Limits, spec: JobSpec) -> Step:
    record = _with_last_sight(record, seen, spec)
    actions: list[Action] = []
    if seen.run is not None and seen.run.active:
        actions.append(RetireRun())
    if any(p.alive for p in seen.processes):
        actions.append(Stop(kill=now - record.since > limits.stop))
    if actions:
        return Step(record, tuple(actions))
    becomes = record.becomes or JobState.FAILED
    if becomes == JobState.PAUSED:
        ended = paused(record, now)
    else:
        ended = move(record, becomes, now, becomes=None)
    # A restart was announced when it was decided.
    told = (Emit(str(becomes), "all processes have ended"),) if becomes.at_rest else ()
    return Step(ended, told)


def _with_last_sight(record: JobRecord, seen: Seen, spec: JobSpec) -> JobRecord:
    """Takes progress and newest checkpoint along while they can still be seen."""
    changes: dict[str, Any] = {}
    trainers = sum(m.role == Role.TRAINER for m in seen.members)
    if trainers == spec.resources.trainers:
        progress = replacement.progress_since(record, seen.members)
        shards = sum(m.role == Role.SPARSE_PS for m in seen.members)
        if not spec.resources.embedded and shards < spec.resources.sparse_ps:  # gone before them
            progress = progress.model_copy(
                update={"rows": max(progress.rows, record.progress.rows)}
            )
        changes["progress"] = progress
    if seen.newest is not None:
        changes["checkpoint"] = CheckpointView(**dataclasses.asdict(seen.newest))
    sight = dataclasses.replace(record, **changes)
    if sight.checkpoint is None or sight.checkpoint.samples != sight.progress.samples:
        return sight
    # Of the same instant; what the shards say in their leases may be a second old.
    counted = sight.progress.model_copy(update={"rows": sight.checkpoint.rows})
    return dataclasses.replace(sight, progress=counted)
