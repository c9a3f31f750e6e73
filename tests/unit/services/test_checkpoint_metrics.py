"""The checkpoint service's series of a job: when they begin, what they say, when they end."""

from __future__ import annotations

import prometheus_client
import pytest

from services.checkpoint.metrics import CheckpointMetrics


class Board:
    """The metrics at a time of the test's own."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.registry = prometheus_client.CollectorRegistry()
        self.metrics = CheckpointMetrics(self.registry, clock=lambda: self.now)

    def get(self, name: str, job: str = "a") -> float | None:
        return self.registry.get_sample_value(f"embermesh_checkpoint_{name}", {"job": job})


@pytest.fixture
def board() -> Board:
    return Board()


def test_the_first_checkpoint_is_due_an_interval_after_the_job_was_seen(board: Board) -> None:
    board.metrics.scheduled({"a": 60.0})
    board.now = 1_030.0
    board.metrics.scheduled({"a": 60.0, "b": 10.0})
    assert board.get("due_timestamp_seconds") == 1_060.0
    assert board.get("due_timestamp_seconds", "b") == 1_040.0


def test_the_next_one_is_due_an_interval_after_the_newest(board: Board) -> None:
    board.metrics.scheduled({"a": 60.0})
    board.metrics.failed("a")
    assert board.get("due_timestamp_seconds") == 1_060.0, "a failure puts nothing off"
    board.metrics.succeeded("a", seconds=2.0, size=10, created=1_050.0)
    assert board.get("due_timestamp_seconds") == 1_110.0
    assert board.get("last_success_timestamp_seconds") == 1_050.0


def test_a_job_without_a_schedule_is_never_overdue(board: Board) -> None:
    board.metrics.succeeded("a", seconds=2.0, size=10, created=1_050.0)
    assert board.get("due_timestamp_seconds") is None


def test_failures_begin_at_zero(board: Board) -> None:
    board.metrics.succeeded("a", seconds=2.0, size=10, created=1_050.0)
    assert board.get("failures_total") == 0.0
    board.metrics.failed("a")
    assert board.get("failures_total") == 1.0


def test_series_end_with_the_job_and_begin_anew(board: Board) -> None:
    board.metrics.scheduled({"a": 60.0})
    board.metrics.succeeded("a", seconds=2.0, size=10, created=1_050.0)
    board.metrics.scheduled({})
    board.metrics.keep_only(set())
    for name in ("due_timestamp_seconds", "last_success_timestamp_seconds", "failures_total"):
        assert board.get(name) is None
    board.now = 5_000.0
    board.metrics.scheduled({"a": 60.0})
    assert board.get("due_timestamp_seconds") == 5_060.0
