"""The same blobs on an S3-compatible server."""

from __future__ import annotations

import fsspec
import pytest

from services.kit.errors import NotFound, Unavailable
from services.kit.storage import Storage, join
from tests.fixtures.ports import LOOPBACK, find_free_port
from tests.fixtures.s3 import S3


@pytest.fixture
def storage(s3: S3) -> Storage:
    return Storage({"s3": s3.options})


def test_put_read_ranges_list_delete(storage: Storage, s3: S3) -> None:
    uri = join(s3.url, "job", "000001", "x.emb")
    storage.put(uri, b"0123456789")
    assert storage.read(uri) == b"0123456789"
    assert storage.read(uri, 3, 5) == b"34"
    assert storage.exists(uri) and not storage.exists(uri + "x")
    assert storage.list(join(s3.url, "job")) == ["000001"]
    assert storage.list(join(s3.url, "jo")) == []
    with pytest.raises(NotFound, match="does not exist"):
        storage.read(uri + "x")
    storage.delete(join(s3.url, "job"))
    storage.delete(join(s3.url, "job"))
    assert storage.list(join(s3.url, "job")) == []


@pytest.mark.parametrize("size", [0, 100, (64 << 20) + 5])
def test_a_file_of_any_size_can_be_written_in_pieces(storage: Storage, s3: S3, size: int) -> None:
    uri = join(s3.url, "job", "big.emb")
    with storage.writing(uri) as file:
        for start in range(0, size, 5 << 20):
            file.write(bytes(min(5 << 20, size - start)))
            assert not storage.exists(uri)
    assert storage.read(uri) == bytes(size)


def test_a_broken_upload_leaves_nothing(storage: Storage, s3: S3) -> None:
    uri = join(s3.url, "job", "x.emb")
    storage.put(uri, b"old")
    with pytest.raises(ZeroDivisionError), storage.writing(uri) as file:
        file.write(bytes(40 << 20))  # more than one part
        raise ZeroDivisionError
    assert storage.read(uri) == b"old"
    store = fsspec.filesystem("s3", **s3.options)
    assert not store.list_multipart_uploads(s3.bucket)


def test_what_other_processes_write_is_seen_and_deleted(storage: Storage, s3: S3) -> None:
    folder = join(s3.url, "job", "000001")
    storage.put(join(folder, "mine"), b"1")
    assert storage.list(folder) == ["mine"]
    # Another client, so that the first one's listing cache knows nothing of it.
    other = fsspec.filesystem("s3", **s3.options, skip_instance_cache=True)
    other.pipe_file(f"{s3.bucket}/job/000001/theirs", b"2")
    assert storage.list(folder) == ["mine", "theirs"]
    other.pipe_file(f"{s3.bucket}/job/000001/late", b"3")
    storage.delete(folder)
    other.invalidate_cache()
    assert not other.exists(f"{s3.bucket}/job")


def test_a_store_that_is_not_there_is_unavailable(s3: S3) -> None:
    nowhere = f"http://{LOOPBACK}:{find_free_port()}"
    gone = Storage({"s3": {**s3.options, "endpoint_url": nowhere, "config_kwargs": FAST}})
    for attempt in (
        lambda: gone.read(join(s3.url, "x")),
        lambda: gone.put(join(s3.url, "x"), b""),
        lambda: gone.exists(join(s3.url, "x")),
        lambda: gone.list(s3.url),
    ):
        with pytest.raises(Unavailable, match=r"can't .* s3://"):
            attempt()


FAST = {"connect_timeout": 1, "retries": {"max_attempts": 0}}


def test_a_bucket_that_is_not_there_is_an_error(storage: Storage) -> None:
    with pytest.raises((NotFound, Unavailable), match="s3://no-such-bucket/x"):
        storage.put("s3://no-such-bucket/x", b"")
