"""Blob storage through fsspec (file://, s3://, memory://): atomic put, read, ranges, list, delete.

Knows nothing of what the bytes mean. Object stores show an object once it is complete; on a file
system a write goes to a temporary name, is flushed to the disk and renamed, so that a reader never
sees half a file. Credentials and endpoints come from the store's own standard variables (AWS_…), or
from `options`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import fsspec

from services.kit.errors import InvalidInput, NotFound, Unavailable

# Deadlines (seconds) where a store's client has none or waits for minutes.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 60,
            "retries": {"max_attempts": 3, "mode": "standard"},
        }
    }
}


_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART_BYTES = 32 << 20  # of a multipart upload: what is held in memory of a file being written


class Writer(Protocol):
    """Takes the bytes of one file in order."""

    def write(self, data: bytes, /) -> None:
        """Raises Unavailable when the store refuses."""


class Storage:
    """Files under URIs of any fsspec scheme; safe to share between threads.

    `options` are fsspec storage options per scheme, e.g. {"s3": {"key": …, "endpoint_url": …}}.
    A URI of an unknown scheme raises InvalidInput in every method.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._options = dict(options or {})

    def put(self, uri: str, data: bytes) -> None:
        """Writes a whole file atomically.

        Raises Unavailable when the store refuses (full disk, rights, network); what was there
        before is then still there.
        """
        fs, path, scheme = self._open(uri)
        if scheme == "file":
            with self.writing(uri) as file:
                file.write(data)
            return
        with _refusals(uri):
            fs.pipe_file(path, data)

    @contextmanager
    def writing(self, uri: str) -> Iterator[Writer]:
        """A file written piece by piece, of any size; it appears, whole, when the block ends.

        When the block raises, or the store refuses (Unavailable), what was there before is still
        there, and nothing else.
        """
        fs, path, scheme = self._open(uri)
        with _refusals(uri):
            file: _LocalFile | _RemoteFile = (
                _LocalFile(Path(path)) if scheme == "file" else _RemoteFile(fs, path)
            )
        try:
            yield _Checked(uri, file)
            with _refusals(uri):
                file.commit()
        except BaseException:
            with contextlib.suppress(Exception):  # the first failure is the one to tell
                file.discard()
            raise

    def read(self, uri: str, start: int | None = None, end: int | None = None) -> bytes:
        """Bytes [start, end) of a file, by default all. Raises NotFound or Unavailable."""
        fs, path, _ = self._open(uri)
        try:
            return bytes(fs.cat_file(path, start=start, end=end))
        except FileNotFoundError:
            raise NotFound(f"{uri} does not exist") from None
        except Exception as error:
            raise Unavailable(f"can't read {uri}: {error}") from error

    def exists(self, uri: str) -> bool:
        """Whether the file is there now; never answered from a cache. Raises Unavailable."""
        fs, path, _ = self._open(uri)
        fs.invalidate_cache()
        try:
            fs.info(path)
        except FileNotFoundError:
            return False
        except Exception as error:
            raise Unavailable(f"can't look for {uri}: {error}") from error
        return True

    def list(self, uri: str) -> list[str]:
        """Names (not URIs) directly under a folder, sorted; empty when there is no such folder."""
        fs, path, _ = self._open(uri)
        fs.invalidate_cache()
        try:
            entries = fs.ls(path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise Unavailable(f"can't list {uri}: {error}") from error
        names = (str(e).rstrip("/").rsplit("/", 1)[-1] for e in entries)
        return sorted(n for n in names if n and not n.startswith("."))

    def delete(self, uri: str) -> None:
        """Removes a file or a folder with all it holds; no error when it isn't there."""
        fs, path, _ = self._open(uri)
        fs.invalidate_cache()  # else files that another process wrote since a listing would stay
        try:
            fs.rm(path, recursive=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise Unavailable(f"can't delete {uri}: {error}") from error

    def absolute(self, uri: str) -> str:
        """The one spelling of `uri`; a relative file:// path starts at the working directory."""
        _, path, scheme = self._open(uri)
        return f"{scheme}://{path}"

    def _open(self, uri: str) -> tuple[Any, str, str]:
        scheme = uri.split("://", 1)[0] if "://" in uri else "file"
        options = {**_DEFAULTS.get(scheme, {}), **self._options.get(scheme, {})}
        try:
            fs, path = fsspec.core.url_to_fs(uri, **options)
        except (ValueError, ImportError) as error:
            raise InvalidInput(f"storage URI {uri!r}: {error}") from error
        return fs, path, scheme


def join(uri: str, *parts: str) -> str:
    """`uri/part/…` with single slashes."""
    return "/".join([uri.rstrip("/"), *(p.strip("/") for p in parts)])


@contextmanager
def _refusals(uri: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        room = _room(uri) if isinstance(error, OSError) and error.errno in _FULL else ""
        raise Unavailable(f"can't write {uri}: {error}{room}") from error


def _room(uri: str) -> str:
    """What a person needs to know of a disk that is full."""
    folder = Path(uri.removeprefix("file://")).parent
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # it went away with the disk
        return ""
    return f" ({usage.free} of {usage.total} bytes are free in {folder})"


class _Checked:
    """A Writer."""

    def __init__(self, uri: str, file: _LocalFile | _RemoteFile) -> None:
        self._uri, self._file = uri, file

    def write(self, data: bytes, /) -> None:
        with _refusals(self._uri):
            self._file.write(data)


class _LocalFile:
    """Grows under a temporary name beside its target."""

    def __init__(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        self._target = target
        self._temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
        self._file = self._temporary.open("wb")

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._temporary.replace(self._target)

    def discard(self) -> None:
        try:
            self._file.close()  # writes what it holds, and so may fail
        finally:
            self._temporary.unlink(missing_ok=True)


class _RemoteFile:
    """Grows as the parts of an upload that is completed, or thrown away, at the end."""

    def __init__(self, fs: Any, path: str) -> None:
        self._file = fs.open(path, "wb", block_size=_PART_BYTES, autocommit=False)

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def commit(self) -> None:
        self._file.close()  # sends the last part
        self._file.commit()

    def discard(self) -> None:
        self._file.discard()
        self._file.closed = True  # else the garbage collector would send the rest
