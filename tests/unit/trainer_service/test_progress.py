"""What a trainer says of waiting, staleness and whether it has steps to take."""

from __future__ import annotations

import math

import numpy as np
import prometheus_client
import pytest

from trainer_service.metrics import TrainerMetrics
from trainer_service.progress import Progress
from trainer_service.step import StepResult


class Trainer:
    """Takes steps of ten samples at a time of the test's own."""

    def __init__(self, staleness_bound: int = 2) -> None:
        self.now, self.steps = 0.0, 0
        self.registry = prometheus_client.CollectorRegistry()
        self.progress = Progress(
            TrainerMetrics(self.registry),
            staleness_bound=staleness_bound,
            clock=lambda: self.now,
        )

    def step(self, *, wait: float, work: float, staleness: int = 0, predicted: float = 0.5) -> None:
        with self.progress.waiting():
            self.now += wait
        self.now += work
        self.steps += 1
        n = np.zeros(10, np.float32)
        result = StepResult(0.0, n + np.float32(predicted), (np.zeros((10, 1), np.float32),), n)
        self.progress.stepped(self.steps, result, n, staleness=staleness)

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"embermesh_trainer_{name}")


def test_the_wait_share_is_that_of_the_recent_steps() -> None:
    trainer = Trainer()
    assert trainer.progress.status()["wait_share"] == 0.0
    for _ in range(8):
        trainer.step(wait=3.0, work=1.0)
    assert trainer.progress.status()["wait_share"] == pytest.approx(0.75)
    for _ in range(40):
        trainer.step(wait=0.0, work=1.0)
    assert trainer.progress.status()["wait_share"] == 0.0, "the waits are forgotten"
    trainer.progress.finished()
    assert trainer.progress.status()["wait_share"] == pytest.approx(24 / 72), "of the whole run"


def test_a_wait_that_ends_in_the_end_of_data_counts() -> None:
    trainer = Trainer()
    trainer.step(wait=0.0, work=1.0)
    with pytest.raises(KeyError), trainer.progress.waiting():
        trainer.now += 1.0
        raise KeyError
    trainer.progress.finished()
    assert trainer.progress.status()["wait_share"] == pytest.approx(0.5)


def test_batches_over_the_staleness_bound_are_counted() -> None:
    trainer = Trainer(staleness_bound=2)
    for staleness in (0, 2, 3, 7):
        trainer.step(wait=0.0, work=1.0, staleness=staleness)
    assert trainer.metric("stale_batches_total") == 2.0
    assert trainer.metric("staleness_bound_steps") == 2.0


def test_stepping_ends_with_the_last_step() -> None:
    trainer = Trainer()
    assert trainer.metric("stepping") == 1.0
    trainer.step(wait=0.0, work=1.0)
    trainer.progress.finished()
    assert trainer.metric("stepping") == 0.0


def test_a_prediction_that_is_no_number_shows_in_the_loss() -> None:
    """EmbermeshLossNotANumber looks at this."""
    trainer = Trainer()
    trainer.step(wait=0.0, work=1.0)
    loss = trainer.metric("loss")
    assert loss is not None and math.isfinite(loss)
    trainer.step(wait=0.0, work=1.0, predicted=math.nan)
    loss = trainer.metric("loss")
    assert loss is not None and math.isnan(loss)
    assert trainer.metric("steps_total") == 2.0
