"""Rows read ahead: one trainer leaves the same bits at any depth; pauses, errors and staleness."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from services.kit.errors import Conflict, Unavailable
from tests.fixtures.ps_cluster import PsCluster
from tests.fixtures.scripted_source import ScriptedSource
from tests.fixtures.trainer_rig import WAIT, Trainer, batch, job, rows, script, train_together
from trainer_service.step import StepResult, TrainStep

STEPS = 40


class SlowNow(ScriptedSource):
    """Hands out some batches late, so that the window is at times empty or not full."""

    def next_batch(self, timeout: float) -> Any:
        if self.handed_out % 7 in (3, 4):
            threading.Event().wait(0.03)
        return super().next_batch(timeout)


def state(trainer: Trainer) -> tuple[list[bytes], bytes]:
    """All rows with their optimizer state, and the dense parameters."""
    return trainer.cluster.rows(), trainer.cluster.dense_values().tobytes()


def trained(
    depth: int, source: ScriptedSource, shards: int = 2
) -> tuple[Trainer, tuple[list[bytes], bytes]]:
    """A trainer at its end, and the state it left."""
    with PsCluster(sparse=shards) as cluster:
        trainer = Trainer(cluster, job(16), source, depth=depth)
        assert trainer.run()
        return trainer, state(trainer)


def metric(trainer: Trainer, name: str) -> float:
    value = trainer.registry.get_sample_value(f"embermesh_trainer_{name}")
    assert value is not None
    return value


def test_one_trainer_leaves_the_same_bits_at_any_depth() -> None:
    """Batches that share most of their keys, one of them empty, from a fast and a slow source."""
    data = [rows(16 if i != 5 else 0, seed=i) for i in range(STEPS)]
    plain, want = trained(0, script(data))
    assert metric(plain, "staleness_steps_sum") == 0
    assert metric(plain, "refreshed_rows_total") == 0
    for depth in (1, 2, 4):
        for source in (script(data), SlowNow([batch(d, i + 1) for i, d in enumerate(data)])):
            trainer, got = trained(depth, source, shards=1 + depth)
            assert got == want
            assert metric(trainer, "refreshed_rows_total") > 0
            assert 0 < metric(trainer, "staleness_steps_sum") <= depth * STEPS


def test_every_row_is_read_once_for_each_batch() -> None:
    """What is read ahead and what comes with pushes add up to the distinct keys of all batches."""
    data = [rows(16, seed=i) for i in range(STEPS)]
    with PsCluster() as cluster:
        trainer = Trainer(cluster, job(16), script(data), depth=3)
        assert trainer.run()
        pulled = cluster.sparse[0].registry.get_sample_value(
            "embermesh_sparse_pulled_keys_total", {"purpose": "train"}
        )
        steps = cluster.sparse[0].registry.get_sample_value("embermesh_rpc_total", push_labels())
    assert pulled == metric(trainer, "keys_total")
    assert steps == STEPS


def push_labels() -> dict[str, str]:
    return {"service": "SparsePs", "verb": "Push", "code": "OK"}


class PatientStep(TrainStep):
    """Does not end a step, after the first, before a pull for a later one has reached the shard."""

    pulled: set[int]
    waited = 0

    def run(self, dense: Any, labels: Any, parameters: Any, *, step: int) -> StepResult:
        deadline = time.monotonic() + WAIT
        while 1 < step < STEPS - 3 and not any(s > step for s in self.pulled):
            assert time.monotonic() < deadline, f"nothing is read ahead of step {step}"
            threading.Event().wait(0.001)
        self.waited += 1
        return super().run(dense, labels, parameters, step=step)


def test_rows_are_read_while_the_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is far ahead, so that the window is never empty."""
    with PsCluster() as cluster:
        servicer = cluster.sparse[0].servicer
        data = [rows(16, seed=i) for i in range(STEPS)]
        trainer = Trainer(cluster, job(16), script(data), step_class=PatientStep, depth=1)
        step = cast(PatientStep, trainer.step)
        step.pulled, honest = set(), servicer._read

        def noting(read: Any, *args: Any) -> Any:
            step.pulled.add(read.request.caller.step)
            return honest(read, *args)

        monkeypatch.setattr(servicer, "_read", noting)
        assert trainer.run()
        assert step.waited == STEPS


def test_two_trainers_read_rows_within_the_bound_and_learn() -> None:
    data = [rows(32, seed=s) for s in range(60)]
    with PsCluster(sparse=2, trainers=2) as cluster:
        trainers = [
            Trainer(cluster, job(32), script(data[r::2] * 3, r), rank=r, depth=2) for r in range(2)
        ]
        train_together(trainers)
        for served in cluster.sparse:
            value = served.registry.get_sample_value
            most = value("embermesh_sparse_staleness_steps_bucket", {"le": "2.0"})
            assert most == value("embermesh_sparse_staleness_steps_count") == 2 * 90
    assert all(t.progress.status()["auc"] > 0.7 for t in trainers)


def test_nothing_is_under_way_while_a_trainer_stands() -> None:
    data = [rows(8, seed=s) for s in range(300)]
    with PsCluster(sparse=2) as cluster, ThreadPoolExecutor(2) as pool:
        trainer = Trainer(cluster, job(8), script(data), depth=4)
        running = pool.submit(trainer.run)
        for token in ("first", "second"):
            stand = trainer.gate.pause(token, WAIT, WAIT)
            assert stand.positions[0].minor == stand.step
            before = state(trainer)
            threading.Event().wait(0.05)
            assert state(trainer) == before
            assert trainer.gate.resume(token)
        assert running.result(WAIT)


@pytest.mark.parametrize("verb", ["Pull", "Push"])
def test_an_error_beside_the_step_ends_the_loop_at_the_next_boundary(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PsCluster() as cluster:
        trainer = Trainer(cluster, job(8), script([rows(8, seed=s) for s in range(50)]), depth=2)
        servicer, calls = cluster.sparse[0].servicer, iter(range(1000))
        name = "_push" if verb == "Push" else "_admitted"
        honest = getattr(servicer, name)

        def failing(*args: Any) -> Any:
            if next(calls) == 20:
                raise Conflict("shard 0 has had enough")
            return honest(*args)

        monkeypatch.setattr(servicer, name, failing)
        with pytest.raises(Conflict, match="had enough"):
            trainer.run()
        assert 0 < metric(trainer, "steps_total") < 50


def test_stop_does_not_wait_for_rows_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, stop, asked = threading.Event(), threading.Event(), threading.Event()
    with PsCluster() as cluster, ThreadPoolExecutor(1) as pool:
        trainer = Trainer(cluster, job(8), script([rows(8, seed=s) for s in range(50)]), depth=2)
        trainer.sparse._stop = cut
        servicer, release = cluster.sparse[0].servicer, threading.Event()
        honest = servicer._admitted

        def stuck(caller: Any) -> Any:
            if caller.step == 9:
                asked.set()
                release.wait(WAIT)
            return honest(caller)

        monkeypatch.setattr(servicer, "_admitted", stuck)
        running = pool.submit(trainer.run, stop)
        assert asked.wait(WAIT)
        stop.set()
        cut.set()
        with pytest.raises(Unavailable):
            running.result(WAIT)
        release.set()
