"""A checkpoint and the deltas upon it: together the whole content, and never in any other order."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ps_service import _native
from services.api import manifest as manifests
from services.kit.errors import Damaged
from services.kit.storage import Storage
from tests.fixtures.ps_batches import TABLES, plan, random_batch
from tests.fixtures.ps_cluster import PsCluster

ADAM = {**_native.OPTIMIZERS["adam"], "lr": 0.05}
VALUES = np.arange(5, dtype=np.float32)


def configure(cluster: PsCluster) -> int:
    cluster.dense_client().configure("adam", ADAM, VALUES)
    return cluster.sparse_client().configure(TABLES, 3)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> tuple[Path, list[list[bytes]]]:
    """Folder of checkpoints 1 (whole), 2 and 3 (deltas) of two shards; rows of each moment."""
    folder = tmp_path_factory.mktemp("chain")
    moments = []
    with PsCluster(sparse=2) as cluster:
        sparse, dense = cluster.sparse_client(), cluster.dense_client()
        sparse.configure(TABLES, 3)
        dense.configure("adam", ADAM, VALUES)
        for number in (1, 2, 3):
            batch = random_batch(number, 64 if number == 1 else 2)
            keys = plan(cluster.shard_map, batch)
            sparse.pull(keys, step=number)
            sparse.push(keys, keys.scatter(batch.grads), step=number, read_step=number, samples=8)
            cluster.snapshot(folder / f"{number:06d}", number, number - 1 if number > 1 else None)
            moments.append(cluster.rows())
    return folder, moments


def restore(folder: Path, number: int, shards: int = 1) -> list[bytes]:
    """Rows after a restore of checkpoint `number`."""
    uri = f"file://{folder}/{number:06d}/manifest.json"
    with PsCluster(sparse=shards, restore=uri, generation=2) as cluster:
        rows = configure(cluster)
        assert rows == sum(int(s.rows().sum()) for s in cluster.shards())
        return cluster.rows()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_base_and_deltas_restore_every_moment(chain, number: int, shards: int) -> None:
    folder, moments = chain
    assert restore(folder, number, shards) == moments[number - 1]


def test_a_delta_is_smaller_than_the_whole(chain) -> None:
    sizes = [sum(f.stat().st_size for f in (chain[0] / n).glob("sparse-*")) for n in IDS]
    assert max(sizes[1:]) < sizes[0] * 2 / 3  # headers are half of files this small


IDS = ("000001", "000002", "000003")


def copy(chain, tmp_path: Path) -> Path:
    shutil.copytree(chain[0], tmp_path / "c")
    return tmp_path / "c"


def change(folder: Path, number: int, **fields: object) -> None:
    """Rewrites the manifest of a checkpoint with other fields, its checksum made good."""
    to = f"file://{folder}/{number:06d}"
    stored = manifests.read(Storage(), f"{to}/manifest.json")
    manifests.write(Storage(), to, stored.model_copy(update=fields))


def test_a_missing_increment_is_named(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    shutil.rmtree(folder / "000002")
    with pytest.raises(Damaged, match=r"000003/manifest\.json is a delta of checkpoint 000002: .*"):
        restore(folder, 3)


def test_a_skipped_increment_is_named(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    change(folder, 3, base="000001")
    with pytest.raises(
        Damaged, match=r"000003/sparse-000\.emb is snapshot 3 since 2, .* wants 3 since 1"
    ):
        restore(folder, 3)


def test_a_repeated_increment_is_named(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    shutil.rmtree(folder / "000003")
    shutil.copytree(folder / "000002", folder / "000003")
    change(folder, 3, id="000003", base="000002")
    with pytest.raises(Damaged, match=r"000003/sparse-000\.emb is snapshot 2 since 1"):
        restore(folder, 3)


def test_increments_out_of_order_are_named(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    change(folder, 2, base="000003")
    with pytest.raises(
        Damaged, match=r"000002/manifest\.json is a delta of checkpoint 000003, but"
    ):
        restore(folder, 2)


def test_a_delta_alone_is_not_a_whole_checkpoint(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    change(folder, 2, base="")
    with pytest.raises(Damaged, match=r"000002/sparse-000\.emb is snapshot 2 since 1"):
        restore(folder, 2)


def test_a_base_of_another_job_is_refused(chain, tmp_path: Path) -> None:
    folder = copy(chain, tmp_path)
    change(folder, 1, job="other")
    with pytest.raises(Damaged, match="is of job other"):
        restore(folder, 2)


def test_whole_manifests_are_spelled_as_before(chain) -> None:
    body = json.loads((chain[0] / "000001" / "manifest.json").read_bytes())["manifest"]
    assert "base" not in body


def test_a_restored_server_knows_no_changes(chain, tmp_path: Path) -> None:
    uri = f"file://{chain[0]}/000003/manifest.json"
    with PsCluster(sparse=1, restore=uri) as cluster:
        configure(cluster)
        shard = cluster.shards()[0]
        with pytest.raises(ValueError, match="changes since snapshot 3 are not known"):
            shard.begin_snapshot(4, 3)
