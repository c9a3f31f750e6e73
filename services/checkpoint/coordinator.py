"""Takes one checkpoint: barrier → begin → resume → write → manifest → announcement → retention.

The trainers stand still while every parameter server fixes the instant, which takes milliseconds,
and go on while the files are written. Files are written after every trainer has confirmed that it
stood still, and the manifest last of all, so what it names is one instant. Whatever fails on the
way, the trainers go on, the folder is removed and older checkpoints stay as they are. Rows never
pass through here.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from services.api import manifest as manifests
from services.api.manifest import Manifest, PositionEntry
from services.api.spec import CheckpointSpec, validate
from services.checkpoint.catalog import Catalog, summary
from services.checkpoint.config import CheckpointServiceConfig
from services.checkpoint.fleet import Fleet, find_members
from services.checkpoint.metrics import CheckpointMetrics
from services.kit import tracing
from services.kit.discovery import Checkpoint, Registry, Run
from services.kit.errors import (
    Conflict,
    DeadlineExceeded,
    EmbermeshError,
    InvalidInput,
    Unavailable,
)
from services.kit.storage import Storage
from services.kit.tls import Tls
from services.kit.tracing import Attributes, Tracing
from services.wire import trainer_pb2

log = logging.getLogger(__name__)


class Coordinator:
    """Checkpoints of all jobs; one at a time for each job, any number of jobs at once. Thread-safe.

    `clock` gives Unix seconds; `stop` ends a checkpoint in the making like any other failure.
    """

    def __init__(
        self,
        registry: Registry,
        storage: Storage,
        metrics: CheckpointMetrics,
        settings: CheckpointServiceConfig,
        stop: threading.Event,
        tls: Tls | None = None,
        clock: Callable[[], float] = time.time,
        traces: Tracing = tracing.OFF,
    ) -> None:
        self._registry, self._storage, self._metrics = registry, storage, metrics
        self._settings, self._stop, self._clock = settings, stop, clock
        self._tls, self._traces = tls, traces
        self._guard = threading.Lock()
        self._turns: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )

    def take(self, job: str, generation: int, wait_seconds: float) -> Checkpoint:
        """Takes a checkpoint of the job now; first waits for one in the making.

        Raises Conflict when the job is at another generation, is over, asks for no checkpoints or
        lacks a process (NotRunning); DeadlineExceeded when its turn doesn't come in `wait_seconds`.
        Failures after that point are also counted, and told in the job's events.
        """
        with self._turn(job, wait_seconds):
            run = self._require_current(job, generation)
            spec = validate(run.spec)
            if spec.checkpoint is None:
                raise Conflict(
                    f"job {job}: its spec has no checkpoint section, nothing says where to"
                )
            members = find_members(self._registry, run, spec.resources)
            catalog = Catalog(self._storage, spec.checkpoint.to, job)
            about: Attributes = {"embermesh.job": job, "embermesh.generation": generation}
            with (
                self._traces.span("checkpoint", about),
                Fleet(run, members, self._stop, self._tls, self._traces) as fleet,
            ):
                return self._attempt(run, spec.checkpoint, catalog, fleet)

    def complete(self, job: str, to: str) -> list[Checkpoint]:
        """The job's complete checkpoints below `to` (default: where its run says), oldest first."""
        if not to:
            section = validate(self._registry.run(job).spec).checkpoint
            if section is None:
                return []
            to = section.to
        return Catalog(self._storage, to, job).complete()

    def _attempt(
        self, run: Run, section: CheckpointSpec, catalog: Catalog, fleet: Fleet
    ) -> Checkpoint:
        checkpoint_id, start = catalog.next_id(), time.monotonic()
        try:
            manifest = self._capture(
                run, catalog, checkpoint_id, catalog.base_for_delta(section.deltas), fleet
            )
            self._require_current(run.job, run.generation)  # else it is of an attempt that is over
            with self._traces.span("manifest"):
                uri = manifests.write(self._storage, catalog.folder(checkpoint_id), manifest)
        except Exception as error:
            self._give_up(run.job, catalog, checkpoint_id, error)
            raise
        checkpoint, seconds = summary(manifest, uri), time.monotonic() - start
        self._metrics.succeeded(run.job, seconds, checkpoint.bytes, checkpoint.created)
        self._registry.publish_checkpoint(run.job, checkpoint)
        self._tell(
            run.job,
            "checkpoint",
            f"checkpoint {checkpoint_id}: {checkpoint.samples} samples, {checkpoint.rows} rows, "
            f"{checkpoint.bytes} bytes in {seconds:.2f} s",
        )
        self._retain(run, section.keep, catalog)
        return checkpoint

    def _capture(
        self, run: Run, catalog: Catalog, checkpoint_id: str, base: str, fleet: Fleet
    ) -> Manifest:
        """Files and positions of one instant. The trainers go on, whether it returns or raises.

        With `base`, the files hold the changes since that checkpoint if all shards know them.
        """
        settings, folder = self._settings, catalog.folder(checkpoint_id)
        try:
            stands, created, base = self._begin(run, checkpoint_id, folder, base, fleet)
            with self._traces.span("write"):
                sparse, dense = fleet.write_snapshots(
                    folder, int(checkpoint_id), settings.write_seconds
                )
        except BaseException:
            fleet.drop_snapshots(folder, int(checkpoint_id), settings.resume_seconds)
            raise
        self._require_visible(catalog, checkpoint_id, [f.name for f in (*sparse, *dense)])
        return Manifest(
            job=run.job,
            id=checkpoint_id,
            generation=run.generation,
            step=max(stand.step for stand in stands),
            samples=sum(stand.samples for stand in stands),
            created=created,
            partitions=len(run.owners),
            spec=run.spec,
            sparse=sparse,
            dense=dense,
            positions=_merged(stands),
            base=base,
        )

    def _begin(
        self, run: Run, checkpoint_id: str, folder: str, base: str, fleet: Fleet
    ) -> tuple[list[trainer_pb2.PauseReply], float, str]:
        """Fixes the instant on every server while all trainers stand still: where, when, and the
        base of what will be written.
        """
        settings = self._settings
        token = f"{run.job}/{run.generation}/{checkpoint_id}/{uuid.uuid4().hex[:8]}"
        still_since: float | None = None
        try:
            with self._traces.span("pause"):
                stands = fleet.pause(token, settings.hold_seconds, settings.pause_seconds)
            still_since, created = time.monotonic(), self._clock()
            positions = _merged(stands)
            with self._traces.span("begin"):
                base = self._begin_snapshots(checkpoint_id, folder, base, fleet, positions)
        except BaseException:
            self._release(fleet, token)
            raise
        else:
            with self._traces.span("resume"):
                fleet.resume(token, settings.resume_seconds)
        finally:
            if still_since is not None:
                self._metrics.pause_seconds.observe(time.monotonic() - still_since)
        return stands, created, base

    def _begin_snapshots(
        self,
        checkpoint_id: str,
        folder: str,
        base: str,
        fleet: Fleet,
        positions: Sequence[PositionEntry],
    ) -> str:
        number, seconds = int(checkpoint_id), self._settings.hold_seconds
        if base:
            try:
                applied = fleet.begin_snapshots(folder, number, seconds, since=int(base))
            except Conflict as error:  # e.g. a shard that has been restarted since
                log.info("checkpoint %s will be whole: %s", checkpoint_id, error)
            else:
                _require_agreement(positions, applied)
                return base
        _require_agreement(positions, fleet.begin_snapshots(folder, number, seconds))
        return ""

    def _require_current(self, job: str, generation: int) -> Run:
        run = self._registry.run(job)
        if run.generation != generation:
            raise Conflict(f"job {job} is at generation {run.generation}, not {generation}")
        if not run.active:
            raise Conflict(f"job {job} is over")
        return run

    def _require_visible(self, catalog: Catalog, checkpoint_id: str, names: list[str]) -> None:
        """A folder that each process has for itself would make a manifest nobody can load."""
        missing = catalog.missing(checkpoint_id, names)
        if missing:
            raise InvalidInput(
                f"checkpoint.to: the parameter servers wrote {', '.join(missing)}, but "
                f"{catalog.folder(checkpoint_id)} does not show it here; it must be a place that "
                "all processes share (file:// paths also start at each one's working directory)"
            )

    def _release(self, fleet: Fleet, token: str) -> None:
        """Lets the trainers go on after a failure, which is what gets reported."""
        try:
            fleet.resume(token, self._settings.resume_seconds)
        except EmbermeshError as error:
            log.info("after a failed checkpoint: %s", error)

    def _give_up(self, job: str, catalog: Catalog, checkpoint_id: str, error: Exception) -> None:
        log.warning("checkpoint %s of job %s failed: %s", checkpoint_id, job, error)
        self._metrics.failed(job)
        try:
            catalog.discard(checkpoint_id)
        except EmbermeshError as trouble:  # retention removes it once a newer one is complete
            log.warning("%s", trouble)
        self._tell(job, "checkpoint-failed", f"checkpoint {checkpoint_id} failed: {error}")

    def _retain(self, run: Run, keep: int, catalog: Catalog) -> None:
        try:
            with self._traces.span("retain"):
                removed = catalog.retain(keep, in_use=run.restore)
        except EmbermeshError as error:  # the new checkpoint is good all the same
            log.warning("old checkpoints of job %s stay: %s", run.job, error)
        else:
            log.debug("job %s: removed checkpoints %s", run.job, removed)

    def _tell(self, job: str, kind: str, message: str) -> None:
        try:
            self._registry.emit(job, kind, message)
        except Unavailable as error:
            log.warning("job %s: %s (event lost: %s)", job, message, error)

    @contextmanager
    def _turn(self, job: str, wait_seconds: float) -> Iterator[None]:
        with self._guard:
            # Lives as long as somebody holds or awaits it, so that past jobs leave nothing behind.
            turn = self._turns.setdefault(job, threading.Lock())
        if not turn.acquire(timeout=max(0.0, wait_seconds)):
            raise DeadlineExceeded(
                f"job {job}: another checkpoint was still in the making after {wait_seconds:.1f} s"
            )
        try:
            yield
        finally:
            turn.release()


def _require_agreement(
    positions: Sequence[PositionEntry],
    applied: Sequence[tuple[str, Sequence[trainer_pb2.Position]]],
) -> None:
    """Rows that a server holds and the positions leave out would be trained twice after a restore.

    Raises Conflict that names server and partition.
    """
    places = {entry.partition: (entry.major, entry.minor) for entry in positions}
    for server, theirs in applied:
        for p in theirs:
            if places.get(p.partition) != (p.major, p.minor):
                raise Conflict(
                    f"{server} has applied {p.partition} up to {(p.major, p.minor)}, "
                    f"its trainer stands at {places.get(p.partition)}: not one instant"
                )


def _merged(stands: Sequence[trainer_pb2.PauseReply]) -> tuple[PositionEntry, ...]:
    """Positions of all trainers by source partition. Conflict when two claim the same one."""
    owner: dict[str, int] = {}
    entries = []
    for rank, stand in enumerate(stands):
        for p in stand.positions:
            if p.partition in owner:
                raise Conflict(
                    f"trainers {owner[p.partition]} and {rank} both read partition {p.partition!r}"
                )
            owner[p.partition] = rank
            entries.append(
                PositionEntry(partition=p.partition, major=p.major, minor=p.minor, end=p.end)
            )
    return tuple(sorted(entries, key=lambda entry: entry.partition))
