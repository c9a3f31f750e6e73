"""The trainer's loop against real parameter servers over gRPC, in one process."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from ps_service.server.assignment import Pace
from services.api.spec import validate
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.trainer_rig import (
    DIM,
    FEATURES,
    WAIT,
    Trainer,
    exported,
    job,
    rows,
    script,
    train_together,
)
from trainer_service import holdout
from trainer_service.pipeline import ReadAhead
from trainer_service.sources import open_training
from trainer_service.step import TrainStep

PACES = pytest.mark.parametrize("pace", Pace, ids=["hybrid", "async", "kstep"])


def test_sync_with_two_trainers_equals_one_with_the_joined_batch() -> None:
    """Rows and dense parameters within 1e-5, with unequal batches and a trainer that ends first."""
    size, steps = 16, 12
    shares = [[rows(size, seed=10 * t + r) for t in range(steps)] for r in range(2)]
    shares[1][3] = shares[1][3][:5]  # a short batch in the middle weighs less
    shares[1] = shares[1][:-2]
    with PsCluster(sparse=3, dense=2, trainers=2, sync=True) as cluster:
        spec = job(size)
        trainers = [
            Trainer(cluster, spec, script(share, r), rank=r) for r, share in enumerate(shares)
        ]
        train_together(trainers)
        dense, tables = cluster.dense_values(), exported(cluster, FEATURES)
    assert [t.step.traces for t in trainers] == [1, 1]
    joined = [a + (shares[1][t] if t < len(shares[1]) else []) for t, a in enumerate(shares[0])]
    with PsCluster(trainers=1) as cluster:
        alone = Trainer(cluster, job(2 * size), script(joined))
        assert alone.run()
        initial = alone.step.initial()
        np.testing.assert_allclose(dense, cluster.dense_values(), rtol=0, atol=1e-5)
        for got, want in zip(tables, exported(cluster, FEATURES), strict=True):
            assert got.keys() == want.keys()
            for key, row in want.items():
                np.testing.assert_allclose(got[key], row, rtol=0, atol=1e-5)
    assert np.abs(dense - initial).max() > 0.01, "nothing was trained"


@PACES
def test_every_mode_learns_what_the_labels_hide(pace: Pace) -> None:
    data = [rows(32, seed=s) for s in range(60)]
    with PsCluster(sparse=2, dense=1, trainers=2, pace=pace) as cluster:
        trainers = [Trainer(cluster, job(32), script(data[r::2] * 3, r), rank=r) for r in range(2)]
        train_together(trainers)
        before = [int(s.rows().sum()) for s in cluster.shards()]
        lead = trainers[0]
        unseen = rows(300, seed=999)
        unseen[0][2][0] = [123_456]  # a key that no row was made for
        source = script([unseen[a : a + 32] for a in range(0, 300, 32)])
        with closing(ReadAhead(source, lead.planner, lead.metrics)) as ahead:
            stop = threading.Event()
            result = holdout.evaluate(ahead, lead.servers, lead.step, lead.dense.pull(), stop)
        assert [int(s.rows().sum()) for s in cluster.shards()] == before
        assert lead.dense.trainers() == 0
    assert result.samples == 300
    assert result.auc is not None
    assert result.auc > 0.75
    assert lead.step.traces == 2


@PACES
def test_all_trainers_pause_after_the_same_step_and_go_on(pace: Pace) -> None:
    """In async each after a step of its own; in kstep after a merge."""
    data = [rows(8, seed=s) for s in range(150)]
    with PsCluster(trainers=2, pace=pace) as cluster, ThreadPoolExecutor(4) as pool:
        trainers = [Trainer(cluster, job(8), script(data, r), rank=r) for r in range(2)]
        stop = threading.Event()
        running = [pool.submit(t.run, stop) for t in trainers]
        for token in ("first", "second"):
            asked = [pool.submit(t.gate.pause, token, WAIT, WAIT) for t in trainers]
            stands = [a.result(WAIT) for a in asked]
            assert min(stand.step for stand in stands) > 0
            if pace is not Pace.ON_ARRIVAL:
                assert stands[0].step == stands[1].step
            for stand in stands:
                assert stand.positions[0].minor == stand.step
                assert stand.samples == 8 * stand.step
            frozen = cluster.rows(), cluster.dense_values()
            assert threading.Event().wait(0.05) is False
            assert cluster.rows() == frozen[0]
            np.testing.assert_array_equal(cluster.dense_values(), frozen[1])
            assert all(t.gate.resume(token) for t in trainers)
        assert all(r.result(WAIT) for r in running)
        # Both are done now: they stand still for good.
        assert {t.gate.pause("third", 1.0, 1.0).step for t in trainers} == {150}


@PACES
def test_a_finished_trainer_does_not_hold_up_the_pause_of_another(pace: Pace) -> None:
    with PsCluster(trainers=2, pace=pace) as cluster, ThreadPoolExecutor(3) as pool:
        long = Trainer(cluster, job(8), script([rows(8, s) for s in range(150)]), rank=0)
        short = Trainer(cluster, job(8), script([rows(8, seed=1)], 1), rank=1)
        running = pool.submit(long.run)
        assert pool.submit(short.run).result(WAIT)
        stand = long.gate.pause("t", WAIT, WAIT)
        assert short.gate.pause("t", WAIT, WAIT).step == 1
        assert stand.step < 150
        assert long.gate.resume("t")
        assert short.gate.resume("t")
        assert running.result(WAIT)


@pytest.mark.parametrize(
    ("sync", "pace"),
    [
        (False, Pace.TOGETHER),
        (True, Pace.TOGETHER),
        (False, Pace.ON_ARRIVAL),
        (False, Pace.MERGED),
    ],
    ids=["hybrid", "sync", "async", "kstep"],
)
def test_silence_of_one_trainer_lets_the_other_go_on(sync: bool, pace: Pace) -> None:
    with PsCluster(sparse=2, trainers=2, sync=sync, pace=pace) as cluster:
        trainers = [
            Trainer(cluster, job(8), script([rows(8, seed=s) for s in range(3)]), rank=0),
            Trainer(cluster, job(8), script([*[[]] * 5, rows(4, seed=2)], 1), rank=1),
        ]
        train_together(trainers)
        assert trainers[1].progress.samples == 4
        assert cluster.dense[0].servicer.status()["version"] == 4


class SpyStep(TrainStep):
    """Remembers the first dense feature of every sample it trained."""

    def __init__(self, network, **sizes):
        super().__init__(network, **sizes)
        self.seen: list[float] = []

    def run(self, dense, labels, parameters, *, step):
        self.seen.extend(dense[:, 0].tolist())
        return super().run(dense, labels, parameters, step=step)


@PACES
def test_no_row_is_skipped_or_trained_twice_across_a_checkpoint(tmp_path: Path, pace: Pace) -> None:
    """Two trainers pause in the first epoch; one trainer on other shards goes on to the end."""
    names = [f"{i / 512:.9f}" for i in range(509)]
    lines = [f"{i % 3 == 0:d},{name},k{i % 40}" for i, name in enumerate(names)]
    (tmp_path / "clicks.csv").write_text("\n".join(["label,I1,C1", *lines]) + "\n")
    document = job(4).model_dump(mode="json")
    document["data"] = {"source": f"file://{tmp_path}/clicks.csv", "format": "csv"}
    document["features"] = {"dense": "I1", "sparse": {"C1": {"dim": DIM}}}
    document["training"]["epochs"] = 2
    spec = validate(document)
    with PsCluster(sparse=2, trainers=2, pace=pace) as cluster, ThreadPoolExecutor(4) as pool:
        first = [
            Trainer(cluster, spec, open_training(spec, rank=r, trainers=2), r, SpyStep)
            for r in range(2)
        ]
        stop = threading.Event()
        running = [pool.submit(t.run, stop) for t in first]
        asked = [pool.submit(t.gate.pause, "ckpt", WAIT, WAIT) for t in first]
        stands = [a.result(WAIT) for a in asked]
        manifest = cluster.snapshot(tmp_path / "checkpoint")
        stop.set()
        assert all(t.gate.resume("ckpt") for t in first)
        assert not any(r.result(WAIT) for r in running)
    before = [value for t in first for value in t.step.seen]  # type: ignore[attr-defined]
    assert len(before) == sum(s.samples for s in stands)
    resume = {p.partition: p for s in stands for p in s.positions}
    assert len(resume) == 60
    with PsCluster(sparse=3, dense=2, trainers=1, pace=pace, restore=manifest) as cluster:
        source = open_training(spec, rank=0, trainers=1, resume=resume)
        second = Trainer(cluster, spec, source, step_class=SpyStep)
        assert second.run()
        after = second.step.seen  # type: ignore[attr-defined]
    assert 0 < len(before) < 2 * len(names)
    want = [float(np.float32(n)) for n in names] * 2
    assert sorted(before + after) == sorted(want)
