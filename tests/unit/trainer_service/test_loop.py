"""The loop's verbs: their order, when positions move, silence, pause, the end of the data, stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import prometheus_client
import pytest

from ps_service.client.plan import Projection
from services.api.manifest import PositionEntry
from services.kit.errors import Unavailable
from trainer_service.batch import Batch
from trainer_service.control import PauseGate
from trainer_service.loop import Loop
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Planned, Pushed, ReadAhead, Servers, Stopped
from trainer_service.positions import Positions
from trainer_service.progress import Progress
from trainer_service.rows_ahead import RowsAhead
from trainer_service.sources import EndOfData
from trainer_service.step import StepResult, TrainStep

WIDTH, WAIT = 2, 5.0


def batch(minor: int, rows: int = 3) -> Batch:
    return Batch(
        labels=np.ones(rows, np.float32),
        dense=np.zeros((rows, 1), np.float32),
        keys=np.arange(rows, dtype=np.uint64),
        offsets=np.arange(rows + 1, dtype=np.int32),
        first=(0, minor - 1),
        next=PositionEntry(partition="lane-00", major=0, minor=minor),
    )


class Recorder:
    """Stands for batches, servers and step at once, and writes down every verb."""

    unique_keys = 3
    parameters = 1

    def __init__(self, script: list[Any]) -> None:
        self._script = iter([*script, EndOfData()])
        self.calls: list[Any] = []
        self.on_push: Callable[[int], None] = lambda step: None
        self.grant_pause = False
        self.projected: set[int] = set()  # steps whose first layer is computed by distinct rows

    def next(self, stop: threading.Event) -> Planned:
        if stop.is_set():
            raise Stopped
        item = next(self._script)
        if isinstance(item, Exception):
            raise item
        return Planned(item, cast(Any, self))

    def cores_free(self) -> None:
        self.calls.append(("cores free",))

    def pull(self, plan: Any, *, step: int, read_only: bool = False) -> np.ndarray:
        self.calls.append(("pull", step))
        return np.full(6, step, np.float32)

    def rows(self, samples: int) -> np.ndarray:
        return np.zeros((samples, WIDTH), np.float32)

    def take(
        self, plan: Any, values: Any, dense: Any, labels: Any, parameters: np.ndarray, *, step: int
    ) -> StepResult:
        assert plan is self
        self.calls.append(("step", step, float(values[0]), float(parameters[0])))
        n = len(labels)
        grads = () if step in self.projected else (np.zeros((n, WIDTH), np.float32),)
        return StepResult(
            0.5,
            np.full(n, 0.6, np.float32),
            grads,
            np.ones(1, np.float32),
            (Projection(),) if step in self.projected else (),
        )

    def push(self, plan: Any, result: StepResult, **kw: Any) -> Pushed:
        samples = len(result.probabilities)
        self.calls.append(("push", kw["step"], kw["read_step"], samples, kw["pause"]))
        self.on_push(kw["step"])
        return Pushed(np.full(1, kw["step"], np.float32), kw["pause"] and self.grant_pause, 1, [])

    def leave(self, step: int) -> None:
        self.calls.append(("leave", step))


class Rig:
    """A loop over a recorder, with the real gate, positions, progress and metrics."""

    def __init__(
        self, script: list[Any], ahead: dict[str, tuple[int, int]] | None = None, after: int = 0
    ) -> None:
        self.recorder, self.gate, self.stop = Recorder(script), PauseGate(), threading.Event()
        self.registry = prometheus_client.CollectorRegistry()
        metrics = TrainerMetrics(self.registry)
        self.progress = Progress(metrics, restored_samples=100)
        start = [PositionEntry(partition="lane-00", major=0, minor=0)]
        self.positions = Positions(start, ahead)
        self.loop = Loop(
            rows=RowsAhead(
                cast(ReadAhead, self.recorder),
                cast(Servers, self.recorder),
                metrics,
                depth=0,
                after=after,
            ),
            servers=cast(Servers, self.recorder),
            step=cast(TrainStep, self.recorder),
            positions=self.positions,
            gate=self.gate,
            progress=self.progress,
            metrics=metrics,
        )

    def run(self) -> bool:
        return self.loop.run(np.zeros(1, np.float32), self.stop)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"embermesh_trainer_{name}", labels)

    @property
    def minor(self) -> int:
        return self.positions.entries()[0].minor


def test_the_verbs_of_two_batches_in_order() -> None:
    rig = Rig([batch(1), batch(2, rows=3)])
    assert rig.run()
    assert rig.recorder.calls == [
        ("pull", 1),
        ("step", 1, 1.0, 0.0),
        ("cores free",),  # to read the next batch beside the push
        ("push", 1, 1, 3, False),
        ("pull", 2),
        ("step", 2, 2.0, 1.0),  # with the parameters that push 1 gave back
        ("cores free",),
        ("push", 2, 2, 3, False),
        ("leave", 2),
    ]
    assert rig.minor == 2
    assert rig.metric("samples_total") == 6
    assert rig.metric("steps_total") == 2
    assert rig.metric("missing_keys_total") == 2
    assert rig.metric("staleness_steps_sum") == 0
    assert rig.metric("projected_steps_total") == 0
    for phase in ("wait", "pull", "step", "push"):
        assert rig.metric("phase_seconds_count", phase=phase) == 2 + (phase == "wait")
    status = rig.progress.status()
    assert (status["step"], status["samples"], status["staleness"]) == (2, 106, 0)
    assert status["loss"] == pytest.approx(-np.log(0.6), rel=1e-5)


def test_projected_steps_are_counted() -> None:
    rig = Rig([batch(1), batch(2), None, batch(3)])
    rig.recorder.projected = {1, 4}
    assert rig.run()
    assert rig.metric("projected_steps_total") == 2
    assert rig.metric("steps_total") == 4


def test_silence_and_rows_that_were_all_bad_push_nothing_but_take_a_step() -> None:
    rig = Rig([None, batch(7, rows=0)])
    assert rig.run()
    assert rig.recorder.calls == [
        ("cores free",),
        ("push", 1, 1, 0, False),
        ("cores free",),
        ("push", 2, 2, 0, False),
        ("leave", 2),
    ]
    assert rig.minor == 7
    assert rig.metric("idle_steps_total") == 2
    assert rig.progress.status()["loss"] is None


def test_a_position_moves_only_after_the_pushes() -> None:
    rig = Rig([batch(1), batch(2)])
    seen: list[int] = []

    def fail_second(step: int) -> None:
        seen.append(rig.minor)
        if step == 2:
            raise Unavailable("shard 1 is away")

    rig.recorder.on_push = fail_second
    with pytest.raises(Unavailable):
        rig.run()
    assert seen == [0, 1]
    assert rig.minor == 1
    assert ("leave", 2) not in rig.recorder.calls


def test_a_job_without_data_left_leaves_at_once() -> None:
    rig = Rig([])
    assert rig.run()
    assert rig.recorder.calls == [("leave", 0)]
    assert rig.gate.pause("t", WAIT, WAIT).samples == 100


def test_stop_ends_between_two_steps_and_is_no_leave() -> None:
    rig = Rig([batch(1), batch(2)])
    rig.recorder.on_push = lambda step: rig.stop.set()
    assert not rig.run()
    assert rig.recorder.calls[-1] == ("push", 1, 1, 3, False)
    assert rig.minor == 1


def test_pause_waits_for_the_common_boundary_and_holds_there() -> None:
    rig = Rig([batch(i) for i in range(1, 6)])
    asked = threading.Event()

    def on_push(step: int) -> None:
        if step == 2:
            asked.set()
            while not rig.gate.requested():
                pass
        if step == 4:  # the last of the other trainers flags it only now
            rig.recorder.grant_pause = True

    rig.recorder.on_push = on_push
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(rig.run)
        assert asked.wait(WAIT)
        stand = rig.gate.pause("ckpt", WAIT, WAIT)
        assert (stand.step, stand.samples, stand.positions[0].minor) == (4, 100 + 12, 4)
        assert rig.recorder.calls[-1] == ("push", 4, 4, 3, True)
        assert not running.done()
        assert rig.gate.resume("ckpt")
        assert running.result(WAIT)
    pushes = [c for c in rig.recorder.calls if c[0] == "push"]
    assert [c[-1] for c in pushes] == [False, False, True, True, False]
    assert rig.metric("pause_seconds_count") == 1


def test_a_trainer_that_took_over_pauses_only_once_it_is_settled() -> None:
    """Its steps go on from the others' count; what it sends again is in no checkpoint."""
    rig = Rig([batch(i) for i in range(1, 5)], ahead={"lane-00": (0, 2)}, after=40)
    rig.recorder.grant_pause = True
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(rig.gate.pause, "ckpt", WAIT, WAIT)
        while not rig.gate.requested():
            pass
        running = threading.Thread(target=rig.run)
        running.start()
        stand = asked.result(WAIT)
        assert (stand.step, stand.positions[0].minor) == (43, 3)
        assert rig.gate.resume("ckpt")
        running.join(WAIT)
    pushes = [c for c in rig.recorder.calls if c[0] == "push"]
    assert [(c[1], c[-1]) for c in pushes] == [(41, False), (42, False), (43, True), (44, False)]


def test_progress_after_the_end_tells_the_mean_speed() -> None:
    now = [0.0]
    metrics = TrainerMetrics(prometheus_client.CollectorRegistry())
    progress = Progress(metrics, clock=lambda: now[0])
    n = np.zeros(10, np.float32)
    result = StepResult(0.0, n + 0.5, (np.zeros((10, 1), np.float32),), n)
    for step, seconds in enumerate([1.0, 1.0, 8.0], start=1):
        now[0] += seconds
        progress.stepped(step, result, n, staleness=0)
    progress.finished()
    assert progress.status()["samples_per_second"] == pytest.approx(3.0)
