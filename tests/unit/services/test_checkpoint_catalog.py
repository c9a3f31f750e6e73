"""Names, listing and retention of checkpoints in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api import manifest as manifests
from services.api.manifest import FileEntry, Manifest
from services.checkpoint.catalog import Catalog
from services.kit.errors import InvalidInput, NotFound, Unavailable
from services.kit.storage import Storage, join

JOB = "clicks-ab12cd"


def write(
    root: str,
    checkpoint_id: str,
    *,
    complete: bool = True,
    storage: Storage | None = None,
    base: str = "",
) -> str:
    storage, folder = storage or Storage(), join(root, JOB, checkpoint_id)
    storage.put(join(folder, "sparse-000.emb"), b"rows")
    if not complete:
        return ""
    entry = FileEntry(name="sparse-000.emb", bytes=4, crc32c=1, rows=(3, 4))
    manifest = Manifest(
        job=JOB,
        id=checkpoint_id,
        generation=1,
        step=5,
        samples=50,
        created=1.5,
        partitions=8,
        spec={},
        sparse=(entry,),
        dense=(),
        positions=(),
        base=base,
    )
    return manifests.write(storage, folder, manifest)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def ids(root: str) -> list[str]:
    return Storage().list(join(root, JOB))


def test_an_empty_place_begins_at_one(root: str) -> None:
    catalog = Catalog(Storage(), root, JOB)
    assert catalog.next_id() == "000001"
    assert catalog.complete() == []
    assert catalog.retain(1, in_use="") == []


def test_ids_stand_above_all_folders_and_outgrow_six_digits(root: str) -> None:
    write(root, "000009", complete=False)
    assert Catalog(Storage(), root, JOB).next_id() == "000010"
    write(root, "999999")
    assert Catalog(Storage(), root, JOB).next_id() == "1000000"
    write(root, "1000000")
    catalog = Catalog(Storage(), root, JOB)
    assert catalog.next_id() == "1000001"
    assert [c.id for c in catalog.complete()] == ["999999", "1000000"]
    assert catalog.retain(1, in_use="") == ["000009", "999999"]


def test_other_things_in_the_folder_are_left_alone(root: str) -> None:
    Storage().put(join(root, JOB, "README"), b"mine")
    Storage().put(join(root, JOB, "12"), b"mine")
    write(root, "000001")
    write(root, "000002")
    Catalog(Storage(), root, JOB).retain(1, in_use="")
    assert ids(root) == ["000002", "12", "README"]


def test_listing_tells_sizes_and_leaves_out_what_is_incomplete_or_damaged(root: str) -> None:
    uri = write(root, "000001")
    write(root, "000002", complete=False)
    damaged = Path(write(root, "000003").removeprefix("file://"))
    damaged.write_bytes(damaged.read_bytes().replace(b"50", b"51"))
    (only,) = Catalog(Storage(), root, JOB).complete()
    assert (only.id, only.uri, only.rows, only.bytes, only.samples) == ("000001", uri, 7, 4, 50)


def test_a_damaged_checkpoint_counts_for_nothing_and_is_not_removed(root: str) -> None:
    for number in range(1, 5):
        uri = write(root, f"{number:06d}")
        if number == 3:
            path = Path(uri.removeprefix("file://"))
            path.write_bytes(path.read_bytes()[:-20])
    assert Catalog(Storage(), root, JOB).retain(2, in_use="") == ["000001"]
    assert ids(root) == ["000002", "000003", "000004"]


def test_a_folder_in_the_making_is_not_removed(root: str) -> None:
    write(root, "000001", complete=False)
    write(root, "000002")
    write(root, "000003", complete=False)
    assert Catalog(Storage(), root, JOB).retain(1, in_use="") == ["000001"]
    assert ids(root) == ["000002", "000003"]


def test_what_is_restored_from_is_recognised_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(1, 4):
        write("file://models", f"{number:06d}")
    in_use = f"file://{tmp_path}/models/{JOB}/000001/manifest.json"
    assert Catalog(Storage(), "file://models", JOB).retain(1, in_use) == ["000002"]


def test_a_removal_that_stops_half_way_leaves_nothing_that_looks_complete(root: str) -> None:
    class Stops(Storage):
        def delete(self, uri: str) -> None:
            if not uri.endswith("manifest.json"):
                raise Unavailable("gone")
            super().delete(uri)

    write(root, "000001")
    write(root, "000002")
    with pytest.raises(Unavailable):
        Catalog(Stops(), root, JOB).retain(1, in_use="")
    assert [c.id for c in Catalog(Storage(), root, JOB).complete()] == ["000002"]
    assert Catalog(Storage(), root, JOB).retain(1, in_use="") == ["000001"]


@pytest.mark.parametrize("job", ["", "..", "../other", "a/b", ".hidden", "a b"])
def test_a_job_id_never_leads_out_of_the_folder(root: str, job: str) -> None:
    with pytest.raises(InvalidInput, match="job: "):
        Catalog(Storage(), root, job)


class InMemory(Storage):
    """Blobs in a dict: quick enough for many examples."""

    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}

    def put(self, uri: str, data: bytes) -> None:
        self.blobs[uri] = data

    def read(self, uri: str, start: int | None = None, end: int | None = None) -> bytes:
        if uri not in self.blobs:
            raise NotFound(uri)
        return self.blobs[uri][start:end]

    def exists(self, uri: str) -> bool:
        return uri in self.blobs

    def list(self, uri: str) -> list[str]:
        return sorted({key[len(uri) + 1 :].split("/")[0] for key in self.blobs})

    def delete(self, uri: str) -> None:
        self.blobs = {k: v for k, v in self.blobs.items() if not f"{k}/".startswith(f"{uri}/")}


@given(
    folders=st.dictionaries(st.integers(1, 40), st.booleans(), max_size=12),
    keep=st.integers(1, 5),
    used=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_retention_never_touches_the_newest_and_the_used(
    folders: dict[int, bool], keep: int, used: int
) -> None:
    storage, root = InMemory(), "file:///models"
    for number, complete in folders.items():
        write(root, f"{number:06d}", complete=complete, storage=storage)
    in_use = f"{root}/{JOB}/{used:06d}/manifest.json"
    Catalog(storage, root, JOB).retain(keep, in_use)

    done = sorted(number for number, complete in folders.items() if complete)
    newer = {number for number in folders if number > done[-1]} if done else folders.keys()
    left = {int(name) for name in storage.list(f"{root}/{JOB}")}
    spared = {number for number in done if number == used}
    assert left - {used} == (set(done[-keep:]) | newer) - {used}
    assert left >= spared


def write_chain(root: str) -> None:
    """000001 whole, 2 and 3 its deltas, 4 whole, 5 its delta."""
    for checkpoint_id, base in (("1", ""), ("2", "1"), ("3", "2"), ("4", ""), ("5", "4")):
        write(root, f"{checkpoint_id:>06}", base=f"{base:>06}" if base else "")


@pytest.mark.parametrize(
    ("keep", "in_use", "left"),
    [(1, "", [4, 5]), (2, "", [4, 5]), (3, "", [1, 2, 3, 4, 5]), (1, "000002", [1, 2, 4, 5])],
)
def test_what_a_kept_delta_builds_upon_is_kept(
    root: str, keep: int, in_use: str, left: list[int]
) -> None:
    write_chain(root)
    catalog = Catalog(Storage(), root, JOB)
    uri = join(root, JOB, in_use, "manifest.json") if in_use else ""
    catalog.retain(keep, in_use=uri)
    assert [int(i) for i in ids(root)] == left


@pytest.mark.parametrize(("deltas", "base"), [(0, ""), (1, ""), (2, "000005"), (9, "000005")])
def test_a_delta_builds_upon_the_newest_while_the_chain_is_short(
    root: str, deltas: int, base: str
) -> None:
    write_chain(root)
    assert Catalog(Storage(), root, JOB).base_for_delta(deltas) == base
    assert Catalog(Storage(), root, "other-job").base_for_delta(deltas) == ""


def test_a_chain_with_a_hole_gets_no_further_delta(root: str) -> None:
    write(root, "000005", base="000004")
    assert Catalog(Storage(), root, JOB).base_for_delta(9) == ""
