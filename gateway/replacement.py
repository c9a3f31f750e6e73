"""Which dead trainers are replaced inside their generation, instead of rolling the job back. Pure.

A replacement is the next *incarnation* of its rank. Its number is the assignment epoch of the
source partitions: one higher than any before it, so that servers can tell the living from the dead
(docs/exactly-once.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence

from gateway.failures import Failure
from gateway.progress import progress_of
from gateway.record import JobRecord
from gateway.targets import Process
from services.api.spec import JobSpec
from services.api.views import Progress
from services.kit.discovery import Member, Phase, Role, incarnation_of

_AT_WORK = (Phase.READY, Phase.DONE)
# The others go back to the checkpoint: sync would not be bit-identical, and in kstep the dead
# trainer's steps since the last merge are in the rows but not in the dense parameters.
MODES = frozenset({"hybrid", "async"})


def possible(record: JobRecord, failures: Sequence[Failure], spec: JobSpec) -> bool:
    """Whether only trainers failed, no shard with them, none for a reason that lies in the input,
    the mode can go on without them for a while, and `max_restarts` allows for all.
    """
    return (
        spec.training.mode in MODES
        and not spec.resources.embedded
        and all(f.trainer is not None and not f.permanent for f in failures)
        and record.restarts + len(_ranks(failures)) <= spec.max_restarts
    )


def replace(
    record: JobRecord, failures: Sequence[Failure], members: Sequence[Member], now: float
) -> JobRecord:
    """The record with the next incarnation of every trainer that failed, and the progress until
    then, as `members` tell it.
    """
    incarnations = list(record.incarnations) or [0] * record.job_spec.resources.trainers
    ranks = _ranks(failures)
    for rank in ranks:
        incarnations[rank] = max(incarnations) + 1
    return dataclasses.replace(
        record,
        incarnations=tuple(incarnations),
        restarts=record.restarts + len(ranks),
        replaced_at=now,
        progress=progress_since(record, members),
        updated=now,
    )


def progress_since(record: JobRecord, members: Sequence[Member]) -> Progress:
    """The progress of a job that runs. A trainer that is being replaced can't tell how many rows it
    has trained; these are not lost, so the count never falls.
    """
    live = progress_of(members)
    if not record.incarnations:
        return live
    return live.model_copy(update={"samples": max(live.samples, record.progress.samples)})


def told(replaced: JobRecord, failures: Sequence[Failure], spec: JobSpec) -> str:
    """What the job's events say."""
    news = "; ".join(
        f"trainer {rank} becomes incarnation {replaced.incarnations[rank]}"
        for rank in _ranks(failures)
    )
    count = f"restart {replaced.restarts} of {spec.max_restarts}"
    return f"{news} ({count}): {failures[0].text}"


def vanished(
    record: JobRecord, processes: Iterable[Process], expected: Iterable[tuple[Role, int]]
) -> list[Failure]:
    """Processes of a running job that the target knows no longer. A replacement that is not there
    has not been started yet.
    """
    there = {(p.role, p.rank) for p in processes}
    return [
        Failure(f"{role} {rank} has vanished", trainer=rank if role == Role.TRAINER else None)
        for role, rank in expected
        if (role, rank) not in there and not incarnation_of(record.incarnations, role, rank)
    ]


def late(
    record: JobRecord,
    members: Iterable[Member],
    silent: Container[tuple[Role, int]],
    now: float,
    patience: float,
) -> list[Failure]:
    """Replacements that are not ready `patience` seconds after the last one was decided; those that
    were seen and are `silent` now have a patience of their own.
    """
    if now - record.replaced_at <= patience:
        return []
    ready = {m.rank for m in members if m.role == Role.TRAINER and m.phase in _AT_WORK}
    return [
        Failure(f"trainer {rank}: replacement not ready after {patience:.0f} s", trainer=rank)
        for rank, incarnation in enumerate(record.incarnations)
        if incarnation and rank not in ready and (Role.TRAINER, rank) not in silent
    ]


def _ranks(failures: Iterable[Failure]) -> list[int]:
    return sorted({f.trainer for f in failures if f.trainer is not None})
