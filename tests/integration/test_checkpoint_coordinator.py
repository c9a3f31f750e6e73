"""One checkpoint over real gRPC and a real Redis: the good path, every failure path, restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from services.api import manifest as manifests
from services.checkpoint.fleet import NotRunning
from services.kit.discovery import Member, Registry, Role
from services.kit.errors import (
    Conflict,
    DeadlineExceeded,
    EmbermeshError,
    InvalidInput,
    Unavailable,
)
from services.kit.storage import Storage
from services.wire import trainer_pb2
from tests.fakes.fleet import FakeFleet, make_run, running
from tests.fixtures.checkpoint_bench import JOB, SETTINGS, Bench
from tests.fixtures.s3 import S3


@pytest.fixture
def bench(redis_db: redis.Redis, tmp_path: Path) -> Bench:
    return Bench(Registry(redis_db), tmp_path)


@pytest.fixture
def fleet(bench: Bench) -> Iterator[FakeFleet]:
    with running(make_run(bench.to, keep=2), bench.registry, bench.storage) as fleet:
        yield fleet


def test_a_checkpoint_names_one_instant(bench: Bench, fleet: FakeFleet) -> None:
    taken = bench.coordinator.take(JOB, 1, 0)

    manifest = manifests.read(bench.storage, taken.uri)
    assert (manifest.job, manifest.id, manifest.generation) == (JOB, "000001", 1)
    assert (manifest.step, manifest.samples, manifest.partitions) == (20, 2001, 16)
    assert manifest.spec == fleet.run.spec
    assert [f.name for f in manifest.sparse] == ["sparse-000.emb", "sparse-001.emb"]
    assert [f.name for f in manifest.dense] == ["dense-000.emb"]
    assert [f.rows for f in manifest.sparse] == [(10, 1), (11, 1)]
    assert manifest.total_rows == taken.rows == 23
    assert (
        manifest.total_bytes
        == taken.bytes
        == sum(len(shard.content) for shard in (*fleet.sparse, *fleet.dense))
    )
    assert [p.partition for p in manifest.positions] == [f"lane-{i:02d}" for i in range(6)]
    assert [p.minor for p in manifest.positions] == list(range(60, 66))
    for entry, shard in zip(manifest.sparse, fleet.sparse, strict=True):
        assert (bench.folder / "000001" / entry.name).read_bytes() == shard.content
    assert bench.registry.latest_checkpoint(JOB) == taken
    assert [kind for kind, _ in bench.events()] == ["checkpoint"]
    assert bench.samples.get_sample_value("embermesh_checkpoint_bytes", {"job": JOB}) == taken.bytes
    age = bench.samples.get_sample_value(
        "embermesh_checkpoint_last_success_timestamp_seconds", {"job": JOB}
    )
    assert age == taken.created


def test_every_process_is_asked_under_the_run_of_the_job(bench: Bench, fleet: FakeFleet) -> None:
    bench.coordinator.take(JOB, 1, 0)
    for trainer in fleet.trainers:
        assert len(trainer.paused) == 1
        assert trainer.resumed == trainer.paused
        assert trainer.hold_seconds == SETTINGS.hold_seconds
    assert fleet.trainers[0].paused == fleet.trainers[1].paused
    for shard in (*fleet.sparse, *fleet.dense):
        assert [(c.generation, c.epoch) for c in shard.callers] == [(1, 4)] * 2
        assert shard.begun == shard.written
        assert shard.dropped == []


def test_snapshots_wait_until_all_trainers_stand_still(bench: Bench, fleet: FakeFleet) -> None:
    fleet.trainers[1].gate.clear()
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(bench.coordinator.take, JOB, 1, 0)
        wait_for(lambda: all(t.paused for t in fleet.trainers))
        assert not any(shard.callers for shard in (*fleet.sparse, *fleet.dense))
        fleet.trainers[1].gate.set()
        taking.result(5)
    assert all(shard.callers for shard in (*fleet.sparse, *fleet.dense))


def test_ids_go_on_after_a_restart_of_the_service(bench: Bench, fleet: FakeFleet) -> None:
    assert bench.coordinator.take(JOB, 1, 0).id == "000001"
    (bench.folder / "000006").mkdir()  # a crash left it without manifest
    assert bench.make().take(JOB, 1, 0).id == "000007"
    assert bench.make().take(JOB, 1, 0).id == "000008"


def test_retention_keeps_the_newest_complete_ones(bench: Bench, fleet: FakeFleet) -> None:
    for _ in range(4):
        bench.coordinator.take(JOB, 1, 0)
    assert bench.folders() == ["000003", "000004"]
    assert [c.id for c in bench.coordinator.complete(JOB, "")] == ["000003", "000004"]


def test_retention_spares_what_the_run_restores_from(bench: Bench, fleet: FakeFleet) -> None:
    first = bench.coordinator.take(JOB, 1, 0)
    bench.registry.publish_run(replace(fleet.run, restore=first.uri))
    for _ in range(3):
        bench.coordinator.take(JOB, 1, 0)
    assert bench.folders() == ["000001", "000003", "000004"]


def test_deltas_between_whole_checkpoints(
    bench: Bench, fleet: FakeFleet, redis_db: redis.Redis
) -> None:
    bench.registry.publish_run(make_run(bench.to, keep=9, deltas=2))
    bases = []
    for attempt in range(6):
        fleet.sparse[1].forgetful = attempt == 5
        taken = bench.coordinator.take(JOB, 1, 0)
        bases.append(manifests.read(bench.storage, taken.uri).base)
    assert bases == ["", "000001", "000002", "", "000004", ""]
    assert fleet.sparse[1].since == [None, 1, 2, None, 4, None]
    assert fleet.dense[0].since[:5] == [None, 1, 2, None, 4], "the dense blocks do not care"
    assert bench.folders() == [f"{i:06d}" for i in range(1, 7)]


def fail_pause(fleet: FakeFleet) -> None:
    fleet.trainers[0].pause_error = Conflict("another pause is under way")


def fail_disk(fleet: FakeFleet) -> None:
    fleet.sparse[1].error = Unavailable("can't write sparse-001.emb: No space left on device")


def fail_begin(fleet: FakeFleet) -> None:
    fleet.sparse[0].begin_error = Conflict("another one is in the making")


def fail_dense(fleet: FakeFleet) -> None:
    fleet.dense[0].error = RuntimeError("a bug")


def fail_hold(fleet: FakeFleet) -> None:
    fleet.trainers[1].held = False


def fail_hidden(fleet: FakeFleet) -> None:
    fleet.sparse[0].hidden = True


def fail_positions(fleet: FakeFleet) -> None:
    fleet.trainers[1].stand = fleet.trainers[0].stand


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        (fail_pause, Conflict, "trainer 0 at .*another pause"),
        (fail_begin, Conflict, "sparse-ps 0 at .*another one is in the making"),
        (fail_disk, Unavailable, "sparse-ps 1 at .*No space left"),
        (fail_dense, EmbermeshError, "dense-ps 0 at .*RuntimeError: a bug"),
        (fail_hold, DeadlineExceeded, "trainer 1 at .*went on before"),
        (fail_hidden, InvalidInput, "checkpoint.to: .*sparse-000.emb.*share"),
        (fail_positions, Conflict, "trainers 0 and 1 both read partition 'lane-00'"),
    ],
)
def test_a_failed_checkpoint_leaves_everything_as_it_was(
    bench: Bench,
    fleet: FakeFleet,
    script: Callable[[FakeFleet], None],
    kind: type[EmbermeshError],
    words: str,
) -> None:
    older = bench.coordinator.take(JOB, 1, 0)
    script(fleet)

    with pytest.raises(kind, match=words):
        bench.make(pause_seconds=2).take(JOB, 1, 0)

    assert all(t.resumed[-1:] == t.paused[-1:] for t in fleet.trainers if len(t.paused) > 1)
    assert all(len(t.resumed) == 2 for t in fleet.trainers)
    assert bench.folders() == ["000001"]
    assert bench.registry.latest_checkpoint(JOB) == older
    assert manifests.read(bench.storage, older.uri).id == older.id
    assert bench.failures() == 1
    for shard in (*fleet.sparse, *fleet.dense):
        held = set(shard.begun) - set(shard.written)
        assert held <= set(shard.dropped), "what was begun and not written is dropped"
    kinds = [kind for kind, _ in bench.events()]
    assert kinds == ["checkpoint", "checkpoint-failed"]


def test_a_trainer_that_does_not_answer_is_named_in_time(bench: Bench, fleet: FakeFleet) -> None:
    fleet.trainers[1].gate.clear()
    start = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"trainer 1 at .*no answer within 0\.4 s"):
        bench.make(pause_seconds=0.4).take(JOB, 1, 0)
    assert time.monotonic() - start < 3
    assert [len(t.resumed) for t in fleet.trainers] == [1, 1]
    assert bench.folders() == []


def test_a_snapshot_must_begin_within_the_hold(bench: Bench, fleet: FakeFleet) -> None:
    release = threading.Event()
    fleet.sparse[0].before_begin = lambda: void(release.wait(5))
    try:
        with pytest.raises(DeadlineExceeded, match=r"sparse-ps 0 at .*no answer within 1 s"):
            bench.make(hold_seconds=1).take(JOB, 1, 0)
    finally:
        release.set()
    assert [len(t.resumed) for t in fleet.trainers] == [1, 1]


def test_files_are_written_while_the_trainers_go_on(bench: Bench, fleet: FakeFleet) -> None:
    release = threading.Event()
    fleet.sparse[0].before = lambda: void(release.wait(5))
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(bench.coordinator.take, JOB, 1, 0)
        wait_for(lambda: all(t.resumed for t in fleet.trainers))
        assert not taking.done()
        assert bench.registry.latest_checkpoint(JOB) is None
        release.set()
        assert bench.registry.latest_checkpoint(JOB) in (None, taking.result(5))


def test_files_must_be_written_in_time(bench: Bench, fleet: FakeFleet) -> None:
    release = threading.Event()
    fleet.sparse[0].before = lambda: void(release.wait(5))
    try:
        with pytest.raises(DeadlineExceeded, match=r"sparse-ps 0 at .*no answer within 0\.5 s"):
            bench.make(write_seconds=0.5).take(JOB, 1, 0)
    finally:
        release.set()
    assert [len(t.resumed) for t in fleet.trainers] == [1, 1]
    assert all(shard.dropped for shard in (*fleet.sparse, *fleet.dense))
    assert bench.folders() == []


def test_dense_blocks_of_two_instants_are_refused(
    bench: Bench, fleet: FakeFleet, redis_db: redis.Redis
) -> None:
    spec = {**fleet.run.spec, "resources": {"sparse_ps": 1, "dense_ps": 2, "trainers": 2}}
    two = replace(fleet.run, job="two-ab", spec=spec, owners=[0] * 16)
    with running(two, bench.registry, bench.storage) as other:
        # The second block is the first fleet's server: the same verb at another version.
        fleet.dense[0].version = other.dense[0].version + 1
        (member,) = (m for m in bench.registry.members(JOB, 1) if m.role == Role.DENSE_PS)
        bench.registry.announce(replace(member, job="two-ab", rank=1), lease_seconds=60)
        with pytest.raises(Conflict, match=r"dense blocks are at versions \[40, 41\]"):
            bench.coordinator.take("two-ab", 1, 0)


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_rows_that_a_server_holds_beyond_the_positions_are_no_instant(
    bench: Bench, fleet: FakeFleet, kind: str
) -> None:
    stand = fleet.trainers[0].stand.positions[0]
    for shard in (*fleet.sparse, *fleet.dense):
        shard.applied = [stand]
    assert bench.coordinator.take(JOB, 1, 0).id == "000001"
    ahead = trainer_pb2.Position()
    ahead.CopyFrom(stand)
    ahead.minor += 60
    (fleet.sparse if kind == "sparse" else fleet.dense)[-1].applied = [ahead]
    with pytest.raises(Conflict, match=rf"{kind}-ps .* has applied {stand.partition} up to"):
        bench.coordinator.take(JOB, 1, 0)
    assert bench.folders() == ["000001"]
    assert len(fleet.trainers[0].resumed) == 2, "the trainers go on"


def test_a_manifest_that_cannot_be_written_is_a_failed_checkpoint(
    bench: Bench, fleet: FakeFleet
) -> None:
    class FullDisk(Storage):
        def put(self, uri: str, data: bytes) -> None:
            raise Unavailable(f"can't write {uri}: No space left on device")

    with pytest.raises(Unavailable, match=r"manifest\.json: No space left"):
        bench.make(FullDisk()).take(JOB, 1, 0)
    assert bench.folders() == []
    assert bench.failures() == 1


def test_a_generation_that_ends_meanwhile_gets_no_manifest(bench: Bench, fleet: FakeFleet) -> None:
    newer = replace(fleet.run, generation=2)
    fleet.dense[0].before = lambda: bench.registry.publish_run(newer)
    with pytest.raises(Conflict, match="is at generation 2, not 1"):
        bench.coordinator.take(JOB, 1, 0)
    assert bench.folders() == []
    assert bench.registry.latest_checkpoint(JOB) is None


def test_nothing_begins_for_a_job_that_cannot_be_checkpointed(
    bench: Bench, fleet: FakeFleet
) -> None:
    with pytest.raises(Conflict, match="is at generation 1, not 7"):
        bench.coordinator.take(JOB, 7, 0)
    bench.registry.withdraw(Member(JOB, 1, Role.TRAINER, 1))
    with pytest.raises(NotRunning, match="not ready: trainer 1"):
        bench.coordinator.take(JOB, 1, 0)
    plain = {k: v for k, v in fleet.run.spec.items() if k != "checkpoint"}
    bench.registry.publish_run(replace(fleet.run, spec=plain))
    with pytest.raises(Conflict, match="no checkpoint section"):
        bench.coordinator.take(JOB, 1, 0)
    bench.registry.publish_run(replace(fleet.run, active=False))
    with pytest.raises(Conflict, match="is over"):
        bench.coordinator.take(JOB, 1, 0)
    assert not any(trainer.paused for trainer in fleet.trainers)
    assert bench.events() == []
    assert bench.failures() is None


def test_one_at_a_time_the_second_waits_its_turn(bench: Bench, fleet: FakeFleet) -> None:
    fleet.trainers[0].gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(bench.coordinator.take, JOB, 1, 0)
        wait_for(lambda: bool(fleet.trainers[0].paused))
        with pytest.raises(DeadlineExceeded, match="another checkpoint was still in the making"):
            bench.coordinator.take(JOB, 1, 0.05)
        second = pool.submit(bench.coordinator.take, JOB, 1, 5)
        time.sleep(0.1)
        assert len(fleet.trainers[0].paused) == 1
        fleet.trainers[0].gate.set()
        assert (first.result(5).id, second.result(5).id) == ("000001", "000002")


def test_a_stopping_service_lets_the_trainers_go_on(bench: Bench, fleet: FakeFleet) -> None:
    fleet.trainers[0].gate.clear()
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(bench.coordinator.take, JOB, 1, 0)
        wait_for(lambda: bool(fleet.trainers[0].paused))
        bench.stop.set()
        with pytest.raises(Unavailable, match="stopping"):
            taking.result(5)
    assert [len(t.resumed) for t in fleet.trainers] == [1, 1]
    assert bench.folders() == []


def test_checkpoints_in_s3(
    redis_db: redis.Redis, tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a process would get them: from the standard variables.
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret"])
    bench = Bench(Registry(redis_db), tmp_path)
    to = f"{s3.url}/models"
    with running(make_run(to, keep=1), bench.registry, bench.storage) as fleet:
        bench.coordinator.take(JOB, 1, 0)
        newest = bench.coordinator.take(JOB, 1, 0)
        fail_disk(fleet)
        with pytest.raises(Unavailable):
            bench.coordinator.take(JOB, 1, 0)
    assert newest.uri == f"{to}/{JOB}/000002/manifest.json"
    assert bench.storage.list(f"{to}/{JOB}") == ["000002"]
    manifest = manifests.read(Storage({"s3": s3.options}), newest.uri)
    assert bench.storage.read(f"{to}/{JOB}/000002/{manifest.sparse[1].name}") == b"shard 1"


def void(_: object) -> None:
    """Makes a statement of an expression."""


def wait_for(condition: Callable[[], bool], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
