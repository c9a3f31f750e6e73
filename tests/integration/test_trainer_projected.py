"""Jobs whose first layer is computed by distinct rows, against jobs that gather them."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest

from services.api.spec import JobSpec, validate
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.trainer_rig import Trainer, exported, train_together
from trainer_service import holdout
from trainer_service.pipeline import ReadAhead
from trainer_service.sources import open_holdout, open_training

ROWS, BATCH, FEATURES = 20_000, 500, 8


def spec(project: str) -> JobSpec:
    return validate(
        {
            "name": "projected",
            "model": {"name": "dnn", "hidden": [64, 16]},
            "data": {"source": f"synthetic://criteo?rows={ROWS}&holdout=10000"},
            "features": {"dense": "I1..I13", "sparse": {f"C1..C{FEATURES}": {"dim": 16}}},
            "training": {"batch_size": BATCH, "seed": 5, "project": project},
        }
    )


@dataclass
class Outcome:
    auc: float
    steps: float
    projected: float
    dense: np.ndarray
    tables: list[dict[int, np.ndarray]]


def trained(project: str, *, shards: int = 2, trainers: int = 1, sync: bool = False) -> Outcome:
    job = spec(project)
    with PsCluster(sparse=shards, trainers=trainers, sync=sync) as cluster:
        fleet = [
            Trainer(cluster, job, open_training(job, rank=rank, trainers=trainers), rank)
            for rank in range(trainers)
        ]
        train_together(fleet)
        lead, unseen = fleet[0], open_holdout(job)
        assert unseen is not None
        parameters = cluster.dense_values()
        with closing(ReadAhead(unseen, lead.planner, lead.metrics)) as ahead:
            stop = threading.Event()
            result = holdout.evaluate(ahead, lead.servers, lead.step, parameters, stop)
        assert result.auc is not None
        steps, projected = (
            sum(t.registry.get_sample_value(f"embermesh_trainer_{name}_total") or 0 for t in fleet)
            for name in ("steps", "projected_steps")
        )
        return Outcome(result.auc, steps, projected, parameters, exported(cluster, FEATURES))


@pytest.fixture(scope="module")
def projected() -> Outcome:
    return trained("auto")


def test_it_costs_no_auc(projected: Outcome) -> None:
    gathered = trained("off")
    assert (projected.steps, projected.projected) == (gathered.steps, gathered.steps)
    assert gathered.projected == 0
    assert gathered.steps >= ROWS / BATCH
    assert projected.auc > 0.55, "nothing was learned"
    assert projected.auc == pytest.approx(gathered.auc, abs=0.0005)
    np.testing.assert_allclose(projected.dense, gathered.dense, rtol=0, atol=1e-5)
    for got, want in zip(projected.tables, gathered.tables, strict=True):
        assert got.keys() == want.keys()
        for key, row in want.items():
            np.testing.assert_allclose(got[key], row, rtol=0, atol=1e-5)


def test_a_second_run_has_the_same_bits(projected: Outcome) -> None:
    again = trained("auto")
    assert again.auc == projected.auc
    np.testing.assert_array_equal(again.dense, projected.dense)


def test_sync_has_the_same_bits_for_any_number_of_shards() -> None:
    one, three = (trained("auto", shards=shards, trainers=2, sync=True) for shards in (1, 3))
    assert one.projected == three.projected > ROWS / BATCH / 2
    np.testing.assert_array_equal(three.dense, one.dense)
    for got, want in zip(three.tables, one.tables, strict=True):
        assert got.keys() == want.keys()
        for key, row in want.items():
            np.testing.assert_array_equal(got[key], row)
