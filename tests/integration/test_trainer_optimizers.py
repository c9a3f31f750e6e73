"""Every optimizer in every mode: two trainers on real servers learn, and nothing diverges.

The formulas are tested elsewhere (test_native_optimizers, test_ps_dense_modes, test_ps_kstep); here
is whether each of them trains where gradients come late, together, or merged.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ps_service import _native
from ps_service.server.assignment import Pace
from services.api.optimizers import KSTEP_OPTIMIZERS
from services.api.spec import JobSpec, validate
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.trainer_rig import (
    FEATURES,
    Trainer,
    exported,
    job,
    rows,
    script,
    train_together,
)
from trainer_service.step import TrainStep

BATCH, STEPS, TRAINERS = 32, 30, 2
MODES: dict[str, dict[str, Any]] = {
    "sync": {"sync": True},
    "hybrid": {"pace": Pace.TOGETHER},
    "async": {"pace": Pace.ON_ARRIVAL},
    "kstep": {"pace": Pace.MERGED},
}
# Rates at which thirty steps show something; those of gradient descent are of mean gradients, which
# a row shares with the whole batch.
SPARSE = {
    "sgd": 4.0,
    "momentum": 0.5,
    "adagrad": 0.3,
    "rowwise_adagrad": 0.3,
    "adam": 0.03,
    "adamw": 0.03,
    "amsgrad": 0.03,
    "rmsprop": 0.03,
    "ftrl": 0.3,
    "group_ftrl": 0.3,
}
DENSE = {"sgd": 0.1, "momentum": 0.02, "adagrad": 0.05, "adam": 0.01, "adamw": 0.01}
FALL = 0.85  # the last losses' share of the first ones'


class LossStep(TrainStep):
    """Remembers the loss of every step."""

    def __init__(self, network: Any, **sizes: Any) -> None:
        super().__init__(network, **sizes)
        self.losses: list[float] = []

    def run(self, dense: Any, labels: Any, parameters: Any, *, step: int) -> Any:
        result = super().run(dense, labels, parameters, step=step)
        self.losses.append(result.loss)
        return result


@pytest.fixture(scope="module")
def compiled() -> dict[int, LossStep]:
    """By rank; compiled once for all tests."""
    return {}


def spec_of(sparse: str) -> JobSpec:
    document = job(BATCH).model_dump(mode="json")
    document["optimizers"] = {"sparse": {sparse: {"lr": SPARSE[sparse]}}}
    return validate(document)


def pairs() -> list[Any]:
    """(mode, sparse, dense): every sparse and every dense optimizer in each mode that has it."""
    found = []
    for mode in MODES:
        dense = KSTEP_OPTIMIZERS if mode == "kstep" else tuple(DENSE)
        for at, sparse in enumerate(SPARSE):
            found.append((mode, sparse, dense[at % len(dense)]))
    return [pytest.param(*pair, id="-".join(pair)) for pair in found]


def test_no_optimizer_is_left_out() -> None:
    assert set(SPARSE) == set(_native.OPTIMIZERS)
    tried = {(p.values[0], p.values[2]) for p in pairs()}
    assert {dense for mode, dense in tried if mode != "kstep"} == set(DENSE)
    assert len(tried) == 3 * len(DENSE) + len(KSTEP_OPTIMIZERS)


@pytest.mark.parametrize(("mode", "sparse", "dense"), pairs())
def test_the_loss_falls(mode: str, sparse: str, dense: str, compiled: dict[int, LossStep]) -> None:
    batches = [rows(BATCH, seed=s) for s in range(TRAINERS * STEPS)]
    optimizer = dense, {**_native.OPTIMIZERS[dense], "lr": DENSE[dense]}
    with PsCluster(sparse=2, dense=2, trainers=TRAINERS, **MODES[mode]) as cluster:
        trainers = [
            Trainer(
                cluster,
                spec_of(sparse),
                script(batches[rank::TRAINERS], rank),
                rank,
                LossStep,
                optimizer=optimizer,
                compiled=compiled.get(rank),
            )
            for rank in range(TRAINERS)
        ]
        for rank, trainer in enumerate(trainers):
            assert isinstance(trainer.step, LossStep)
            compiled[rank] = trainer.step
            trainer.step.losses.clear()
        train_together(trainers)
        tables, dense_values = exported(cluster, FEATURES), cluster.dense_values()
    losses = np.array([compiled[rank].losses for rank in range(TRAINERS)])
    assert losses.shape == (TRAINERS, STEPS)
    assert losses[:, -8:].mean() < FALL * losses[:, :4].mean()
    assert losses.max() < 2 * losses[:, 0].max(), "it went astray on the way"
    assert np.isfinite(dense_values).all()
    for table in tables:
        assert all(np.isfinite(row).all() for row in table.values())
