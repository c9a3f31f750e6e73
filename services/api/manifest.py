"""The manifest: what a checkpoint is made of. Written last and atomically: present means complete.

`manifest.json` in the checkpoint's folder, JSON with a checksum over its own content. There is one
spelling of a manifest: any other byte, even a space, is damage. Files are named relative to that
folder, so a folder can be moved or copied as a whole.
"""

from __future__ import annotations

import json
from typing import Any

import crc32c
import pydantic
from pydantic import Field

from services.api.base import Strict
from services.kit.errors import Damaged
from services.kit.storage import Storage, join

FILE_NAME = "manifest.json"
VERSION = 1


class FileEntry(Strict):
    """One data file of the checkpoint."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")  # within the folder
    bytes: int = Field(ge=0)
    crc32c: int = Field(ge=0, lt=2**32)
    rows: tuple[int, ...] = ()  # sparse: rows per table; dense: (parameters,)


class PositionEntry(Strict):
    """Next unread place of one source partition; fields as in `wire/trainer.proto` Position."""

    partition: str
    major: int
    minor: int
    end: int = 0


class Manifest(Strict):
    """One instant of a job: rows, dense parameters, optimizer state, positions."""

    version: int = VERSION
    job: str
    id: str  # e.g. 000003
    generation: int
    step: int
    samples: int
    created: float  # Unix seconds
    partitions: int  # the job's P
    spec: dict[str, Any]  # the JobSpec at that time
    sparse: tuple[FileEntry, ...]
    dense: tuple[FileEntry, ...]  # in block order
    positions: tuple[PositionEntry, ...]

    @property
    def total_bytes(self) -> int:
        """Size of all data files."""
        return sum(f.bytes for f in (*self.sparse, *self.dense))

    @property
    def total_rows(self) -> int:
        """Embedding rows over all tables."""
        return sum(sum(f.rows) for f in self.sparse)


def write(storage: Storage, folder: str, manifest: Manifest) -> str:
    """Puts the manifest into its folder; returns its URI."""
    body = manifest.model_dump(mode="json")
    uri = join(folder, FILE_NAME)
    storage.put(uri, _rendered(body))
    return uri


def read(storage: Storage, uri: str) -> Manifest:
    """Reads and verifies a manifest. Raises NotFound, or Damaged that names file and reason."""
    data = storage.read(uri)
    try:
        document = json.loads(data)
        body, expected = document["manifest"], document["crc32c"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{uri} is not a manifest: {type(error).__name__}: {error}") from error
    if _checksum(body) != expected:
        raise Damaged(f"{uri}: checksum {_checksum(body)} differs from the recorded {expected!r}")
    if _rendered(body) != data:
        raise Damaged(f"{uri}: the bytes differ from what was written")
    version = body.get("version") if isinstance(body, dict) else None
    if version != VERSION:
        raise Damaged(f"{uri}: manifest version {version}, this program reads {VERSION}")
    try:
        return Manifest.model_validate(body)
    except pydantic.ValidationError as error:
        raise Damaged(f"{uri}: {error}") from error


def folder_of(uri: str) -> str:
    """The folder a manifest URI lies in."""
    return uri.rsplit("/", 1)[0]


def _rendered(body: Any) -> bytes:
    return json.dumps({"crc32c": _checksum(body), "manifest": body}, indent=1).encode()


def _checksum(body: Any) -> int:
    return int(crc32c.crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()))
