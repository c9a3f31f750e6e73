"""Members' statuses added up."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.progress import progress_of, result_of
from services.api.views import Progress
from services.kit.discovery import Member, Role


def trainer(rank: int, **status: Any) -> Member:
    return Member("a", 1, Role.TRAINER, rank, status=status)


def shard(rank: int, **status: Any) -> Member:
    return Member("a", 1, Role.SPARSE_PS, rank, status=status)


def test_nobody_reports_nothing() -> None:
    assert progress_of([]) == Progress()
    assert progress_of([trainer(0), shard(0)]) == Progress()


def test_counts_are_summed_and_qualities_weighted_by_throughput() -> None:
    first = trainer(0, samples=10, samples_per_second=1.0, step=3, loss=0.2, auc=0.6, bad_rows=1)
    second = trainer(1, samples=20, samples_per_second=3.0, step=4, loss=0.6, auc=0.8, lag=5)
    progress = progress_of([first, second, shard(0, rows=7), shard(1, rows=8)])
    assert (progress.samples, progress.samples_per_second, progress.step) == (30, 4.0, 4)
    assert (progress.rows, progress.bad_rows, progress.lag) == (15, 1, 5)
    assert progress.loss == pytest.approx(0.5)
    assert progress.auc == pytest.approx(0.75)


def test_trainers_that_stand_still_count_alike() -> None:
    still = [trainer(0, auc=0.6, samples_per_second=0.0), trainer(1, auc=0.8)]
    assert progress_of(still).auc == pytest.approx(0.7)


def test_the_total_is_the_jobs_not_a_sum() -> None:
    members = [trainer(0, total_samples=100), trainer(1, total_samples=100)]
    assert progress_of(members).total_samples == 100


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "many"])
def test_what_is_no_number_counts_for_nothing(odd: Any) -> None:
    progress = progress_of([trainer(0, samples=odd, auc=odd, samples_per_second=1.0)])
    assert (progress.samples, progress.auc) == (0, None)


def test_the_result_is_trainer_zeros() -> None:
    assert result_of([trainer(1, result={"auc": 0.9}), trainer(0)]) is None
    found = result_of([trainer(0, result={"auc": 0.8, "samples": 5})])
    assert found is not None and (found.auc, found.samples, found.logloss) == (0.8, 5, None)
    assert result_of([trainer(0, result={"auc": "high"})]) is None
