"""Snapshot and restore of a shard's rows and of a block's dense parameters, through shard files and
a manifest.

Restore reads a checkpoint of any number of shards or blocks: each server takes what it owns now.
What is stored must fit what the job wants (tables, dims, optimizers); hyper-parameters may have
changed, the job's count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ps_service import _native
from ps_service.server import shard_file
from ps_service.server.assignment import Assignment
from ps_service.server.shard_file import ShardFile
from ps_service.tables import NO_OPTIONS, WEIGHTS, TableSpec, UpdateOptions
from services.api import manifest as manifests
from services.api.manifest import Manifest
from services.kit.errors import Damaged, InvalidInput
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


@dataclasses.dataclass(frozen=True)
class DensePlace:
    """Where a block lies in the flat array of all dense parameters, and what updates it."""

    offset: int
    size: int
    optimizer: str
    params: Mapping[str, float]
    options: UpdateOptions = NO_OPTIONS


def write_sparse(
    storage: Storage,
    uri: str,
    shard: _native.SparseShard,
    tables: Sequence[TableSpec],
    assignment: Assignment,
    step: int,
    now: int = 0,
) -> Written:
    """Writes every non-empty partition the shard owns, and the ages of its rows where they matter.

    The caller sees to it that nothing changes meanwhile. `step` is the last one of the job's life,
    where schedules go on after a restore; `now` is the event time in Unix seconds.
    """
    rows = [int(n) for n in shard.rows()]
    meta = {
        **_origin("sparse", assignment),
        "epoch": assignment.shard_map.epoch,
        "partitions": assignment.shard_map.partitions,
        "tables": [dataclasses.asdict(t) for t in tables],
        "rows": rows,
        "step": step,
    }
    return _put(storage, uri, meta, _blocks(shard, tables, assignment, now), rows)


def read_sparse(
    storage: Storage,
    manifest_uri: str,
    shard: _native.SparseShard,
    tables: Sequence[TableSpec],
    assignment: Assignment,
) -> Restored:
    """Loads the partitions this shard owns out of all sparse files of a manifest.

    Raises Damaged that names the file, or InvalidInput that names the table with stored and wanted
    values.
    """
    manifest = manifests.read(storage, manifest_uri)
    wanted = assignment.shard_map.partitions
    if manifest.partitions != wanted:
        raise InvalidInput(
            f"{manifest_uri} has {manifest.partitions} partitions, the job has {wanted}"
        )
    owned = set(assignment.shard_map.partitions_of(assignment.rank))
    origin: dict[int, str] = {}
    loaded = step = 0
    for file in _open(storage, manifest_uri, manifest, "sparse"):
        _check_tables(file, tables)
        step = max(step, int(file.meta.get("step", 0)))
        for partition, block in file.blocks(owned):
            if partition in origin:
                raise Damaged(f"partition {partition} is in {origin[partition]} and {file.uri}")
            origin[partition] = file.uri
            try:
                loaded += shard.load_partition(block)
            except ValueError as error:
                raise Damaged(f"{file.uri} is damaged: partition {partition}: {error}") from error
        for partition, block in file.blocks(LIFECYCLE_ID + partition for partition in owned):
            try:
                shard.load_lifecycle(block)
            except ValueError as error:
                raise Damaged(f"{file.uri} is damaged: block {partition}: {error}") from error
    return Restored(loaded, step)


def write_dense(
    storage: Storage,
    uri: str,
    block: _native.DenseBlock,
    place: DensePlace,
    assignment: Assignment,
) -> Written:
    """Writes values and optimizer state of a block."""
    meta = {
        **_origin("dense", assignment),
        "offset": place.offset,
        "parameters": place.size,
        "optimizer": place.optimizer,
        "params": dict(place.params),
        "options": dataclasses.asdict(place.options),
    }
    return _put(storage, uri, meta, [(DENSE_BLOCK_ID, block.dump())], [place.size])


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


def _blocks(
    shard: _native.SparseShard, tables: Sequence[TableSpec], assignment: Assignment, now: int
) -> Iterator[tuple[int, bytes]]:
    partitions = assignment.shard_map.partitions
    vacant = _native.SparseShard([t.native() for t in tables], partitions=partitions, seed=0)
    # A block without rows is its header, which has the same length for every partition of a job.
    empty = len(vacant.dump_partition(0))
    for partition in assignment.shard_map.partitions_of(assignment.rank):
        block = shard.dump_partition(partition)
        if len(block) > empty:
            yield partition, block
    for partition in assignment.shard_map.partitions_of(assignment.rank):
        ages = shard.dump_lifecycle(partition, now)
        if ages:
            yield LIFECYCLE_ID + partition, ages


def _check_tables(file: ShardFile, tables: Sequence[TableSpec]) -> None:
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


def _put(
    storage: Storage,
    uri: str,
    meta: dict[str, Any],
    blocks: Iterator[tuple[int, bytes]] | list[tuple[int, bytes]],
    rows: list[int],
) -> Written:
    data = shard_file.encode(meta, blocks)
    storage.put(uri, data)
    return Written(len(data), _native.crc32c(data), rows)
