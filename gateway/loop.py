"""The loop around `reconciler.step`: lead, look, store, act. The only place where the gateway
changes the world.

Guarantees: at most one gateway acts at a time (the leader's lease; records and targets refuse a
former leader by its token). A record is stored before its actions are taken, and every action is
derived again until its effect is seen, so the gateway may die between any two lines. While Redis is
away nothing is done and nothing is lost.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence

from gateway import actions, reconciler
from gateway import compile as compiling
from gateway.actions import Action
from gateway.autoscaler import Autoscaler
from gateway.checkpoints import CheckpointClient
from gateway.last_logs import KeptLogs
from gateway.metrics import GatewayMetrics
from gateway.reconciler import Limits, Seen
from gateway.record import JobRecord
from gateway.store import JobStore, Lease
from gateway.targets import Keeper, Observe, Surveyor, Target
from services.kit import tracing, trail
from services.kit.discovery import Member, Registry, Role, Run, incarnation_of
from services.kit.errors import Conflict, EmbermeshError, NoRoom, NotFound, Unavailable
from services.kit.telemetry import timed
from services.kit.tracing import Tracing

log = logging.getLogger(__name__)

_SOON = 0.02  # seconds to the next look after a job changed
_MAX_BACKOFF = 5.0  # seconds between looks while Redis is away
_SWEEP_SECONDS = 60.0  # between two removals of what ended jobs left, unless one ended since


class LeaseWatch:
    """Since when a member that had been seen has no lease. A gap in the watching itself counts for
    nothing.
    """

    def __init__(self) -> None:
        # job -> generation, and of each place its incarnation and when it was last seen
        self._seen: dict[str, tuple[int, dict[tuple[Role, int], tuple[int, float]]]] = {}

    def update(
        self,
        job: str,
        generation: int,
        members: Sequence[Member],
        now: float,
        incarnations: Sequence[int] = (),
    ) -> dict[tuple[Role, int], float]:
        """Notes who is there; returns the silence of everybody seen before, in seconds.

        Trainers of earlier incarnations than `incarnations` count for nothing.
        """
        known, last = self._seen.get(job, (generation, {}))
        if known != generation:
            last = {}
        last.update({(m.role, m.rank): (m.incarnation, now) for m in members})
        last = {
            place: (number, at)
            for place, (number, at) in last.items()
            if number >= incarnation_of(incarnations, *place)
        }
        self._seen[job] = (generation, last)
        return {place: now - at for place, (_, at) in last.items() if at < now}

    def keep_only(self, jobs: set[str]) -> None:
        """Drops every other job."""
        self._seen = {job: entry for job, entry in self._seen.items() if job in jobs}

    def reset(self) -> None:
        """Starts anew: nobody could be seen for a while."""
        self._seen.clear()


@dataclasses.dataclass(frozen=True)
class Tools:
    """What the loop looks at and acts through."""

    store: JobStore
    registry: Registry
    target: Target
    checkpoints: CheckpointClient
    metrics: GatewayMetrics
    around: compiling.Surroundings
    limits: Limits
    kept: KeptLogs
    clock: Callable[[], float] = time.time
    traces: Tracing = tracing.OFF


class Reconciler:
    """Runs the loop on its own thread as gateway `owner` until `close`."""

    def __init__(self, tools: Tools, owner: str, tick: float, lease_seconds: float) -> None:
        self._tools, self._owner = tools, owner
        self._tick, self._lease_seconds = tick, lease_seconds
        self._lease: Lease | None = None
        self._waits: dict[str, str] = {}  # job -> what there is no room for
        self._watch = LeaseWatch()
        self._autoscaler = Autoscaler(tools.metrics.autoscale)
        self._observe: Observe = tools.target.observe  # of this round, if it is a Surveyor
        self._trouble: dict[str, str] = {}  # job -> why its last look failed
        self._swept: tuple[set[str], float] = (set(), 0.0)  # jobs kept, and when to sweep again
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name="reconciler", daemon=True)

    @property
    def leads(self) -> bool:
        """Whether this gateway acts at present."""
        return self._lease is not None

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Looks at the jobs now instead of at the next tick."""
        self._wake.set()

    def close(self) -> None:
        """Ends the loop after the present look and hands the lead over."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        if self._lease is not None:
            try:
                self._tools.store.release(self._lease)
            except Unavailable as error:
                log.warning("%s", error)
            self._set_lease(None)

    def tick(self) -> bool:
        """One look at all active jobs, if this gateway leads; True when a job changed. Raises
        Unavailable.
        """
        if not self._lead():
            return False
        with timed(self._tools.metrics.reconcile_seconds):
            records = self._tools.store.active()
            jobs = {r.id for r in records}
            self._waits = {job: text for job, text in self._waits.items() if job in jobs}
            self._watch.keep_only(jobs)
            self._autoscaler.keep_only(jobs)
            self._trouble = {job: text for job, text in self._trouble.items() if job in jobs}
            target = self._tools.target
            self._observe = target.survey() if isinstance(target, Surveyor) else target.observe
            changes = [self._attend(record) for record in records]
            self._sweep(jobs)
        return any(changes)

    def _lead(self) -> bool:
        store = self._tools.store
        if self._lease is not None and not store.renew(self._lease, self._lease_seconds):
            log.warning("another gateway leads now")
            self._set_lease(None)
        if self._lease is None:
            self._set_lease(store.acquire(self._owner, self._lease_seconds))
            if self._lease is not None:
                log.info("this gateway leads, token %d", self._lease.token)
        return self._lease is not None

    def _set_lease(self, lease: Lease | None) -> None:
        self._lease = lease
        self._watch.reset()
        self._autoscaler.reset()
        self._tools.metrics.leader.set(0 if lease is None else 1)

    def _attend(self, record: JobRecord) -> bool:
        """One look at one job, which must not keep the others from theirs."""
        try:
            changed = self._look(record)
            self._trouble.pop(record.id, None)
            self._waits.pop(record.id, None)
            return changed
        except NoRoom as error:
            self._waits[record.id] = str(error)
        except Unavailable as error:
            if self._redis_is_away():
                raise
            self._note(record.id, error)
        except EmbermeshError as error:
            self._note(record.id, error)
        except Exception as error:
            log.exception("job %s: unexpected failure", record.id)
            self._note(record.id, error)
        return False

    def _sweep(self, jobs: set[str]) -> None:
        """Lets the target remove what is left of jobs that are over."""
        target, lease, now = self._tools.target, self._lease, time.monotonic()
        kept, again_at = self._swept
        if lease is None or not isinstance(target, Keeper) or (kept <= jobs and now < again_at):
            return
        self._swept = jobs, now + _SWEEP_SECONDS
        try:
            target.collect(jobs, lease.token)
        except EmbermeshError as error:
            self._tools.metrics.errors.inc()
            log.warning("what ended jobs left is not removed yet: %s", error)

    def _note(self, job: str, error: Exception) -> None:
        self._tools.metrics.errors.inc()
        text = f"{type(error).__name__}: {error}"
        if self._trouble.get(job) != text:
            log.warning("job %s: %s", job, text)
        self._trouble[job] = text

    def _redis_is_away(self) -> bool:
        try:
            self._tools.store.ping()
        except Unavailable:
            return True
        return False

    def _look(self, record: JobRecord) -> bool:
        tools, lease = self._tools, self._lease
        if lease is None:
            return False
        began = time.time_ns()
        seen = self._see(record)
        wished, said = self._autoscaler.consider(record, seen.members, tools.clock())
        step = reconciler.step(wished, seen, tools.clock(), tools.limits)
        changed, taken = step.record != record, (*said, *step.actions)
        if not changed and not taken:  # as nearly always: a look that leaves no trace
            return False
        about = {
            "embermesh.job": record.id,
            "embermesh.state": str(step.record.state),
            "embermesh.actions": [action.kind for action in taken],
        }
        # A user's :scale and what is done for it are one.
        request, trace = (record.scale_request, record.scale_trace) if record.scaling else ("", {})
        working = tools.traces.span("reconcile", about, since=began, carried=trace or None)
        with trail.following(request_id=request), working:
            self._carry_out(record, seen, step.record, taken, lease)
        return changed

    def _carry_out(
        self,
        record: JobRecord,
        seen: Seen,
        becomes: JobRecord,
        taken: Sequence[Action],
        lease: Lease,
    ) -> None:
        tools = self._tools
        stored = tools.store.save(becomes, lease) if becomes != record else record
        if stored.generation == record.generation and stored.incarnations != record.incarnations:
            tools.metrics.reassignments.inc()
        elif stored.restarts > record.restarts:
            tools.metrics.restarts.inc()
        if taken and not tools.store.renew(lease, self._lease_seconds):
            raise Conflict(f"job {record.id}: this gateway lost the lead")
        for action in taken:
            self._act(stored, seen, action, lease)
            tools.metrics.actions.labels(action.kind).inc()
        if stored.state.at_rest:
            tools.checkpoints.forget(record.id)

    def _see(self, record: JobRecord) -> Seen:
        tools, job, generation = self._tools, record.id, record.generation
        # Processes first: one that ended left its last word in its lease before.
        processes = self._observe(job, generation) if generation else []
        members = tools.registry.members(job, generation) if generation else []
        now = time.monotonic()
        silent = self._watch.update(job, generation, members, now, record.incarnations)
        try:
            run: Run | None = tools.registry.run(job)
        except NotFound:
            run = None
        return Seen(
            run=run,
            processes=tuple(processes),
            members=tuple(members),
            silent=silent,
            newest=tools.registry.latest_checkpoint(job),
            call=tools.checkpoints.call_of(job, generation),
            trouble=self._trouble.get(job, ""),
            waits=self._waits.get(job, ""),
        )

    def _act(self, record: JobRecord, seen: Seen, action: Action, lease: Lease) -> None:
        tools = self._tools
        match action:
            case actions.Emit(event, message):
                log.info("job %s: %s: %s", record.id, event, message)
                tools.registry.emit(record.id, event, message)
            case actions.PublishRun():
                tools.registry.publish_run(compiling.make_run(record, record.job_spec))
            case actions.RetireRun():
                if seen.run is not None:
                    tools.registry.publish_run(dataclasses.replace(seen.run, active=False))
            case actions.Start():
                spec = record.job_spec
                run = compiling.make_run(record, spec)
                tools.target.start(compiling.processes(run, spec, tools.around), lease.token)
            case actions.Stop(kill):
                tools.target.stop(record.id, record.generation, kill=kill, fence=lease.token)
            case actions.KeepLogs(places):
                tools.kept.keep(tools.target, record.id, record.generation, places)
            case actions.TakeCheckpoint(purpose):
                tools.checkpoints.begin(record.id, record.generation, purpose)

    def _loop(self) -> None:
        pause = self._tick
        while not self._stop.is_set():
            self._wake.clear()
            try:
                pause = _SOON if self.tick() else self._tick
            except Unavailable as error:
                self._watch.reset()
                log.warning("%s; trying again in %.1f s", error, pause)
                pause = min(_MAX_BACKOFF, 2 * max(pause, self._tick))
            except Exception:
                log.exception("unexpected failure of the reconciler")
                pause = _MAX_BACKOFF
            self._wake.wait(pause)
