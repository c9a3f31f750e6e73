"""Snapshot and restore of a shard's rows and of a block's dense parameters, through shard files and
a manifest.

Restore reads a checkpoint of any number of shards or blocks: each server takes what it owns now.
What is stored must fit what the job wants (tables, dims, optimizers); hyper-parameters may have
changed, the job's count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ps_service import _native
from ps_service.server import ranges, shard_file
from ps_service.server.assignment import Assignment
from ps_service.server.shard_file import ShardFile
from ps_service.tables import NO_OPTIONS, WEIGHTS, TableSpec, UpdateOptions
from services.api import manifest as manifests
from services.api.manifest import Manifest, PositionEntry
from services.kit.errors import Conflict, Damaged, InvalidInput, Unavailable
from services.kit.storage import Storage, join

DENSE_BLOCK_ID = 0
LIFECYCLE_ID = 65_536  # + partition: ids of lifecycle blocks, behind those of all partitions


@dataclasses.dataclass(frozen=True)
class Written:
    """A file that was written."""

    bytes: int
    crc32c: int
    rows: list[int]  # rows per table (sparse), or one entry: parameters (dense)


@dataclasses.dataclass(frozen=True)
class Restored:
    """What a shard took from a checkpoint."""

    rows: int
    step: int  # of the job's life, the last one before the checkpoint
    positions: tuple[PositionEntry, ...] = ()  # where its source partitions go on


@dataclasses.dataclass(frozen=True)
class DensePlace:
    """Where a block lies in the flat array of all dense parameters, and what updates it."""

    offset: int
    size: int
    optimizer: str
    params: Mapping[str, float]
    options: UpdateOptions = NO_OPTIONS


class SparseSnapshot:
    """A shard's rows at the instant of its making, or the changes since the snapshot `since`.

    `step` is the last one of the job's life, where schedules go on after a restore; `event_time`
    is the newest one in Unix seconds; `applied` is how far the source partitions are. The ages of
    rows, where they matter, are those at the end of the write.

    Raises Conflict if another one is in the making, or if the changes since `since` are not known.
    """

    def __init__(
        self,
        shard: _native.SparseShard,
        tables: Sequence[TableSpec],
        assignment: Assignment,
        *,
        step: int,
        event_time: int = 0,
        id: int = 0,
        since: int | None = None,
        applied: Sequence[PositionEntry] = (),
    ) -> None:
        self._shard, self._assignment, self._event_time = shard, assignment, event_time
        try:
            self._native = shard.begin_snapshot(id, since)
        except ValueError as error:
            raise Conflict(f"sparse-PS shard {assignment.rank}: {error}") from error
        self._meta = {
            **_origin("sparse", assignment),
            "epoch": assignment.shard_map.epoch,
            "partitions": assignment.shard_map.partitions,
            "tables": [dataclasses.asdict(t) for t in tables],
            "step": step,
            "id": id,
            "since": since,
            "applied": ranges.stored_form(applied),
        }

    def write(
        self, storage: Storage, uri: str, is_wanted: Callable[[], bool] = lambda: True
    ) -> Written:
        """Writes what it holds, once. Later snapshots may then be deltas of this one.

        Raises Unavailable, leaving no file, as soon as it is no longer wanted.
        """
        try:
            rows = [int(n) for n in self._native.rows()]
            file = shard_file.write(
                storage, uri, {**self._meta, "rows": rows}, self._blocks(is_wanted)
            )
            self._native.commit()
        finally:
            self._native.abandon()  # if it is not over
        return Written(file.bytes, file.crc32c, rows)

    def abandon(self) -> None:
        """Frees what it holds; it can't be written any more."""
        self._native.abandon()

    def _blocks(self, is_wanted: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        for partition in self._assignment.shard_map.partitions_of(self._assignment.rank):
            if not is_wanted():
                raise Unavailable("nobody waits for this snapshot any more")
            block = self._native.dump(partition)
            if block is not None:
                yield partition, block
        for partition in self._assignment.shard_map.partitions_of(self._assignment.rank):
            ages = self._shard.dump_lifecycle(partition, self._event_time)
            if ages:
                yield LIFECYCLE_ID + partition, ages


def read_sparse(
    storage: Storage,
    manifest_uri: str,
    shard: _native.SparseShard,
    tables: Sequence[TableSpec],
    assignment: Assignment,
) -> Restored:
    """Loads the partitions this shard owns out of all sparse files of a manifest and, when it is a
    delta, of those it builds upon.

    Raises Damaged that names the file, or InvalidInput that names the table with stored and wanted
    values.
    """
    chain = manifests.read_chain(storage, manifest_uri)
    wanted = assignment.shard_map.partitions
    if chain[0][1].partitions != wanted:
        raise InvalidInput(
            f"{manifest_uri} has {chain[0][1].partitions} partitions, the job has {wanted}"
        )
    owned = set(assignment.shard_map.partitions_of(assignment.rank))
    for uri, manifest in chain:
        origin: dict[int, str] = {}
        step = 0
        for file in open_sparse(storage, uri, manifest):
            check_tables(file, tables)
            step = max(step, int(file.meta.get("step", 0)))
            for partition, block in file.blocks(owned):
                if partition in origin:
                    raise Damaged(f"partition {partition} is in {origin[partition]} and {file.uri}")
                origin[partition] = file.uri
                load_block(shard, partition, block, file)
            if uri == manifest_uri:  # ages are whole in every checkpoint
                _load_ages(shard, owned, file)
                ranges.check_stored(file.uri, file.meta.get("applied", ()), manifest.positions)
    return Restored(int(shard.rows().sum()), step, chain[-1][1].positions)


def open_sparse(storage: Storage, uri: str, manifest: Manifest) -> Iterator[ShardFile]:
    """The sparse files of one manifest of a chain, each the snapshot that the manifest wants.

    Raises Damaged that names the file.
    """
    for file in _open(storage, uri, manifest, "sparse"):
        _check_place(file, manifest)
        yield file


def load_block(shard: _native.SparseShard, partition: int, block: bytes, file: ShardFile) -> None:
    """Loads a block of `file`. Raises Damaged that names the file."""
    try:
        shard.load_partition(block)
    except ValueError as error:
        raise Damaged(f"{file.uri} is damaged: partition {partition}: {error}") from error


def _load_ages(shard: _native.SparseShard, partitions: set[int], file: ShardFile) -> None:
    for number, block in file.blocks(LIFECYCLE_ID + partition for partition in partitions):
        try:
            shard.load_lifecycle(block)
        except ValueError as error:
            raise Damaged(f"{file.uri} is damaged: block {number}: {error}") from error


def _check_place(file: ShardFile, manifest: Manifest) -> None:
    """A delta upon any other state than its base would make rows that never were."""
    id, since = file.meta.get("id"), file.meta.get("since")
    wanted = int(manifest.base) if manifest.base else None
    if since != wanted or (id is not None and id != int(manifest.id)):
        raise Damaged(
            f"{file.uri} is snapshot {id} since {since}, its manifest wants {int(manifest.id)} "
            f"since {wanted}"
        )


class DenseSnapshot:
    """Values and optimizer state of a block at the instant of its making."""

    def __init__(
        self,
        block: _native.DenseBlock,
        place: DensePlace,
        assignment: Assignment,
        applied: Sequence[PositionEntry] = (),
    ) -> None:
        self._data, self.version = block.dump(), block.step
        self._place, self._assignment, self._applied = place, assignment, applied

    def write(self, storage: Storage, uri: str) -> Written:
        """Writes what it holds."""
        place = self._place
        meta = {
            **_origin("dense", self._assignment),
            "offset": place.offset,
            "parameters": place.size,
            "optimizer": place.optimizer,
            "params": dict(place.params),
            "options": dataclasses.asdict(place.options),
            "applied": ranges.stored_form(self._applied),
        }
        file = shard_file.write(storage, uri, meta, [(DENSE_BLOCK_ID, self._data)])
        return Written(file.bytes, file.crc32c, [place.size])

    def abandon(self) -> None:
        """Nothing but memory, which goes with the object."""


def read_dense(
    storage: Storage, manifest_uri: str, place: DensePlace, assignment: Assignment
) -> _native.DenseBlock:
    """The slice `place` of the dense parameters of a manifest, state included, whatever blocks it
    was stored in.

    Raises Damaged that names the file, or InvalidInput when optimizer or number of parameters
    differ.
    """
    manifest = manifests.read(storage, manifest_uri)
    blocks: list[bytes] = []
    total = 0
    for file in _open(storage, manifest_uri, manifest, "dense"):
        stored = _field(file, "optimizer", str)
        if stored != place.optimizer:
            raise InvalidInput(
                f"{file.uri}: dense optimizer is {stored!r}, the job wants {place.optimizer!r}"
            )
        ranges.check_stored(file.uri, file.meta.get("applied", ()), manifest.positions)
        offset, size = _field(file, "offset", int), _field(file, "parameters", int)
        if offset != total:
            raise Damaged(f"{file.uri} is damaged: it begins at parameter {offset}, not {total}")
        total += size
        blocks += [block for _, block in file.blocks([DENSE_BLOCK_ID])]
    end = place.offset + place.size
    last = assignment.rank == assignment.peers - 1
    if end > total or (last and end < total):
        raise InvalidInput(
            f"{manifest_uri} has {total} dense parameters, the job's model has "
            f"{end if last else f'at least {end}'}"
        )
    try:
        return _native.DenseBlock.join(
            blocks,
            offset=place.offset,
            size=place.size,
            optimizer=place.optimizer,
            optimizer_params=dict(place.params),
            options=place.options.native(),
        )
    except ValueError as error:
        raise Damaged(f"{manifest_uri}: dense parameters: {error}") from error


def tables_of(file: ShardFile) -> list[TableSpec]:
    """The tables whose rows the file has. Raises Damaged."""
    try:
        return [TableSpec.from_record(record) for record in _field(file, "tables", list)]
    except (TypeError, ValueError) as error:
        raise Damaged(f"{file.uri} is damaged: tables: {error}") from error


def check_tables(file: ShardFile, tables: Sequence[TableSpec]) -> None:
    """Raises InvalidInput that names the table with stored and wanted values."""
    stored = _field(file, "tables", list)
    names = [t.get("name") for t in stored]
    wanted = [t.name for t in tables]
    if names != wanted:
        differs = next((w for w, s in zip(wanted, names, strict=False) if w != s), None)
        raise InvalidInput(
            f"{file.uri}: stored tables are {names}, the job wants {wanted}"
            + (f"; {differs!r} is the first that differs" if differs else "")
        )
    for table, record in zip(tables, stored, strict=True):
        held = {"weights": WEIGHTS, **record}  # files of the first version name no type
        for field in ("dim", "optimizer", "weights"):
            if held.get(field) != getattr(table, field):
                raise InvalidInput(
                    f"{file.uri}: table {table.name!r} has {field} {held.get(field)!r}, "
                    f"the job wants {getattr(table, field)!r}"
                )


def _open(storage: Storage, uri: str, manifest: Manifest, kind: str) -> Iterator[ShardFile]:
    entries = manifest.sparse if kind == "sparse" else manifest.dense
    if not entries:
        raise Damaged(f"{uri} names no {kind} file")
    for entry in entries:
        file = ShardFile(storage, join(manifests.folder_of(uri), entry.name), entry)
        if _field(file, "kind", str) != kind:
            raise Damaged(f"{file.uri} is damaged: it is a {file.meta['kind']} file, not {kind}")
        yield file


def _field(file: ShardFile, name: str, kind: type) -> Any:
    value = file.meta.get(name)
    if not isinstance(value, kind):
        raise Damaged(f"{file.uri} is damaged: its header has no {name}")
    return value


def _origin(kind: str, assignment: Assignment) -> dict[str, Any]:
    return {
        "kind": kind,
        "job": assignment.job,
        "generation": assignment.generation,
        "rank": assignment.rank,
        "peers": assignment.peers,
    }
