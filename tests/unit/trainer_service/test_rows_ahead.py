"""When rows are read ahead: which pull begins at which moment of the step, and which rows come with
the push, against a key-by-key walk through the batches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import prometheus_client
import pytest

from ps_service.client.plan import KeyPlanner
from ps_service.sharding import ShardMap
from ps_service.tables import table_spec
from services.api.optimizers import OptimizerSpec
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import Planned, Pushed
from trainer_service.rows_ahead import RowsAhead
from trainer_service.sources import EndOfData

TABLE = table_spec("C1", 1, OptimizerSpec(name="sgd", params={"lr": 0.1}), None)
NO_RESULT = cast(Any, None)


class Batches:
    """Planned batches, all of them there at once."""

    def __init__(self, keys: list[list[int]]) -> None:
        planner = KeyPlanner([TABLE], [0], [0], ["sum"], 1, ShardMap.even(4, 1))
        self._left: Iterator[list[int]] = iter(keys)
        self._plan = lambda row: planner.plan(
            np.array(row, np.uint64), np.arange(len(row) + 1, dtype=np.int32), len(row)
        )
        self.turns = 0

    def poll(self) -> Planned | None:
        row = next(self._left, None)
        return None if row is None else Planned(None, self._plan(row))

    def next(self, stop: threading.Event) -> Planned:
        planned = self.poll()
        if planned is None:
            raise EndOfData
        return planned

    def cores_free(self) -> None:
        self.turns += 1


class Table:
    """Both servers: a key's row holds the last step that pushed it."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.pulled: list[tuple[int, set[int]]] = []
        self.pulls = threading.Semaphore(0)
        self.during_push: Any = lambda step: None

    def _read(self, part: Any) -> np.ndarray:
        keys = part.shards[0].plain_keys.tolist()
        return np.array([self.rows.get(key, 0) for key in keys], np.float32)

    def pull(self, part: Any, *, step: int, read_only: bool = False) -> np.ndarray:
        self.pulled.append((step, set(part.shards[0].plain_keys.tolist())))
        self.pulls.release()
        return self._read(part)

    def push(self, plan: Any, result: Any, *, step: int, then: Any, **_: Any) -> Pushed:
        self.during_push(step)
        for key in plan.shards[0].plain_keys.tolist():
            self.rows[key] = step
        rows = [self._read(read.keys) for read in then]
        return Pushed(np.zeros(0, np.float32), pause=False, missing=0, rows=rows)


@pytest.fixture
def metrics() -> TrainerMetrics:
    return TrainerMetrics(prometheus_client.CollectorRegistry())


def rows_ahead(batches: Batches, table: Table, metrics: TrainerMetrics, depth: int) -> Any:
    return closing(RowsAhead(cast(Any, batches), cast(Any, table), metrics, depth=depth))


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_every_batch_gets_the_rows_of_the_last_push_that_had_them(
    metrics: TrainerMetrics, depth: int
) -> None:
    rng = np.random.default_rng(depth)
    script = [rng.choice(12, size=5, replace=False).tolist() for _ in range(40)]
    batches, table, stop = Batches(script), Table(), threading.Event()
    last: dict[int, int] = {}
    with rows_ahead(batches, table, metrics, depth) as rows:
        for step, _ in enumerate(script, start=1):
            current = rows.next(stop)
            assert current.step == step
            keys = current.plan.shards[0].plain_keys.tolist()
            assert rows.pull(current).tolist() == [last.get(key, 0) for key in keys]
            rows.push(current, NO_RESULT, pause=False)
            last |= dict.fromkeys(keys, step)
        with pytest.raises(EndOfData):
            rows.next(stop)
    assert batches.turns == len(script)


def test_the_next_batch_is_pulled_beside_the_step_and_those_behind_it_beside_its_pushes(
    metrics: TrainerMetrics,
) -> None:
    batches, table, stop = Batches([[1], [2], [1, 3], [4]]), Table(), threading.Event()
    seen = SimpleNamespace(before=[], beside=[])

    def during_push(step: int) -> None:
        seen.before.append(sorted(table.pulled))
        assert table.pulls.acquire(timeout=5)  # it does not wait for the push's end
        seen.beside.append(sorted(table.pulled))

    with rows_ahead(batches, table, metrics, depth=2) as rows:
        first = rows.next(stop)
        rows.pull(first)
        for _ in range(2):  # the first batch, read without reading ahead, and the second
            assert table.pulls.acquire(timeout=5)
        threading.Event().wait(0.05)
        assert sorted(table.pulled) == [(1, {1}), (2, {2})]
        table.during_push = during_push
        rows.push(first, NO_RESULT, pause=False)
        # Key 1 of the third batch comes with this push, so only key 3 is pulled.
        assert seen.beside[0] == [(1, {1}), (2, {2}), (3, {3})]
        second = rows.next(stop)
        assert rows.pull(second).tolist() == [0]
        threading.Event().wait(0.05)
        assert len(table.pulled) == 3
        rows.push(second, NO_RESULT, pause=False)
        assert seen.beside[1][-1] == (4, {4})
        assert rows.pull(rows.next(stop)).tolist() == [1, 0]


def test_settling_waits_for_pulls_that_had_not_begun(metrics: TrainerMetrics) -> None:
    batches, table = Batches([[1], [2], [3]]), Table()
    with rows_ahead(batches, table, metrics, depth=2) as rows:
        rows.next(threading.Event())
        rows.settle()
        assert sorted(table.pulled) == [(2, {2}), (3, {3})]
