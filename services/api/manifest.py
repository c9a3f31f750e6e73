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
from services.kit.errors import Damaged, NotFound
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
    id: str = Field(pattern=r"^[0-9]+$")  # e.g. 000003
    generation: int
    step: int
    samples: int
    created: float  # Unix seconds
    partitions: int  # the job's P
    spec: dict[str, Any]  # the JobSpec at that time
    sparse: tuple[FileEntry, ...]
    dense: tuple[FileEntry, ...]  # in block order
    positions: tuple[PositionEntry, ...]
    base: str = Field(
        default="", pattern=r"^[0-9]*$"
    )  # id of the checkpoint before, whose rows the sparse files change; empty = whole

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
    if not manifest.base:
        del body["base"]  # so that programs that know no deltas read a whole checkpoint
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


def read_chain(storage: Storage, uri: str) -> list[tuple[str, Manifest]]:
    """URI and manifest of the whole checkpoint that this one builds upon, then of each delta in
    their order, this one last.

    Bases are looked for beside the checkpoint's folder. Raises what `read` raises, and Damaged when
    a base is missing or can't be one.
    """
    chain = [(uri, read(storage, uri))]
    while base := chain[0][1].base:
        upper_uri, upper = chain[0]
        base_uri = join(folder_of(folder_of(upper_uri)), base, FILE_NAME)
        try:
            lower = read(storage, base_uri)
        except NotFound as error:
            raise Damaged(f"{upper_uri} is a delta of checkpoint {base}: {error}") from error
        if (lower.job, lower.id, lower.partitions) != (upper.job, base, upper.partitions) or (
            int(lower.id) >= int(upper.id)
        ):
            raise Damaged(
                f"{upper_uri} is a delta of checkpoint {base}, but {base_uri} is of job "
                f"{lower.job}, checkpoint {lower.id}, {lower.partitions} partitions"
            )
        chain.insert(0, (base_uri, lower))
    return chain


def folder_of(uri: str) -> str:
    """The folder a manifest URI lies in."""
    return uri.rsplit("/", 1)[0]


def _rendered(body: Any) -> bytes:
    return json.dumps({"crc32c": _checksum(body), "manifest": body}, indent=1).encode()


def _checksum(body: Any) -> int:
    return int(crc32c.crc32c(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()))
