"""A job's members, added up: progress while it runs, and the evaluation's result. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pydantic

from services.api.views import Progress, Result
from services.kit.discovery import Member, Role


def progress_of(members: Sequence[Member]) -> Progress:
    """Counts summed over trainers; loss and AUC averaged by throughput; rows summed over sparse-PS
    shards.
    """
    trainers = [m.status for m in members if m.role == Role.TRAINER]
    shards = [m.status for m in members if m.role == Role.SPARSE_PS]
    totals = numbers(trainers, "total_samples")
    lags = numbers(trainers, "lag")
    return Progress(
        samples=int(sum(numbers(trainers, "samples"))),
        total_samples=int(max(totals)) if totals else None,
        samples_per_second=sum(numbers(trainers, "samples_per_second")),
        step=int(max(numbers(trainers, "step"), default=0)),
        loss=_average(trainers, "loss"),
        auc=_average(trainers, "auc"),
        rows=int(sum(numbers(shards, "rows"))),
        bad_rows=int(sum(numbers(trainers, "bad_rows"))),
        lag=int(sum(lags)) if lags else None,
    )


def result_of(members: Sequence[Member]) -> Result | None:
    """The evaluation that trainer 0 reports, if it took one."""
    for member in members:
        if member.role == Role.TRAINER and member.rank == 0 and member.status.get("result"):
            try:
                return Result.model_validate(member.status["result"])
            except pydantic.ValidationError:
                return None
    return None


def _average(statuses: Sequence[dict[str, Any]], key: str) -> float | None:
    pairs = []
    for status in statuses:
        value, weight = _number(status.get(key)), _number(status.get("samples_per_second"))
        if value is not None:
            pairs.append((value, weight or 0.0))
    if not pairs:
        return None
    total = sum(weight for _, weight in pairs)
    if total <= 0:
        return sum(value for value, _ in pairs) / len(pairs)
    return sum(value * weight for value, weight in pairs) / total


def numbers(statuses: Iterable[dict[str, Any]], key: str) -> list[float]:
    """What the statuses say under `key`, where that is a finite number."""
    found = (_number(status.get(key)) for status in statuses)
    return [n for n in found if n is not None]


def _number(value: Any) -> float | None:
    """A finite number, or None: what a process reports is never trusted to be one."""
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None
