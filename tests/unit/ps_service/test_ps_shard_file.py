"""The shard file: reading in part, and refusing every damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import _native
from ps_service.server import shard_file
from ps_service.server.checksum import combine
from ps_service.server.shard_file import ShardFile
from services.api.manifest import FileEntry
from services.kit.errors import Damaged
from services.kit.storage import Storage

META = {"kind": "sparse", "note": "é"}
BLOCKS = [(1, b"one"), (2, b""), (5, b"x" * 300), (9, bytes(range(256)))]


class CountingStorage(Storage):
    """Remembers how long the ranges were that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def read(self, uri: str, start: int | None = None, end: int | None = None) -> bytes:
        self.lengths.append((end or 0) - (start or 0))
        return super().read(uri, start, end)


class HeldStorage(Storage):
    """Answers every read from the bytes it holds."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def read(self, uri: str, start: int | None = None, end: int | None = None) -> bytes:
        return self.data[start:end]


def encode(meta: dict, blocks: list[tuple[int, bytes]]) -> bytes:
    """The file as bytes."""
    storage, uri = Storage(), "memory://shard-file/s.emb"
    written = shard_file.write(storage, uri, meta, blocks)
    data = storage.read(uri)
    assert written == shard_file.Written(len(data), _native.crc32c(data))
    return data


def entry_of(data: bytes) -> FileEntry:
    return FileEntry(name="s.emb", bytes=len(data), crc32c=_native.crc32c(data))


def read_all(path: Path, entry: FileEntry) -> tuple[dict, list[tuple[int, bytes]]]:
    file = ShardFile(Storage(), f"file://{path}", entry)
    return file.meta, list(file.blocks(range(10)))


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_combined_checksum_is_that_of_the_whole(parts: list[bytes]) -> None:
    assert combine((_native.crc32c(p), len(p)) for p in parts) == _native.crc32c(b"".join(parts))


def test_combined_checksum_of_long_parts() -> None:
    parts = [bytes(1 << 20), b"a", b"\xff" * 70_001]
    assert combine((_native.crc32c(p), len(p)) for p in parts) == _native.crc32c(b"".join(parts))


@pytest.mark.parametrize("blocks", [BLOCKS, BLOCKS[:1], []])
def test_round_trip(tmp_path: Path, blocks: list[tuple[int, bytes]]) -> None:
    data = encode(META, blocks)
    (tmp_path / "s.emb").write_bytes(data)
    assert read_all(tmp_path / "s.emb", entry_of(data)) == (META, blocks)


def test_only_wanted_blocks_are_fetched_and_neighbours_together(tmp_path: Path) -> None:
    data = encode(META, [(i, bytes([i]) * 100) for i in range(10)])
    (tmp_path / "s.emb").write_bytes(data)
    storage = CountingStorage()
    file = ShardFile(storage, f"file://{tmp_path}/s.emb", entry_of(data))
    storage.lengths.clear()
    got = list(file.blocks([2, 3, 4, 8, 77]))
    assert got == [(i, bytes([i]) * 100) for i in (2, 3, 4, 8)]
    assert storage.lengths == [300, 100]


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    data = encode(META, BLOCKS)
    entry = entry_of(data)
    flipped = [data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :] for i in range(len(data))]
    for broken in (*flipped, *(data[:length] for length in range(len(data)))):
        with pytest.raises(Damaged, match=r"s\.emb is damaged"):
            list(ShardFile(HeldStorage(broken), "file:///s.emb", entry).blocks(range(10)))


@pytest.mark.parametrize("extra", [b"\0", b"more than a trailer of text follows here"])
def test_a_longer_file_is_refused(tmp_path: Path, extra: bytes) -> None:
    data = encode(META, BLOCKS)
    (tmp_path / "s.emb").write_bytes(data + extra)
    with pytest.raises(Damaged, match=f"differs from the {len(data)} bytes"):
        read_all(tmp_path / "s.emb", entry_of(data))


def test_a_sound_file_that_is_another_one_is_refused(tmp_path: Path) -> None:
    data, other = (encode(META, [(1, text)]) for text in (b"abc", b"xyz"))
    assert len(data) == len(other)
    (tmp_path / "s.emb").write_bytes(other)
    with pytest.raises(Damaged, match="the manifest has"):
        read_all(tmp_path / "s.emb", entry_of(data))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    entry = entry_of(encode(META, BLOCKS))
    with pytest.raises(Damaged, match=r"s\.emb is named by the manifest but missing"):
        read_all(tmp_path / "s.emb", entry)


@pytest.mark.parametrize("size", [0, 10])
def test_an_impossible_size_in_the_manifest_is_refused(tmp_path: Path, size: int) -> None:
    data = encode(META, BLOCKS)
    (tmp_path / "s.emb").write_bytes(data)
    entry = entry_of(data)
    with pytest.raises(Damaged, match="too few"):
        read_all(tmp_path / "s.emb", FileEntry(**{**entry.model_dump(), "bytes": size}))


def test_an_unknown_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_file, "VERSION", 2)
    data = encode(META, BLOCKS)
    monkeypatch.undo()
    (tmp_path / "s.emb").write_bytes(data)
    with pytest.raises(Damaged, match="version 2, this program reads 1"):
        read_all(tmp_path / "s.emb", entry_of(data))
