"""The shard file: a container of checksummed blocks that can be read in part.

    file    := header block* index trailer
    header  := "EMBSHARD" u32:version u32:meta_length meta u32:masked(crc32c(all before))
    meta    := JSON object, UTF-8
    index   := { u32:id u32:crc32c(block) u64:offset u64:length }*
    trailer := u64:index_offset u32:masked(crc32c(index, index_offset)) "EMBSHEND"

A reader fetches trailer, index and header, then only the blocks it needs. The index lists every
block's checksum, so the checksum of the whole file, which the manifest records, is verified without
fetching the other blocks. Ids ascend and blocks lie end to end. See docs/formats.md. Knows nothing
of what blocks hold.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from ps_service import _native
from ps_service.server.checksum import combine, masked
from services.api.manifest import FileEntry
from services.kit.errors import Damaged, NotFound
from services.kit.storage import Storage

VERSION = 1
_MAGIC, _END = b"EMBSHARD", b"EMBSHEND"
_HEADER = struct.Struct("<8sII")
_ENTRY = struct.Struct("<IIQQ")
_TRAILER = struct.Struct("<QI8s")
_CRC = struct.Struct("<I")
_READ_BYTES = 32 << 20  # neighbouring blocks are fetched together up to this size


@dataclasses.dataclass(frozen=True)
class _Entry:
    id: int
    crc32c: int
    offset: int
    length: int


@dataclasses.dataclass(frozen=True)
class Written:
    """Size and checksum of a file that was written."""

    bytes: int
    crc32c: int


def write(
    storage: Storage, uri: str, meta: dict[str, Any], blocks: Iterable[tuple[int, bytes]]
) -> Written:
    """Writes a file; `blocks` are (id, content) with ascending ids.

    One block is in memory at a time. When `blocks` raises, no file is left behind.
    """
    checksums: list[tuple[int, int]] = []
    with storage.writing(uri) as file:
        for piece, checksum in _pieces(meta, blocks):
            file.write(piece)
            checksums.append((checksum, len(piece)))
    return Written(sum(length for _, length in checksums), combine(checksums))


def _pieces(
    meta: dict[str, Any], blocks: Iterable[tuple[int, bytes]]
) -> Iterator[tuple[bytes, int]]:
    """Parts of a file in order, each with its CRC-32C."""
    text = json.dumps(meta, sort_keys=True).encode()
    header = _HEADER.pack(_MAGIC, VERSION, len(text)) + text
    header += _CRC.pack(masked(_native.crc32c(header)))
    yield header, _native.crc32c(header)
    offset, index = len(header), b""
    for number, block in blocks:
        checksum = _native.crc32c(block)
        yield block, checksum
        index += _ENTRY.pack(number, checksum, offset, len(block))
        offset += len(block)
    index_checksum = masked(_native.crc32c(index + struct.pack("<Q", offset)))
    end = index + _TRAILER.pack(offset, index_checksum, _END)
    yield end, _native.crc32c(end)


class ShardFile:
    """A verified file in storage. Every failed check raises Damaged that names the file."""

    def __init__(self, storage: Storage, uri: str, entry: FileEntry) -> None:
        """Reads all but the blocks; `entry` is what the manifest says of the file."""
        self.uri = uri
        self._storage = storage
        self._size = entry.bytes
        if entry.bytes < _HEADER.size + _CRC.size + _TRAILER.size:
            raise self._damaged(f"{entry.bytes} bytes are too few for a shard file")
        index_offset, index = self._read_index()
        self._entries = self._parse_index(index, index_offset)
        first = self._entries[0].offset if self._entries else index_offset
        header = self._read(0, first)
        self.meta = self._parse_header(header)
        parts = [(_native.crc32c(header), len(header))]
        parts += [(e.crc32c, e.length) for e in self._entries]
        parts.append((_native.crc32c(index), len(index)))
        if combine(parts) != entry.crc32c:
            raise self._damaged(
                f"crc32c is {combine(parts):08x}, the manifest has {entry.crc32c:08x}"
            )

    @property
    def ids(self) -> list[int]:
        """Ids of the blocks in the file, ascending."""
        return [e.id for e in self._entries]

    def blocks(self, wanted: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """(id, content) of those blocks in `wanted` that the file has, in file order."""
        chosen = set(wanted)
        for run in _runs([e for e in self._entries if e.id in chosen]):
            start = run[0].offset
            data = self._read(start, run[-1].offset + run[-1].length)
            for entry in run:
                block = data[entry.offset - start : entry.offset - start + entry.length]
                if _native.crc32c(block) != entry.crc32c:
                    raise self._damaged(f"block {entry.id} fails its checksum")
                yield entry.id, block

    def _read_index(self) -> tuple[int, bytes]:
        """Offset and bytes of index and trailer together."""
        tail = self._read(self._size - _TRAILER.size, self._size)
        offset, checksum, end = _TRAILER.unpack(tail)
        if end != _END:
            raise self._damaged("it does not end like a shard file")
        length = self._size - _TRAILER.size - offset
        if not 0 <= length <= self._size or length % _ENTRY.size:
            raise self._damaged(f"the index can't begin at byte {offset}")
        index = self._read(offset, self._size - _TRAILER.size)
        if masked(_native.crc32c(index + struct.pack("<Q", offset))) != checksum:
            raise self._damaged("the index fails its checksum")
        return offset, index + tail

    def _parse_index(self, index: bytes, index_offset: int) -> list[_Entry]:
        table = index[: len(index) - _TRAILER.size]
        entries = [_Entry(*fields) for fields in _ENTRY.iter_unpack(table)]
        ends = [e.offset + e.length for e in entries]
        starts = [e.offset for e in entries[1:]] + [index_offset]
        ids = [e.id for e in entries]
        if ids != sorted(set(ids)) or ends != starts[: len(ends)]:
            raise self._damaged("the blocks of the index are not in order or not end to end")
        return entries

    def _parse_header(self, header: bytes) -> dict[str, Any]:
        if len(header) < _HEADER.size + _CRC.size:
            raise self._damaged("the header is cut off")
        body = header[: -_CRC.size]
        magic, version, length = _HEADER.unpack_from(header)
        if magic != _MAGIC:
            raise self._damaged("it does not begin like a shard file")
        if version != VERSION:
            raise self._damaged(f"version {version}, this program reads {VERSION}")
        checksum = _CRC.pack(masked(_native.crc32c(body)))
        if length != len(body) - _HEADER.size or checksum != header[-_CRC.size :]:
            raise self._damaged("the header fails its checksum")
        meta = json.loads(body[_HEADER.size :])
        if not isinstance(meta, dict):
            raise self._damaged("the header holds no JSON object")
        return meta

    def _read(self, start: int, end: int) -> bytes:
        # One byte more than the last: a file that is longer than the manifest says must not pass.
        extra = 1 if end == self._size else 0
        try:
            data = self._storage.read(self.uri, start, end + extra)
        except NotFound as error:
            raise Damaged(f"{self.uri} is named by the manifest but missing") from error
        if len(data) != end - start:
            raise self._damaged(f"its size differs from the {self._size} bytes in the manifest")
        return data

    def _damaged(self, why: str) -> Damaged:
        return Damaged(f"{self.uri} is damaged: {why}")


def _runs(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    """Groups of neighbouring blocks, each worth one read."""
    run: list[_Entry] = []
    for entry in entries:
        if run and (
            run[-1].offset + run[-1].length != entry.offset
            or entry.offset + entry.length - run[0].offset > _READ_BYTES
        ):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run
