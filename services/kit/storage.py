"""Blob storage through fsspec (file://, s3://, memory://): atomic put, read, ranges, list, delete.

Knows nothing of what the bytes mean. Object stores write an object at once; on a file system a put
goes to a temporary name, is flushed to the disk and renamed, so that a reader never sees half a
file. Credentials and endpoints come from the store's own standard variables (AWS_…), or from
`options`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
        try:
            if scheme == "file":
                _put_local(Path(path), data)
            else:
                fs.pipe_file(path, data)
        except Exception as error:
            raise Unavailable(f"can't write {uri}: {error}") from error

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


def _put_local(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
