"""A trainer dies in the middle of a step, and another one takes its source partitions over. Both
kinds of servers over real gRPC, against an undisturbed run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ps_service import _native
from ps_service.client.claim import Claim, claim
from ps_service.client.dense import DenseClient
from ps_service.client.sparse import SparseClient
from ps_service.ranges import BatchRange
from ps_service.server.assignment import Pace
from ps_service.server.dense_paces import Together
from services.api import manifest as manifests
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, Damaged
from services.kit.laden import Laden
from services.kit.storage import Storage
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

ADAM = _native.OPTIMIZERS["adam"]
INITIAL = np.linspace(-1, 1, 11).astype(np.float32)
BATCHES = [random_batch(seed, samples=6) for seed in range(8)]
WAIT = 30.0


class Killed(Exception):
    """The trainer is dead."""


@dataclasses.dataclass
class Trainer:
    """A trainer's two clients, and its walk through one source partition, a batch a range."""

    cluster: PsCluster
    rank: int = 0
    incarnation: int = 0
    partition: str = "clicks-0"

    def __post_init__(self) -> None:
        who: dict[str, Any] = {"rank": self.rank, "incarnation": self.incarnation, "timeout": WAIT}
        self.sparse: SparseClient = self.cluster.sparse_client(**who)
        self.dense: DenseClient = self.cluster.dense_client(**who)
        self.sparse.configure(TABLES, 3)
        self.dense.configure("adam", ADAM, INITIAL)

    def claim(self) -> Claim:
        start = PositionEntry(partition=self.partition, major=0, minor=0, end=8)
        return claim(self.sparse, self.dense, [start])

    def train(self, batches: Iterable[int], *, after: int = 0) -> None:
        """Steps from `after` + 1 on, one batch each."""
        for step, number in enumerate(batches, start=after + 1):
            self.step(step, number)

    def step(self, step: int, number: int) -> None:
        self.sparse.pull(plan(self.cluster.shard_map, BATCHES[number]), step=step)
        self.push_rows(step, number)
        self.push_dense(step, number)

    def push_rows(self, step: int, number: int) -> int:
        """How many shards had applied it before."""
        batch = BATCHES[number]
        keys = plan(self.cluster.shard_map, batch)
        return self.sparse.push(
            keys,
            keys.scatter(batch.grads),
            step=step,
            read_step=step,
            samples=batch.samples,
            rows=self.range(number),
            event_time=1,
        ).duplicate

    def push_dense(self, step: int, number: int) -> None:
        batch = BATCHES[number]
        rows = self.range(number)
        self.dense.push(batch.dense, step=step, samples=batch.samples, pause=False, rows=rows)

    def range(self, number: int) -> BatchRange:
        return BatchRange(self.partition, (number, 0), (number + 1, 0))

    def dies_after_reaching(self, *, shards: set[int], blocks: set[int]) -> None:
        """Its next pushes reach these servers, then it is dead."""
        for client, servers in ((self.sparse, shards), (self.dense, blocks)):
            client.ask = only(client.ask, servers)  # type: ignore[method-assign]


def only(ask: Any, servers: set[int]) -> Any:
    def partial(verb: Any, requests: Iterable[tuple[int, Any]], **other: Any) -> Any:
        sent = [(i, r) for i, r in requests if not isinstance(r, Laden) or i in servers]
        replies = ask(verb, sent, **other)
        if any(isinstance(r, Laden) for _, r in sent) or not sent:
            raise Killed
        return replies

    return partial


def kill_in_step(trainer: Trainer, step: int, number: int) -> None:
    trainer.sparse.pull(plan(trainer.cluster.shard_map, BATCHES[number]), step=step)
    for push in (trainer.push_rows, trainer.push_dense):
        with pytest.raises(Killed):
            push(step, number)


def state_of(cluster: PsCluster) -> tuple[list[bytes], bytes]:
    return cluster.rows(), cluster.dense_values().tobytes()


def outcomes(cluster: PsCluster, name: str) -> list[float]:
    """Ranges with that outcome, by server: shards, then blocks."""
    registries = [("sparse", served.registry) for served in cluster.sparse]
    registries += [("dense", served.registry) for served in cluster.dense]
    return [
        registry.get_sample_value(f"embermesh_{kind}_ranges_total", {"outcome": name}) or 0.0
        for kind, registry in registries
    ]


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[bytes], bytes]:
    with PsCluster(sparse=3, dense=2) as cluster:
        trainer = Trainer(cluster)
        trainer.claim()
        trainer.train(range(8))
        return state_of(cluster)


@pytest.mark.parametrize("pace", [Pace.TOGETHER, Pace.ON_ARRIVAL], ids=["hybrid", "async"])
@pytest.mark.parametrize("shards", [set(), {1}, {0, 2}, {0, 1, 2}])
@pytest.mark.parametrize("blocks", [set(), {0}, {1}, {0, 1}])
def test_what_some_servers_have_is_sent_again_and_counts_once(
    shards: set[int], blocks: set[int], pace: Pace, undisturbed: tuple[list[bytes], bytes]
) -> None:
    """Wherever the step under way had arrived, bit for bit."""
    with PsCluster(sparse=3, dense=2, pace=pace) as cluster:
        first = Trainer(cluster)
        first.claim()
        first.train(range(4))
        first.dies_after_reaching(shards=shards, blocks=blocks)
        kill_in_step(first, 5, 4)

        second = Trainer(cluster, incarnation=1)
        claimed = second.claim()
        partition = claimed.partitions["clicks-0"]
        everywhere = len(shards) + len(blocks) == 5
        reached = 5 if everywhere else 4
        assert (partition.position.major, partition.position.end) == (reached, 8)
        assert partition.cuts == (((5, 0),) if 0 < len(shards) + len(blocks) < 5 else ())
        assert claimed.samples == 6 * reached
        assert claimed.step == (5 if blocks else 4)
        second.train(range(reached, 8), after=claimed.step)
        assert state_of(cluster) == undisturbed
        assert sum(outcomes(cluster, "duplicate")) == (
            0 if everywhere else len(shards) + len(blocks)
        )


def test_a_push_that_is_repeated_changes_nothing() -> None:
    with PsCluster(sparse=3, dense=1) as cluster:
        trainer = Trainer(cluster)
        trainer.claim()
        trainer.train(range(2))
        before = state_of(cluster)
        assert trainer.push_rows(2, 1) == 3, "the same step"
        assert trainer.push_rows(3, 1) == 3, "the same rows under another step"
        assert state_of(cluster) == before


def test_the_dead_are_fenced_however_late_their_pushes_come() -> None:
    with PsCluster(sparse=2, dense=2) as cluster:
        dead = Trainer(cluster)
        dead.claim()
        dead.train(range(2))
        successor = Trainer(cluster, incarnation=3)
        after = successor.claim().step
        before = state_of(cluster)
        for late in (
            lambda: dead.push_rows(3, 2),
            lambda: dead.push_rows(2, 1),
            lambda: dead.push_dense(3, 2),
            lambda: dead.dense.leave(2),
            lambda: dead.sparse.leave(2),
            dead.claim,
        ):
            with pytest.raises(Conflict, match="incarnation"):
                late()
        assert state_of(cluster) == before
        fenced = outcomes(cluster, "fenced")
        assert sum(fenced[:2]) >= 2, "each of the pushes; the first refusal cancels the rest of one"
        assert sum(fenced[2:]) >= 1
        successor.train(range(2, 4), after=after)


def test_another_rank_goes_on_with_the_partition() -> None:
    with PsCluster(sparse=2, dense=1, trainers=2) as cluster:
        first, other = Trainer(cluster, rank=0), Trainer(cluster, rank=1, incarnation=1)
        first.claim()
        first.push_rows(1, 0)
        partitions = claim(
            other.sparse, other.dense, [PositionEntry(partition="clicks-0", major=0, minor=0)]
        ).partitions
        assert partitions["clicks-0"].position.major == 0, "no block has seen the range"
        assert partitions["clicks-0"].cuts == ((1, 0),)
        assert other.push_rows(1, 0) == 2
        assert other.push_rows(2, 1) == 0
        with pytest.raises(Conflict, match="clicks-0 belongs to incarnation 1, 0 calls"):
            first.push_rows(2, 2)


def test_a_partition_that_is_claimed_while_its_push_waits_spoils_nobodys_step() -> None:
    """Rank 0's dense gradient waits in the barrier when rank 1 takes the partition."""
    with PsCluster(sparse=1, dense=1, trainers=2) as cluster, ThreadPoolExecutor(2) as pool:
        first = Trainer(cluster, rank=0)
        other = Trainer(cluster, rank=1, incarnation=1, partition="clicks-1")
        first.claim(), other.claim()
        waiting = pool.submit(first.push_dense, 1, 0)
        pace = cluster.dense[0].servicer._pace
        assert isinstance(pace, Together)
        while not pace._barrier._arrived:
            assert not waiting.done()
        other.partition = "clicks-0"
        assert other.claim().step == 0
        other.push_dense(1, 0)
        waiting.result(WAIT)
        assert outcomes(cluster, "applied") == [0.0, 1.0]
        assert outcomes(cluster, "fenced") == [0.0, 1.0]


def test_rows_may_be_neither_left_out_nor_split() -> None:
    with PsCluster(sparse=2, dense=2) as cluster:
        trainer = Trainer(cluster)
        trainer.claim()
        trainer.step(1, 0)
        before = state_of(cluster)
        with pytest.raises(Conflict, match="leaves out rows"):
            trainer.push_rows(2, 3)
        with pytest.raises(Conflict, match="leaves out rows"):
            trainer.push_dense(2, 3)
        assert state_of(cluster) == before
        trainer.step(2, 1)


def test_survivors_go_on_and_the_successor_joins_them_at_a_step() -> None:
    """Rank 1 dies in step 3, in which rank 0 has reached one block only."""
    with PsCluster(sparse=2, dense=2, trainers=2) as cluster, ThreadPoolExecutor(4) as pool:
        survivor = Trainer(cluster, rank=0, partition="clicks-0")
        dead = Trainer(cluster, rank=1, partition="clicks-1")
        survivor.claim(), dead.claim()
        both = [pool.submit(t.train, range(2)) for t in (survivor, dead)]
        assert [b.result(WAIT) for b in both] == [None, None]
        dead.dies_after_reaching(shards={0}, blocks={0})
        under_way = pool.submit(kill_in_step, dead, 3, 2)
        on = pool.submit(survivor.train, range(2, 5), after=2)
        under_way.result(WAIT)
        for shard, block in zip(cluster.sparse, cluster.dense, strict=True):
            shard.servicer.expel(1, 1)  # as the gateway's word reaches them
            block.servicer.expel(1, 1)
        on.result(WAIT)
        assert survivor.dense.trainers() == 2, "the dead one's data is not finished"

        successor = Trainer(cluster, rank=1, incarnation=1, partition="clicks-1")
        claimed = successor.claim()
        assert claimed.step == 5
        assert claimed.partitions["clicks-1"].position.major == 2
        assert claimed.partitions["clicks-1"].cuts == ((3, 0),)
        both = [
            pool.submit(survivor.train, range(5, 8), after=5),
            pool.submit(successor.train, range(2, 5), after=5),
        ]
        assert [b.result(WAIT) for b in both] == [None, None]
        assert outcomes(cluster, "duplicate") == [1.0, 0.0, 1.0, 0.0]
        assert outcomes(cluster, "applied") == [8.0 + 5.0] * 4


def test_in_async_a_successor_waits_for_nobody_and_the_dead_are_fenced() -> None:
    """Rank 0 takes four steps, dies and is replaced, while rank 1 stands at its first."""
    with PsCluster(sparse=2, dense=2, trainers=2, pace=Pace.ON_ARRIVAL) as cluster:
        slow = Trainer(cluster, rank=1, partition="clicks-1")
        slow.claim()
        slow.step(1, 0)
        dead = Trainer(cluster, rank=0, partition="clicks-0")
        assert dead.claim().step == 0, "a first incarnation begins at its own step 1"
        dead.train(range(4))
        for block in cluster.dense:
            block.servicer.expel(0, 1)  # as the gateway's word reaches it
        successor = Trainer(cluster, rank=0, incarnation=1, partition="clicks-0")
        claimed = successor.claim()
        assert claimed.step == 4, "schedules go on"
        assert claimed.partitions["clicks-0"].position.major == 4
        for late in (lambda: dead.push_dense(5, 4), lambda: dead.push_rows(5, 4)):
            with pytest.raises(Conflict, match="incarnation"):
                late()
        successor.train(range(4, 6), after=4)
        with pytest.raises(Conflict, match="leaves out rows"):
            successor.push_dense(7, 7)
        slow.step(2, 1)
        assert outcomes(cluster, "applied") == [8.0] * 4
        assert outcomes(cluster, "duplicate") == [0.0] * 4


def test_a_checkpoint_holds_the_table_and_a_restore_gives_it_back(tmp_path: Path) -> None:
    with PsCluster(sparse=3, dense=2) as cluster:
        trainer = Trainer(cluster)
        trainer.claim()
        trainer.train(range(4))
        uri = cluster.snapshot(tmp_path / "000001")
    saved = manifests.read(Storage(), uri)
    assert [(p.partition, p.major, p.end) for p in saved.positions] == [("clicks-0", 4, 8)]
    with PsCluster(sparse=2, dense=1, restore=uri, generation=2) as cluster:
        trainer = Trainer(cluster)
        claimed = trainer.claim().partitions["clicks-0"]
        assert (claimed.position.major, claimed.position.end, claimed.samples) == (4, 8, 0)
        before = state_of(cluster)
        assert trainer.push_rows(1, 3) == 2, "those rows are in the checkpoint"
        assert state_of(cluster) == before
        assert trainer.push_rows(2, 4) == 0


def test_positions_that_the_files_contradict_are_damage(tmp_path: Path) -> None:
    with PsCluster(sparse=1, dense=1) as cluster:
        trainer = Trainer(cluster)
        trainer.claim()
        trainer.train(range(2))
        uri = cluster.snapshot(tmp_path / "000001")
    saved = manifests.read(Storage(), uri)
    earlier = saved.positions[0].model_copy(update={"major": 1})
    forged = saved.model_copy(update={"positions": (earlier,)})
    manifests.write(Storage(), manifests.folder_of(uri), forged)
    with PsCluster(sparse=1, dense=1, restore=uri, generation=2) as cluster:
        client, dense = cluster.sparse_client(), cluster.dense_client()
        with pytest.raises(Damaged, match=r"holds clicks-0 up to \(2, 0\), its manifest"):
            client.configure(TABLES, 3)
        with pytest.raises(Damaged, match="holds clicks-0"):
            dense.configure("adam", ADAM, INITIAL)
