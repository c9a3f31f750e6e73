"""Blobs on a file system: atomic, exact, and clear about what fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from services.kit.errors import InvalidInput, NotFound, Unavailable
from services.kit.storage import Storage, join


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


def test_put_read_ranges_list_delete(root: str) -> None:
    storage = Storage()
    uri = join(root, "a", "b", "x.emb")
    storage.put(uri, b"0123456789")
    assert storage.read(uri) == b"0123456789"
    assert storage.read(uri, 3, 5) == b"34"
    assert storage.read(uri, 8) == b"89"
    assert storage.exists(uri) and not storage.exists(uri + "x")
    storage.put(join(root, "a", "c"), b"")
    assert storage.list(join(root, "a")) == ["b", "c"]
    storage.delete(join(root, "a"))
    assert storage.list(root) == []
    storage.delete(join(root, "a"))  # again: nothing to do
    assert storage.list(join(root, "nowhere")) == []


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Storage().put("file://models/x", b"1")
    assert (tmp_path / "models" / "x").read_bytes() == b"1"
    assert Storage().absolute("file://models/x") == f"file://{tmp_path}/models/x"
    assert Storage().absolute(f"file://{tmp_path}/models/x") == f"file://{tmp_path}/models/x"


def test_what_is_missing_is_not_found(root: str) -> None:
    with pytest.raises(NotFound, match=r"/none does not exist"):
        Storage().read(join(root, "none"))


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(InvalidInput, match="storage URI 'gopher://x/y'"):
        Storage().read("gopher://x/y")


def test_readers_never_see_half_a_file(root: str) -> None:
    storage, uri = Storage(), join(root, "x")
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    storage.put(uri, contents[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for content in contents:
                storage.put(uri, content)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            assert storage.read(uri) in contents
            assert storage.list(root) == ["x"]  # temporary names are nobody's business
    finally:
        stop.set()
        writer.join()
    assert [p.name for p in Path(root.removeprefix("file://")).iterdir()] == ["x"]


def test_a_failed_write_leaves_the_old_content(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, uri = Storage(), join(root, "x")
    storage.put(uri, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Unavailable, match=r"can't write .*/x: .*No space left"):
        storage.put(uri, b"new")
    assert storage.read(uri) == b"old"
    assert [p.name for p in Path(root.removeprefix("file://")).iterdir()] == ["x"]


def test_a_file_written_in_pieces_appears_whole_or_not_at_all(root: str) -> None:
    storage, uri = Storage(), join(root, "deep", "x")
    with storage.writing(uri) as file:
        file.write(b"one ")
        file.write(b"two")
        assert not storage.exists(uri)
    assert storage.read(uri) == b"one two"

    with pytest.raises(ZeroDivisionError), storage.writing(uri) as file:
        file.write(b"three")
        raise ZeroDivisionError
    assert storage.read(uri) == b"one two"
    folder = Path(root.removeprefix("file://")) / "deep"
    assert [p.name for p in folder.iterdir()] == ["x"]


def test_a_folder_in_the_way_is_unavailable(root: str) -> None:
    storage = Storage()
    storage.put(join(root, "x", "y"), b"1")
    with pytest.raises(Unavailable, match="can't write"):
        storage.put(join(root, "x"), b"2")
    with pytest.raises(Unavailable, match="can't write"):
        storage.put(join(root, "x", "y", "z"), b"2")
    assert storage.read(join(root, "x", "y")) == b"1"


@pytest.mark.parametrize(
    ("parts", "uri"),
    [
        (("s3://bucket/a/", "b"), "s3://bucket/a/b"),
        (("file:///x", "/b/", "c"), "file:///x/b/c"),
        (("s3://bucket",), "s3://bucket"),
    ],
)
def test_join_puts_single_slashes(parts: tuple[str, ...], uri: str) -> None:
    assert join(*parts) == uri
