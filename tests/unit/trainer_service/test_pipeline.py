"""Reading ahead: order, bound, silence, errors and the end, with the real planner and a scripted
source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import prometheus_client
import pytest

from ps_service.client.plan import KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.manifest import PositionEntry
from services.api.optimizers import OptimizerSpec
from services.kit.errors import Damaged, Unavailable
from tests.fixtures.scripted_source import ScriptedSource
from trainer_service.batch import Batch
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Pushed, ReadAhead, Servers, Stopped
from trainer_service.sources import EndOfData
from trainer_service.step import StepResult

TABLE = table_spec("C1", 2, OptimizerSpec(name="sgd", params={"lr": 0.1}), None)


def batch(number: int, rows: int = 2) -> Batch:
    return Batch(
        labels=np.zeros(rows, np.float32),
        dense=np.full((rows, 1), number, np.float32),
        keys=np.arange(rows, dtype=np.uint64),
        offsets=np.arange(rows + 1, dtype=np.int32),
        first=(0, number - 1),
        next=PositionEntry(partition="lane-00", major=0, minor=number),
    )


def until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(500):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("condition did not come true")


def read_ahead(source: ScriptedSource, **options: Any) -> Any:
    planner = KeyPlanner([TABLE], [0], [0], ["sum"], 2, ShardMap.even(4, 2))
    metrics = TrainerMetrics(prometheus_client.CollectorRegistry())
    return closing(ReadAhead(source, planner, metrics, **options))


def test_batches_come_planned_in_order_then_the_end_for_ever() -> None:
    source, stop = ScriptedSource([batch(i) for i in range(9)]), threading.Event()
    with read_ahead(source, depth=2) as batches:
        got = [batches.next(stop) for _ in range(9)]
        for _ in range(2):
            with pytest.raises(EndOfData):
                batches.next(stop)
    assert [p.batch.next.minor for p in got] == list(range(9))
    assert all(p.plan.unique_keys == 2 for p in got)
    assert source.closed


def test_reads_ahead_at_most_depth_batches() -> None:
    source, stop = ScriptedSource([batch(i) for i in range(20)]), threading.Event()
    with read_ahead(source, depth=3) as batches:
        until(lambda: source.handed_out >= 4)  # three queued, one in the thread's hand
        threading.Event().wait(0.05)
        assert source.handed_out == 4
        batches.next(stop)
        until(lambda: source.handed_out == 5)


def test_with_enough_batches_it_reads_the_next_once_cores_are_free() -> None:
    source, stop = ScriptedSource([batch(i) for i in range(20)]), threading.Event()
    with read_ahead(source, depth=4, low=2) as batches:
        until(lambda: source.handed_out == 2)
        threading.Event().wait(0.05)
        assert source.handed_out == 2
        batches.cores_free()
        until(lambda: source.handed_out == 3)
        batches.next(stop)  # leaves two
        threading.Event().wait(0.05)
        assert source.handed_out == 3
        batches.next(stop)  # leaves one: too few to wait
        until(lambda: source.handed_out == 4)


def test_waiting_for_free_cores_loses_no_batch_and_no_end() -> None:
    source, stop = ScriptedSource([batch(i) for i in range(300)]), threading.Event()
    got = []
    with read_ahead(source, depth=3, low=1) as batches, pytest.raises(EndOfData):
        while True:
            got.append(batches.next(stop).batch.next.minor)
            if got[-1] % 3:
                batches.cores_free()
    assert got == list(range(300))
    assert source.closed


def test_close_ends_the_wait_for_free_cores() -> None:
    source = ScriptedSource([batch(i) for i in range(20)])
    with read_ahead(source, low=1):
        until(lambda: source.handed_out == 1)
    assert source.closed
    assert source.handed_out == 1


def test_a_silent_live_source_gives_empty_batches() -> None:
    source, stop = ScriptedSource([None] * 30 + [batch(1)]), threading.Event()
    with read_ahead(source, idle_after=0.01) as batches:
        first = batches.next(stop)
        assert first.batch is None
        assert (first.plan.unique_keys, first.plan.value_floats, len(first.labels)) == (0, 0, 0)
        while (planned := batches.next(stop)).batch is None:
            pass
        assert planned.batch.next.minor == 1


def test_a_file_source_is_waited_for() -> None:
    source, stop = ScriptedSource([None] * 30 + [batch(1)]), threading.Event()
    with read_ahead(source) as batches:
        assert batches.next(stop).batch is not None


def test_errors_of_the_source_surface_after_the_batches_before_them() -> None:
    source, stop = ScriptedSource([batch(0), Damaged("clicks.gz: bad CRC")]), threading.Event()
    with read_ahead(source) as batches:
        assert batches.next(stop).batch is not None
        for _ in range(2):
            with pytest.raises(Damaged, match=r"clicks\.gz"):
                batches.next(stop)


def test_a_bad_plan_surfaces_too() -> None:
    broken = Batch(
        labels=np.zeros(2, np.float32),
        dense=np.zeros((2, 1), np.float32),
        keys=np.zeros(1, np.uint64),
        offsets=np.array([0, 1, 9], np.int32),
        first=(0, 0),
        next=PositionEntry(partition="p", major=0, minor=2),
    )
    with read_ahead(ScriptedSource([broken])) as batches, pytest.raises(Exception, match="offsets"):
        batches.next(threading.Event())


def test_stop_ends_the_wait() -> None:
    stop = threading.Event()
    with read_ahead(ScriptedSource([None] * 10_000)) as batches:
        threading.Timer(0.05, stop.set).start()
        with pytest.raises(Stopped):
            batches.next(stop)


def test_close_does_not_wait_for_a_full_queue() -> None:
    source = ScriptedSource([batch(i) for i in range(20)])
    with read_ahead(source, depth=1):
        until(lambda: source.handed_out == 2)
    assert source.closed


def test_only_the_reading_thread_touches_the_source_and_it_reports() -> None:
    seen: list[tuple[int, int | None]] = []
    observer = SimpleNamespace(
        source=lambda bad_rows, lag, total_samples: seen.append((bad_rows, lag))
    )
    source, stop = ScriptedSource([batch(0), batch(1)]), threading.Event()
    with read_ahead(source, observer=observer) as batches:
        batches.next(stop)
        batches.next(stop)
        with pytest.raises(EndOfData):
            batches.next(stop)
    assert len(source.threads) == 1
    assert threading.get_ident() not in source.threads
    assert seen[-1] == (2, 17)


class _Client:
    """Either server's client; a push waits until the other one's push is under way, as a barrier
    may demand.
    """

    def __init__(self, meeting: threading.Barrier, answer: Any) -> None:
        self._meeting, self._answer = meeting, answer

    def push(self, *args: Any, **kwargs: Any) -> Any:
        self._meeting.wait(5)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def close(self) -> None:
        pass


def push(dense: Any, sparse: Any) -> Pushed:
    meeting = threading.Barrier(2)
    plan = SimpleNamespace(scatter=lambda grads: grads)
    result = StepResult(
        0.0, np.zeros(3, np.float32), (np.zeros((3, 2), np.float32),), np.zeros(1, np.float32)
    )
    with closing(Servers(_Client(meeting, sparse), _Client(meeting, dense))) as servers:  # type: ignore[arg-type]
        return servers.push(plan, result, step=1, read_step=1, pause=False)  # type: ignore[arg-type]


def test_both_pushes_are_under_way_at_once() -> None:
    values = np.ones(1, np.float32)
    pushed = push(
        SimpleNamespace(values=values, pause=True, version=1), SimpleNamespace(missing=4, rows=[])
    )
    assert (pushed.parameters is values, pushed.pause, pushed.missing) == (True, True, 4)


def test_a_failed_push_of_either_kind_fails_the_step() -> None:
    fine = SimpleNamespace(
        values=np.ones(1, np.float32), pause=False, version=1, missing=0, rows=[]
    )
    for dense, sparse in ((Unavailable("away"), fine), (fine, Unavailable("away"))):
        with pytest.raises(Unavailable):
            push(dense, sparse)
