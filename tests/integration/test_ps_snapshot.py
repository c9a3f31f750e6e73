"""Snapshot, and restore into any number of shards and blocks; every damage and mismatch refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from ps_service import _native
from ps_service.tables import TableSpec, table_spec
from services.api import manifest as manifests
from services.api.optimizers import OptimizerSpec
from services.kit.errors import Damaged, InvalidInput
from services.kit.storage import Storage
from tests.fixtures.ps_batches import EXTREME_KEYS, TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

ADAM = {**_native.OPTIMIZERS["adam"], "lr": 0.05}
PARAMETERS = 11
FRESH = np.full(PARAMETERS, 7, dtype=np.float32)


def configure(cluster: PsCluster, tables: list[TableSpec] = TABLES) -> tuple[int, np.ndarray]:
    """Rows restored and dense values that hold."""
    rows = cluster.sparse_client().configure(tables, 3)
    return rows, cluster.dense_client().configure("adam", ADAM, FRESH)


def train(cluster: PsCluster, seeds: range) -> None:
    sparse, dense = cluster.sparse_client(), cluster.dense_client()
    sparse.configure(TABLES, 3)
    dense.configure("adam", ADAM, FRESH)
    for step, seed in enumerate(seeds, start=1):
        batch = random_batch(seed, 8)
        keys = plan(cluster.shard_map, batch)
        sparse.pull(keys, step=step)
        sparse.push(keys, keys.scatter(batch.grads), step=step, read_step=step, samples=8)
        dense.push(batch.dense, step=step, samples=8, pause=False)


def rows(cluster: PsCluster) -> list[bytes]:
    """All partitions, each from its owner; no other shard may hold any of it."""
    blocks = cluster.rows()
    alone = _native.SparseShard([t.native() for t in TABLES], partitions=64, seed=0)
    assert sum(alone.load_partition(b) for b in blocks) == sum(
        int(s.rows().sum()) for s in cluster.shards()
    )
    return blocks


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> tuple[str, list[bytes], np.ndarray]:
    """Manifest URI of 3 shards and 2 blocks after 6 steps; rows and dense values of that moment."""
    folder = tmp_path_factory.mktemp("ckpt") / "000001"
    with PsCluster(sparse=3, dense=2) as cluster:
        train(cluster, range(6))
        return cluster.snapshot(folder), rows(cluster), cluster.dense_values()


def copy(uri: str, target: Path) -> tuple[str, Path]:
    """A copy of the checkpoint that a test may damage: manifest URI and folder."""
    source = Path(uri.removeprefix("file://")).parent
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return f"file://{target}/manifest.json", target


@pytest.mark.parametrize(("sparse", "dense"), [(3, 2), (1, 1), (2, 3), (5, 12), (70, 1)])
def test_restore_into_other_counts_gives_identical_rows(
    checkpoint, sparse: int, dense: int
) -> None:
    uri, stored_rows, stored_values = checkpoint
    with PsCluster(sparse=sparse, dense=dense, restore=uri, generation=2) as cluster:
        restored, values = configure(cluster)
        assert restored == sum(s.servicer.status()["rows"] for s in cluster.sparse) > 40
        assert rows(cluster) == stored_rows
        np.testing.assert_array_equal(values, stored_values)
        assert configure(cluster)[0] == restored, "a second trainer hears the same"


def test_training_goes_on_as_if_never_stopped(checkpoint, tmp_path: Path) -> None:
    """Optimizer state is restored too: the next steps give the bits of an undisturbed run."""
    uri, _, _ = checkpoint
    with PsCluster(sparse=1, dense=1) as undisturbed:
        train(undisturbed, range(9))
        expected = rows(undisturbed), undisturbed.dense_values().tobytes()
    with PsCluster(sparse=4, dense=3, restore=uri, generation=2) as cluster:
        train(cluster, range(6, 9))
        assert (rows(cluster), cluster.dense_values().tobytes()) == expected
        assert {s.servicer.status()["version"] for s in cluster.dense} == {9}
        again = cluster.snapshot(tmp_path / "000002")
    with PsCluster(sparse=2, dense=2, restore=again, generation=3) as cluster:
        configure(cluster)
        assert (rows(cluster), cluster.dense_values().tobytes()) == expected


def test_extreme_keys_survive(checkpoint) -> None:
    with PsCluster(sparse=2, restore=checkpoint[0]) as cluster:
        configure(cluster)
        held = np.concatenate([s.export_rows(0)[0] for s in cluster.shards()])
        assert held.min() == 0
        assert held.max() == 2**64 - 1
        everything = np.concatenate(
            [s.export_rows(t)[0] for s in cluster.shards() for t in range(3)]
        )
        assert set(EXTREME_KEYS) <= set(everything.tolist())


def test_changed_hyper_parameters_are_taken_from_the_job(checkpoint) -> None:
    faster = [
        dataclasses.replace(t, optimizer_params={**t.optimizer_params, "lr": 1.0}) for t in TABLES
    ]
    uri, stored_rows, stored_values = checkpoint
    with PsCluster(sparse=2, dense=2, restore=uri) as cluster:
        cluster.sparse_client().configure(faster, 3)
        dense = cluster.dense_client()
        dense.configure("adam", {**ADAM, "lr": 1.0}, FRESH)
        assert rows(cluster) == stored_rows
        step = dense.push(np.ones(PARAMETERS, np.float32), step=1, samples=1, pause=False)
        assert np.abs(step.values - stored_values).max() > 0.3


def test_snapshot_says_what_it_wrote(checkpoint) -> None:
    manifest = json.loads(Storage().read(checkpoint[0]))["manifest"]
    folder = Path(checkpoint[0].removeprefix("file://")).parent
    for entry in (*manifest["sparse"], *manifest["dense"]):
        data = (folder / entry["name"]).read_bytes()
        assert (len(data), _native.crc32c(data)) == (entry["bytes"], entry["crc32c"])
    assert [e["rows"] for e in manifest["dense"]] == [[6], [5]]
    assert all(len(e["rows"]) == 3 for e in manifest["sparse"])


def test_empty_shards_can_be_written_and_read(tmp_path: Path) -> None:
    with PsCluster(sparse=2) as cluster:
        configure(cluster)
        uri = cluster.snapshot(tmp_path / "000001")
    with PsCluster(sparse=3, restore=uri) as cluster:
        assert configure(cluster)[0] == 0


@pytest.mark.parametrize("name", ["sparse-000.emb", "sparse-001.emb", "sparse-002.emb"])
def test_flipped_byte_in_a_sparse_file_is_refused_by_name(checkpoint, tmp_path, name) -> None:
    uri, folder = copy(checkpoint[0], tmp_path / "c")
    data = (folder / name).read_bytes()
    for position in range(3, len(data), len(data) // 12):
        (folder / name).write_bytes(
            data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
        )
        with (
            PsCluster(sparse=2, restore=uri) as cluster,
            pytest.raises(Damaged, match=f"{name} is damaged"),
        ):
            cluster.sparse_client().configure(TABLES, 3)


def test_flipped_byte_in_a_dense_file_is_refused_by_name(checkpoint, tmp_path) -> None:
    uri, folder = copy(checkpoint[0], tmp_path / "c")
    path = folder / "dense-001.emb"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with (
        PsCluster(dense=1, restore=uri) as cluster,
        pytest.raises(Damaged, match=r"dense-001\.emb is damaged"),
    ):
        cluster.dense_client().configure("adam", ADAM, FRESH)


def test_flipped_byte_in_the_manifest_is_refused(checkpoint, tmp_path) -> None:
    uri, folder = copy(checkpoint[0], tmp_path / "c")
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"partitions": 64', b'"partitions": 32'))
    with (
        PsCluster(restore=uri) as cluster,
        pytest.raises(Damaged, match=r"manifest\.json.*checksum"),
    ):
        cluster.sparse_client().configure(TABLES, 3)


def test_dense_files_in_another_order_are_refused(checkpoint, tmp_path) -> None:
    uri, folder = copy(checkpoint[0], tmp_path / "c")
    storage = Storage()
    manifest = manifests.read(storage, uri)
    swapped = manifest.model_copy(update={"dense": manifest.dense[::-1]})
    manifests.write(storage, f"file://{folder}", swapped)
    with (
        PsCluster(restore=uri) as cluster,
        pytest.raises(Damaged, match=r"dense-001\.emb is damaged: it begins at parameter 6, not 0"),
    ):
        cluster.dense_client().configure("adam", ADAM, FRESH)


def test_missing_file_is_named_and_the_server_stays_usable(checkpoint, tmp_path) -> None:
    uri, folder = copy(checkpoint[0], tmp_path / "c")
    content = (folder / "sparse-001.emb").read_bytes()
    (folder / "sparse-001.emb").unlink()
    with PsCluster(sparse=1, restore=uri) as cluster:
        client = cluster.sparse_client()
        with pytest.raises(Damaged, match=r"sparse-001\.emb is named by the manifest but missing"):
            client.configure(TABLES, 3)
        assert cluster.sparse[0].servicer.status()["configured"] is False
        (folder / "sparse-001.emb").write_bytes(content)
        assert client.configure(TABLES, 3) > 40


SGD = OptimizerSpec(name="sgd")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            [dataclasses.replace(TABLES[0], dim=8), *TABLES[1:]],
            "table 'users' has dim 4, the job wants 8",
        ),
        (
            [TABLES[0], table_spec("items", 2, SGD, None), TABLES[2]],
            "table 'items' has optimizer 'adam', the job wants 'sgd'",
        ),
        (TABLES[:2], r"stored tables are \['users', 'items', 'hours'\], the job wants \['users',"),
        ([TABLES[1], TABLES[0], TABLES[2]], "'items' is the first that differs"),
    ],
)
def test_other_tables_are_refused_by_name(checkpoint, tables, message) -> None:
    with (
        PsCluster(sparse=2, restore=checkpoint[0]) as cluster,
        pytest.raises(InvalidInput, match=message),
    ):
        cluster.sparse_client().configure(tables, 3)


def test_other_partition_count_is_refused(checkpoint) -> None:
    with (
        PsCluster(restore=checkpoint[0], partitions=32) as cluster,
        pytest.raises(InvalidInput, match="has 64 partitions, the job has 32"),
    ):
        cluster.sparse_client().configure(TABLES, 3)


@pytest.mark.parametrize("size", [9, 10, 12, 40])
@pytest.mark.parametrize("blocks", [1, 3])
def test_other_number_of_dense_parameters_is_refused(checkpoint, size: int, blocks: int) -> None:
    with (
        PsCluster(dense=blocks, restore=checkpoint[0]) as cluster,
        pytest.raises(InvalidInput, match=r"has 11 dense parameters, the job's model has"),
    ):
        cluster.dense_client().configure("adam", ADAM, np.zeros(size, np.float32))


def test_other_dense_optimizer_is_refused(checkpoint) -> None:
    with (
        PsCluster(restore=checkpoint[0]) as cluster,
        pytest.raises(InvalidInput, match="dense optimizer is 'adam', the job wants 'sgd'"),
    ):
        cluster.dense_client().configure("sgd", {"lr": 0.1}, FRESH)


def test_s3_works_like_files(s3) -> None:
    """Whole writes and ranged reads against an S3-compatible server."""
    storage = Storage({"s3": s3.options})
    with PsCluster(sparse=2, dense=1, storage=storage) as cluster:
        train(cluster, range(3))
        uri = cluster.snapshot(f"{s3.url}/job/000001")
        expected = rows(cluster), cluster.dense_values().tobytes()
    with PsCluster(sparse=3, dense=2, restore=uri, storage=storage) as cluster:
        configure(cluster)
        assert (rows(cluster), cluster.dense_values().tobytes()) == expected
