"""KeyPlan: what one batch asks of each shard, and the way from shard replies to the model's matrix
and back.

The native planner does unique, inverse and partition in one pass; this module slices its result per
shard. F features, B samples, T tables, S shards, `width` columns of all pooled embeddings side by
side.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec
from ps_service.sharding import ShardMap
from ps_service.tables import TableSpec
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

Projection = _native.Projection  # the first layer of some samples, a product for each distinct row


@dataclasses.dataclass(frozen=True, eq=False)
class ShardSlice:
    """One shard's part of a plan, or of a part of one."""

    counts: NDArray[np.uint32]  # (T,) keys per table
    plain_keys: NDArray[np.uint64]  # table after table
    values: slice  # its floats in the flat array of all values
    key_range: slice  # its keys among the batch's distinct keys

    @functools.cached_property
    def packed_keys(self) -> tuple[bytes, ps_pb2.KeyCoding]:
        """The keys for the wire, and their coding."""
        return codec.pack_table_keys(self.counts, self.plain_keys)

    @property
    def empty(self) -> bool:
        """Whether the batch asks nothing of this shard."""
        return not len(self.plain_keys)


@dataclasses.dataclass(frozen=True)
class KeyCounts:
    """How often each distinct key of a batch came, in the plan's order."""

    shows: NDArray[np.float32]  # (u,) places in samples
    clicks: NDArray[np.float32]  # (u,) those of them in samples with label 1


@dataclasses.dataclass(frozen=True)
class KeyPart:
    """Some of a plan's distinct keys, as requests; in the plan's order."""

    positions: NDArray[np.int32]  # (u,) of the keys among the plan's, ascending
    shards: list[ShardSlice]  # S entries
    value_floats: int  # of all their rows


class KeyPlan:
    """One batch's plan. Values and gradients are flat float32: shard after shard, table after
    table, row after row.
    """

    def __init__(
        self, plan: _native.Plan, dims: NDArray[np.int64], key_counts: KeyCounts | None = None
    ) -> None:
        """`dims` (T,) are the floats of a row of each table."""
        self.native, self.dims = plan, dims
        self.key_counts = key_counts  # only where a table evicts by them
        self.unique_keys = len(plan.unique)
        self.value_floats = int(plan.value_floats.sum())
        self.shards = _slices(plan.unique, plan.counts, dims)

    def place(self, rows: NDArray[np.float32], part: KeyPart, values: NDArray[np.float32]) -> None:
        """Puts the rows of `part` (part.value_floats,) where they belong in all values
        (value_floats,).
        """
        self.native.place(rows, part.positions, values)

    def gather(self, values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Pools the rows of every bag into `out` (B, width); an empty bag gives zeros."""
        self.native.gather(values, out)

    def scatter(self, *grads: NDArray[np.float32]) -> NDArray[np.float32]:
        """(B, width) gradients of the pooled embeddings -> (value_floats,) gradients of the unique
        rows. Several arrays are the matrix in pieces, one after another, all but the last of the
        same size.
        """
        return self.native.scatter(*grads)

    def add_up(self, *projections: Projection) -> NDArray[np.float32]:
        """What `scatter` gives, from the gradients that projections of this plan keep."""
        return self.native.add_up(*projections)

    def worth_projecting(self, units: int) -> bool:
        """Whether a Projection to so many columns, instead of a gather and a product of matrices,
        is clearly less work, since many samples share keys. Two runs find the same.
        """
        return self.native.worth_projecting(units)


class RecentKeys:
    """Which of a trainer's steps had each key last. Thread-safe, but steps come in their order."""

    def __init__(self) -> None:
        self._keys = _native.RecentKeys()

    @property
    def cells(self) -> int:
        """Cells of memory, of 16 bytes each."""
        return self._keys.cells

    def split(self, plan: KeyPlan, step: int, oldest: int) -> dict[int, KeyPart]:
        """The keys of `plan`, that of step `step`, by the last of the steps `oldest` to `step` - 1
        that had them too, under 0 if none had. Steps without such keys are left out, 0 never is.
        Steps before `oldest` are forgotten.

        Raises ValueError for steps out of order, more than 4096 of them, or another planner's plan.
        """
        groups = self._keys.split(plan.native, step, oldest)
        return {
            last: _part(positions, keys, counts, plan.dims)
            for last, positions, keys, counts in groups
        }


class KeyPlanner:
    """Plans batches of one job. Thread-safe."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        feature_tables: Sequence[int],
        columns: Sequence[int],
        combiners: Sequence[str],
        width: int,
        shard_map: ShardMap,
        threads: int = 1,
    ) -> None:
        """`feature_tables[f]` is the table feature f reads, `columns[f]` its first column,
        `combiners[f]` how its bags are pooled (sum, mean, sqrtn). `threads` work together on a
        large batch; no result depends on them. Raises InvalidInput that names the wrong argument.
        """
        try:
            self._planner = _native.Planner(
                feature_tables=np.array(feature_tables, dtype=np.uint32),
                dims=np.array([t.dim for t in tables], dtype=np.uint32),
                columns=np.array(columns, dtype=np.uint32),
                combiners=list(combiners),
                owners=shard_map.owners,
                shards=shard_map.shards,
                width=width,
                threads=threads,
            )
        except ValueError as error:
            raise InvalidInput(f"key planner: {error}") from error
        self._dims = np.array([t.dim for t in tables], dtype=np.int64)
        self._scores = any(table.rows.scores for table in tables)

    def plan(
        self,
        keys: NDArray[np.uint64],
        offsets: NDArray[np.int32],
        batch: int,
        labels: NDArray[np.float32] | None = None,
    ) -> KeyPlan:
        """Plans CSR keys: bag (f, b) is keys[offsets[f·B + b] : offsets[f·B + b + 1]], B = `batch`,
        which may be 0. `labels` (B,) are needed by tables that evict by shows and clicks.

        Raises InvalidInput for offsets that don't fit the keys.
        """
        try:
            plan = self._planner.plan(keys, offsets, batch)
        except ValueError as error:
            raise InvalidInput(f"batch: {error}") from error
        if labels is None or not self._scores:
            return KeyPlan(plan, self._dims)
        return KeyPlan(plan, self._dims, _count(plan, offsets, labels))


def _part(
    positions: NDArray[np.int32],
    keys: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    dims: NDArray[np.int64],
) -> KeyPart:
    shards = _slices(keys, counts, dims)
    return KeyPart(positions, shards, shards[-1].values.stop)


def _slices(
    keys: NDArray[np.uint64], counts: NDArray[np.uint32], dims: NDArray[np.int64]
) -> list[ShardSlice]:
    """`keys` (n,) shard after shard, `counts` (S, T) of them."""
    key_ends = np.cumsum(counts.sum(axis=1, dtype=np.int64)).tolist()
    value_ends = np.cumsum(counts @ dims).tolist()
    slices: list[ShardSlice] = []
    key_start = value_start = 0
    for shard_counts, key_end, value_end in zip(counts, key_ends, value_ends, strict=True):
        key_range, values = slice(key_start, key_end), slice(value_start, value_end)
        slices.append(ShardSlice(shard_counts, keys[key_range], values, key_range))
        key_start, value_start = key_end, value_end
    return slices


def _count(
    plan: _native.Plan, offsets: NDArray[np.int32], labels: NDArray[np.float32]
) -> KeyCounts:
    bags = len(offsets) - 1
    label_of_bag = np.tile(labels, bags // len(labels)) if bags else labels
    label_of_key = np.repeat(label_of_bag, np.diff(offsets))
    inverse, distinct = plan.inverse, len(plan.unique)
    return KeyCounts(
        np.bincount(inverse, minlength=distinct).astype(np.float32),
        np.bincount(inverse, label_of_key, minlength=distinct).astype(np.float32),
    )
