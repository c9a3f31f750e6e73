"""The manifest: round trip, and refusal of every byte that isn't as written."""

from __future__ import annotations

import json
from pathlib import Path

import crc32c
import pytest

from services.api import manifest as manifests
from services.api.manifest import FileEntry, Manifest, PositionEntry
from services.kit.errors import Damaged, NotFound
from services.kit.storage import Storage

MANIFEST = Manifest(
    job="clicks-ab12cd",
    id="000003",
    generation=2,
    step=1200,
    samples=2**40,
    created=1_700_000_000.25,
    partitions=1024,
    spec={"name": "clicks", "training": {"seed": 7}, "note": "größer"},
    sparse=(
        FileEntry(name="sparse-000.emb", bytes=10, crc32c=2**32 - 1, rows=(5, 0)),
        FileEntry(name="sparse-001.emb", bytes=0, crc32c=0, rows=(6, 1)),
    ),
    dense=(FileEntry(name="dense-000.emb", bytes=32, crc32c=7, rows=(8,)),),
    positions=(
        PositionEntry(partition="clicks-3", major=2**62, minor=4, end=-1),
        PositionEntry(partition="lane-07", major=0, minor=0),
    ),
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return manifests.write(Storage(), f"file://{tmp_path}/000003", MANIFEST)


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def test_it_reads_back_equal(uri: str) -> None:
    assert manifests.read(Storage(), uri) == MANIFEST
    assert uri.endswith("/000003/manifest.json")
    assert manifests.folder_of(uri) + "/manifest.json" == uri
    assert (MANIFEST.total_bytes, MANIFEST.total_rows) == (42, 12)


class OneBlob(Storage):
    """A store of one blob in memory: quick enough to try every byte."""

    data = b""

    def read(self, uri: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.data[start:end]


def test_a_flipped_bit_anywhere_is_refused(uri: str) -> None:
    good, storage = path_of(uri).read_bytes(), OneBlob()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        storage.data = bytes(bad)
        with pytest.raises(Damaged, match=r"manifest\.json"):
            manifests.read(storage, uri)


@pytest.mark.parametrize(
    "replacement", [b" ", b"\n", b"\t", b"0", b'"', b"}", b"\\", b"\x00", b"\xff", b"."]
)
def test_another_byte_anywhere_is_refused(uri: str, replacement: bytes) -> None:
    good, storage = path_of(uri).read_bytes(), OneBlob()
    for place in range(len(good)):
        if good[place : place + 1] != replacement:
            storage.data = good[:place] + replacement + good[place + 1 :]
            with pytest.raises(Damaged):
                manifests.read(storage, uri)


@pytest.mark.parametrize("length", [0, 1, 20, -1, -30])
def test_a_cut_or_grown_file_is_refused(uri: str, length: int) -> None:
    path = path_of(uri)
    good = path.read_bytes()
    path.write_bytes(good[:length])
    with pytest.raises(Damaged):
        manifests.read(Storage(), uri)
    path.write_bytes(good + b"\n")
    with pytest.raises(Damaged):
        manifests.read(Storage(), uri)


def sealed(body: object) -> bytes:
    """A file whose checksum fits whatever it holds."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    document = {"crc32c": crc32c.crc32c(text.encode()), "manifest": body}
    return json.dumps(document, indent=1).encode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "manifest version 2, this program reads 1"),
        ({"step": "many"}, "step"),
        ({"surprise": 1}, "surprise"),
        (
            {"sparse": [{"name": "../../etc/passwd", "bytes": 1, "crc32c": 1, "rows": []}]},
            "sparse.0.name",
        ),
        ({"dense": [{"name": "d.emb", "bytes": -1, "crc32c": 1, "rows": []}]}, "dense.0.bytes"),
    ],
)
def test_what_it_cannot_mean_is_refused(uri: str, changes: dict[str, object], words: str) -> None:
    body = MANIFEST.model_dump(mode="json") | changes
    path_of(uri).write_bytes(sealed(body))
    with pytest.raises(Damaged, match=words):
        manifests.read(Storage(), uri)


@pytest.mark.parametrize("body", [[], None, 3, "x", {}])
def test_other_json_is_refused(uri: str, body: object) -> None:
    path_of(uri).write_bytes(sealed(body))
    with pytest.raises(Damaged):
        manifests.read(Storage(), uri)
    path_of(uri).write_bytes(json.dumps(body).encode())
    with pytest.raises(Damaged, match="is not a manifest"):
        manifests.read(Storage(), uri)


def test_a_missing_one_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"manifest\.json does not exist"):
        manifests.read(Storage(), f"file://{tmp_path}/manifest.json")
