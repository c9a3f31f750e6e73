"""Native core of the parameter servers: tables of embedding rows, batch planner, dense blocks.

Knows neither the network nor configuration files. Every array argument must be C-contiguous and of
exactly the dtype given here; it may be read-only. A bad argument raises ValueError that names it,
what was expected and what came. Every 64-bit key is legal. The GIL is released while a call works;
every object may be used from many threads at once.
"""

import builtins
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

OPTIMIZERS: dict[str, dict[str, float]]
"""Name of each optimizer -> its parameters and their defaults."""

INITIALIZERS: dict[str, dict[str, float]]
"""Name of each initializer -> its parameters and their defaults."""

SCHEDULES: dict[str, dict[str, float]]
"""Name of each learning-rate schedule -> its parameters and their defaults; piecewise also takes
steps as names."""

ADMISSIONS: dict[str, dict[str, float]]
"""Name of each admission policy -> its parameters and their defaults."""

EVICTION_RULES: dict[str, dict[str, float]]
"""Name of each eviction rule -> its parameters and their defaults."""

def partition_of(table: int, keys: NDArray[np.uint64], partitions: int) -> NDArray[np.uint32]:
    """Partition of each key of `table`: the top log2(partitions) bits of hash(table, key).

    `partitions` is a power of two <= 65536. Same shape as `keys`, (n,).
    """

def crc32c(data: Buffer | NDArray[np.uint8]) -> int:
    """CRC-32C (Castagnoli) of the bytes."""

VALUE_CODINGS: tuple[str, ...]
"""Names of the ways in which values travel: fp32, fp16, scaled-fp16."""

def encoded_bytes(coding: str, count: int) -> int:
    """Bytes of `count` encoded values."""

def encode_values(values: NDArray[np.float32], coding: str) -> tuple[bytes, int, int]:
    """Values (n,) as bytes; how many finite ones were clipped to the largest one; how many that
    were not zero became zero. Infinity and NaN stay what they are."""

def decode_values(data: Buffer, coding: str, out: NDArray[np.float32]) -> None:
    """Fills `out` (n,). ValueError for another length than that of n values, or a block's norm that
    is not above 0 and finite; `out` is undefined then."""

def encode_keys(counts: NDArray[np.uint32], keys: NDArray[np.uint64]) -> bytes:
    """Keys (n,) of all tables, counts[t] of table t, as differences to each table's smallest."""

def decode_keys(counts: NDArray[np.uint32], data: Buffer) -> NDArray[np.uint64]:
    """The keys (n,) again. ValueError that names the table for anything that is no encoding."""

@final
class UpdateOptions:
    """What becomes of a gradient beside the optimizer: a value, checked where it is used.

    In this order, on the summed gradient of a row: each element is cut to +-clip_value, the L2 norm
    scaled down to clip_norm, then w -= lr * factor * weight_decay * w, then the optimizer's step
    with lr * factor. Zeros switch a feature off. The factor is the schedule's at the push's step.
    """

    def __init__(
        self,
        *,
        schedule: str = "constant",
        schedule_params: Mapping[str, float] = ...,
        clip_value: float = 0.0,
        clip_norm: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None: ...
    @property
    def schedule(self) -> str: ...
    @property
    def schedule_params(self) -> dict[str, float]: ...
    @property
    def clip_value(self) -> float: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    def factor(self, step: int) -> float:
        """The schedule's factor of the learning rate at a step, counted from 1.

        Raises ValueError naming an unknown schedule or a bad parameter.
        """

@final
class RowPolicy:
    """Which keys of a table get a row, and which rows go; what is not given takes its default."""

    def __init__(
        self,
        *,
        admission: str = "all",
        admission_params: Mapping[str, float] = ...,
        eviction: Mapping[str, Mapping[str, float]] = ...,
    ) -> None: ...
    @property
    def admission(self) -> str: ...
    @property
    def admission_params(self) -> dict[str, float]: ...
    @property
    def eviction(self) -> dict[str, dict[str, float]]:
        """Rule -> parameters."""

@final
class TableStats:
    """Of one table of a shard. All but `rows` and `gate_bytes` count since the shard was made."""

    @property
    def rows(self) -> int: ...
    @property
    def pulled(self) -> int:
        """Keys of training pulls; pulled - admitted - rejected of them had a row."""
    @property
    def admitted(self) -> int:
        """Rows made by training pulls."""
    @property
    def rejected(self) -> int:
        """Keys of training pulls that had no row and were not admitted."""
    @property
    def dropped(self) -> int:
        """Gradients of keys without a row."""
    @property
    def erased(self) -> int:
        """Rows removed by erase."""
    @property
    def evicted(self) -> dict[str, int]:
        """Rows removed, by rule: ttl, lru, lfu, norm, score."""
    @property
    def gate_bytes(self) -> int:
        """Memory of the filters that count keys without a row."""

@final
class IndexStats:
    """Of the index over all tables, from at most 32 partitions."""

    @property
    def rows(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def probes(self) -> list[int]:
        """Rows by the number of cache lines that finding them reads: 1, 2, ..., 7, 8 and more."""

@final
class HotKey:
    """A key that many training pulls name."""

    @property
    def key(self) -> int: ...
    @property
    def count(self) -> int:
        """Occurrences, at most `error` too many; recent ones weigh more."""
    @property
    def error(self) -> int: ...
    @property
    def share(self) -> float:
        """Of all occurrences in the table."""

@final
class TableConfig:
    """One table, validated: dim is 1 to 4096; parameters not given take their defaults."""

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        optimizer: str,
        optimizer_params: Mapping[str, float],
        initializer: str,
        initializer_params: Mapping[str, float],
        options: UpdateOptions | None = None,
        weights: str = "fp32",
        rows: RowPolicy | None = None,
    ) -> None:
        """`weights` is fp32, fp16 or bf16: how a row keeps them."""
    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def optimizer_params(self) -> dict[str, float]: ...
    @property
    def initializer(self) -> str: ...
    @property
    def initializer_params(self) -> dict[str, float]: ...
    @property
    def options(self) -> UpdateOptions: ...
    @property
    def weights(self) -> str: ...
    @property
    def row_bytes(self) -> int:
        """Bytes of a row: weights and state."""
    @property
    def rows(self) -> RowPolicy: ...
    @property
    def state_floats(self) -> int:
        """Floats of optimizer state per row, beside its `dim` weights."""

@final
class PushResult:
    """What became of the positions of a push: applied + missing = number of keys."""

    @property
    def applied(self) -> int:
        """Positions whose gradient was used, alone or summed with those of the same key."""
    @property
    def missing(self) -> int:
        """Positions whose key is not in the table; skipped without shifting the others."""

@final
class StandbyMemory:
    """Memory for rows to come: 2-MB chunks that a thread of low priority writes to beforehand, so
    that no request waits until the system has found and cleared them.
    """

    def __init__(self, bytes: int) -> None:
        """`bytes`, rounded up to whole chunks, are to stand by at first, and a quarter of them once
        all did. 0: none.
        """
    def bytes(self) -> int:
        """What stands by now."""
    def cold(self) -> int:
        """Chunks that were needed when none stood by."""

@final
class SparseShard:
    """Rows of the job's tables, divided into partitions. A table's id is its place in `tables`.

    A request's `counts` holds m >= 1 groups of one count per table, shape (m*T,) or (m, T), and
    `keys` the keys of group 0 / table 0, group 0 / table 1, ... Values and gradients are float32 in
    the same order, dim floats to a key.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        *,
        partitions: int,
        seed: int,
        threads: int = 1,
        standby: StandbyMemory | None = None,
    ) -> None:
        """`partitions` is a power of two <= 65536; 0 <= seed < 2**64 decides the initial rows.

        `threads` (1 to 256) work on a large request together; no result depends on their number.
        New rows get their memory from `standby`, and without it from the system.
        """
    @property
    def partitions(self) -> int: ...
    def pull(
        self,
        counts: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        *,
        insert: bool,
        step: int = 1,
        event_time: int = 0,
    ) -> builtins.bytes:
        """Weights of the keys, float32 little-endian.

        A missing key reads its initial weights, a pure function of (seed, table, key, column);
        with `insert` it also gets a row if it is admitted, and rows are as young as `event_time`
        (Unix seconds; 0: unknown, rows keep their age); without it nothing changes.
        Raises MemoryError that names table, partition and bound if a partition can name no further
        row; rows that were there, or were added before, stay.
        """
    def pull_array(
        self,
        counts: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        *,
        insert: bool,
        step: int = 1,
        event_time: int = 0,
    ) -> NDArray[np.float32]:
        """As pull, into an array (floats,) that begins at a cache line, which bytes cannot: a large
        one is written past the caches.
        """
    def push(
        self,
        counts: NDArray[np.uint32],
        keys: NDArray[np.uint64],
        grads: NDArray[np.float32],
        *,
        step: int = 1,
        event_time: int = 0,
        usage: NDArray[np.float32] | None = None,
    ) -> PushResult:
        """Sum the gradients of equal keys in request order (float32), then one step per key.

        `step` is the number of the step of training, from 1: schedules and the stochastic rounding
        of 16-bit weights go by it. usage (2, n): shows and clicks of each key, for the rule
        `score`; None: one show, no click.
        """
    def evict(self, partition: int, now: int) -> int:
        """Remove the partition's rows that their table's rules let go; how many.

        `now` is the event time that ages are counted to, in Unix seconds. The partition's lock is
        held for slices of well under a millisecond.
        """
    def stats(self) -> list[TableStats]:
        """Per table."""
    def index_stats(self) -> IndexStats: ...
    def partition_keys(self) -> NDArray[np.uint64]:
        """(P,): keys that requests have named since the shard was made, by partition, each as
        often as it was named.
        """
    def hot_keys(self, table: int, n: int) -> list[HotKey]:
        """The keys that training pulls name most often, most first; from a sample."""
    def removed(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64], bool]:
        """Keys whose rows were removed since the last call: how many per table, (T,), the keys,
        table after table, and whether these are all.

        The first call's answer is never complete, nor is one after load_partition, clear, or very
        many removals. A key may repeat, and may have a row again.
        """
    def erase(self, counts: NDArray[np.uint32], keys: NDArray[np.uint64]) -> int:
        """Remove the keys; returns how many there were. Partitions left half empty are packed."""
    def compact(self) -> None:
        """Pack all rows and give free memory back to the operating system.

        Works in slices of a fraction of a millisecond, each under the lock of one partition.
        """
    def rows(self) -> NDArray[np.uint64]:
        """Rows per table, (T,)."""
    def bytes(self) -> int:
        """Bytes of memory held by the index and the rows."""
    def export_rows(
        self, table: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.float32], NDArray[np.float32]]:
        """Copy of a table: keys (n,) ascending, weights (n, dim), state (n, state_floats)."""
    def dump_partition(self, p: int) -> builtins.bytes:
        """The partition as a block (docs/formats.md): same rows, same bytes, any history."""
    def begin_snapshot(self, id: int, since: int | None = None) -> Snapshot:
        """Begin a snapshot called `id`; with `since`, of the changes since the snapshot so called.

        Takes the same time for any number of rows. What had returned before the call is in the
        snapshot, what is called after it is not; a verb that runs meanwhile is in or out partition
        by partition. Raises ValueError if another one is open, or if `since` is not the latest
        committed one of this shard (there is none after a start or a restore).
        """
    def load_partition(self, block: Buffer) -> int:
        """Replace the partition that the block names, or change it if the block is a delta.

        Returns the number of rows in the block. Deltas must come in their order, upon their base.

        Raises ValueError naming the failed check, expected and actual; the shard is then unchanged.
        """
    def dump_lifecycle(self, p: int, now: int) -> builtins.bytes:
        """When the partition's rows were seen and how much they were used, as a block; empty if no
        table that evicts has rows in it. `now` is any Unix second near the tables' events.
        """
    def load_lifecycle(self, block: Buffer) -> int:
        """Set what dump_lifecycle saved on the rows that are there, after load_partition; how many.

        Raises ValueError naming the failed check; the shard is then unchanged.
        """
    def clear(self) -> None:
        """Drop all rows."""

@final
class Snapshot:
    """A shard as it was when `begin_snapshot` was called, while traffic goes on.

    The first change of a row in a partition that is not dumped yet copies the row; so memory grows
    by at most the rows changed meanwhile. Given up when it is freed.
    """

    def rows(self) -> NDArray[np.uint64]:
        """Rows per table at that instant, (T,)."""
    def dump(self, p: int) -> builtins.bytes | None:
        """The partition as a block, or its changes as a delta block; None without any.

        Once for each partition, in any order. In a delta, a partition whose changes are not known
        comes whole.
        """
    def commit(self) -> None:
        """Everything is safely stored: the next snapshot may be a delta of this one."""
    def abandon(self) -> None:
        """Give it up: what changed before it still counts as changed for the next one."""

@final
class Planner:
    """Turns keys of batches into requests. F features, T tables, P partitions, S shards."""

    def __init__(
        self,
        *,
        feature_tables: NDArray[np.uint32],
        dims: NDArray[np.uint32],
        columns: NDArray[np.uint32],
        combiners: Sequence[str],
        owners: NDArray[np.uint16],
        shards: int,
        width: int,
        threads: int = 1,
    ) -> None:
        """Fix what all batches share.

        feature_tables (F,): table of each feature. dims (T,). columns (F,): first column of each
        feature in the gathered matrix of `width` columns; features must not overlap. combiners: F
        of sum | mean | sqrtn. owners (P,): shard that owns each partition, below `shards`.
        threads (1 to 256) plan, gather and scatter a large batch together; no result depends on
        them.
        """
    def plan(self, keys: NDArray[np.uint64], offsets: NDArray[np.int32], batch: int) -> Plan:
        """Plan one batch of `batch` samples.

        CSR, feature-major: bag (f, b) holds keys[offsets[f*batch+b]:offsets[f*batch+b+1]]; offsets
        has F*batch+1 values. An empty bag reads zeros and gets no gradient; there may be no keys
        and no samples.
        """

@final
class Plan:
    """One batch's plan, immutable. The arrays are read-only views.

    Values and gradients are one flat float32 array: shard 0's reply, then shard 1's, ...;
    inside a shard the rows of
    table 0, then of table 1, ...
    """

    @property
    def unique(self) -> NDArray[np.uint64]:
        """Distinct keys, (u,), in order of (shard, table), then of first occurrence."""
    @property
    def inverse(self) -> NDArray[np.int32]:
        """Place of each key of the batch in `unique`, (n,)."""
    @property
    def counts(self) -> NDArray[np.uint32]:
        """Distinct keys per shard and table, (S, T)."""
    @property
    def value_floats(self) -> NDArray[np.int64]:
        """Floats of each shard's reply, (S,)."""
    def gather(self, values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Pool the rows of every bag into out (batch, width); writes only features' columns."""
    def scatter(self, *grads: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sum gradients (batch, width) onto the unique rows, laid out as the values of gather.

        Several arrays are the matrix in pieces, one after another; all but the last have as many
        rows as the first.
        """
    def worth_projecting(self, units: int) -> bool:
        """Whether a projection to `units` columns is clearly less work than a product of the
        gathered matrix. By the plan's numbers alone: the same in every run.
        """
    def add_up(self, *projections: Projection) -> NDArray[np.float32]:
        """The gradients that projections of this plan keep, laid out as the values of gather.

        Raises ValueError for another plan's, or one before its backward.
        """
    def place(
        self, rows: NDArray[np.float32], positions: NDArray[np.int32], values: NDArray[np.float32]
    ) -> None:
        """Put the rows of the keys at `positions` of `unique`, side by side in `rows`, into values.

        Raises ValueError, before anything is written, if they don't fit.
        """

@final
class Projection:
    """The dense layer X·W + bias of some samples, of whose X (rows, width) the first columns are
    dense features and the others gathered rows, without making X: each distinct row is multiplied
    with the weights once. Keeps its memory. Not thread-safe.
    """

    def __init__(self) -> None:
        """Of no samples."""
    def take(
        self,
        plan: Plan,
        values: NDArray[np.float32],
        dense: NDArray[np.float32],
        first: int,
    ) -> None:
        """Take the samples of the plan's batch from `first` on whose dense features `dense` (rows,
        D) are, with copies of their rows; `values` as for gather.
        """
    def forward(
        self,
        weights: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        relu: bool,
        out: NDArray[np.float32],
    ) -> None:
        """Write X·W + bias to out (rows, units), 0 for what is negative if `relu`.

        weights (width, units), bias (units,).
        """
    def backward(
        self,
        weights: NDArray[np.float32],
        relu: bool,
        out: NDArray[np.float32],
        grads: NDArray[np.float32],
        weight_grads: NDArray[np.float32],
        bias_grads: NDArray[np.float32] | None,
    ) -> float:
        """From the gradients (rows, units) of what forward wrote to `out`, to those of the rows,
        which are kept, of the weights, written to weight_grads (width, units), zero for columns
        that are neither dense nor of a feature, and of the bias. Returns the sum of the kept
        ones: not finite if one of them isn't.
        """

@final
class RecentKeys:
    """Which of a trainer's steps had each key last. Thread-safe."""

    def __init__(self) -> None: ...
    @property
    def cells(self) -> int:
        """Cells of memory, 16 bytes each: 4 to 8 for a key of the steps looked back at."""
    def split(
        self, plan: Plan, step: int, oldest: int
    ) -> list[tuple[int, NDArray[np.int32], NDArray[np.uint64], NDArray[np.uint32]]]:
        """Enter the keys of step `step`; group them by the last step since `oldest` with them.

        A group is (that step, positions in `plan.unique` ascending, keys there, keys per shard and
        table (S, T)). The first group, of step 0, has the keys that none of these steps had; the
        others come by step, without those that have no keys.

        What no step from `oldest` on had is forgotten. Raises ValueError unless `step` grows and
        `oldest` doesn't fall from call to call, 1 <= oldest <= step <= oldest + 4096, and all plans
        are of one planner.
        """

def to_fp16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of IEEE 754 binary16, (n,) to (n,): rounded to the nearest, half away from zero;
    finite values beyond 65504 become ±65504.
    """

def from_fp16(halves: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact inverse of to_fp16's encoding, (n,) to (n,)."""

@final
class LocalAdam:
    """Mode kstep: one trainer's copy of the dense parameters, stepped by Adam or AdamW over a
    second moment that stands still between merges (docs/training-modes.md). One thread.
    """

    def __init__(
        self,
        size: int,
        *,
        optimizer: str,
        optimizer_params: Mapping[str, float],
        options: UpdateOptions | None = None,
    ) -> None:
        """All zero until `restart`. Raises ValueError for another optimizer and like DenseBlock."""
    @property
    def steps(self) -> int:
        """Steps since the last merge."""
    def restart(
        self,
        values: NDArray[np.float32],
        roots: NDArray[np.float32],
        momentum: NDArray[np.float32],
        *,
        step: int,
    ) -> None:
        """Begins from merged values, square roots of v and m, all (n,), after `step` steps."""
    def apply(self, grads: NDArray[np.float32]) -> None:
        """One local step along grads, (n,)."""
    def merge(
        self,
        change: NDArray[np.float32],
        roots: NDArray[np.float32],
        momentum: NDArray[np.float32],
        *,
        step: int,
    ) -> None:
        """Begins a period: `change` is added to the values of the last merge; `roots` are those of
        the new v after `step` steps; m stays where `momentum` is empty.
        """
    def values(self) -> NDArray[np.float32]:
        """Copy of the parameters, (n,)."""
    def momentum(self) -> NDArray[np.float32]:
        """Copy of the first moment m, (n,)."""
    def change(self) -> NDArray[np.float32]:
        """Values less those of the last merge, (n,)."""
    def roots(self) -> NDArray[np.float32]:
        """Square roots of what this trainer's gradients since the last merge add to v, (n,)."""

@final
class DenseBlock:
    """A slice of the flat array of dense parameters with its optimizer state."""

    def __init__(
        self,
        values: NDArray[np.float32],
        *,
        optimizer: str,
        optimizer_params: Mapping[str, float],
        options: UpdateOptions | None = None,
    ) -> None:
        """Raises ValueError for a bad optimizer or option, and for a row-wise optimizer or
        clip_norm: the outcome would depend on how the parameters are cut into blocks.
        """
    @property
    def step(self) -> int:
        """Steps applied so far."""
    @property
    def optimizer(self) -> str: ...
    @property
    def optimizer_params(self) -> dict[str, float]: ...
    @property
    def options(self) -> UpdateOptions: ...
    def values(self) -> NDArray[np.float32]:
        """Copy of the parameters, (n,)."""
    def apply(self, grads: NDArray[np.float32]) -> None:
        """One optimizer step along grads, (n,); a schedule goes by the block's own step."""
    def merge(
        self,
        change: NDArray[np.float32],
        second: NDArray[np.float32],
        momentum: NDArray[np.float32],
        *,
        keep: float,
        steps: int,
    ) -> None:
        """Mode kstep, adam and adamw: values += change; v = keep · v + second; m = momentum unless
        that is empty; all (n,). The step counts `steps` more. Raises ValueError, as the next two
        do, for another optimizer.
        """
    def roots(self) -> NDArray[np.float32]:
        """Square roots of the second moment v, (n,)."""
    def momentum(self) -> NDArray[np.float32]:
        """Copy of the first moment m, (n,)."""
    def dump(self) -> bytes:
        """Parameters, optimizer, options, state and step as one checksummed block
        (docs/formats.md).
        """
    @staticmethod
    def load(block: Buffer) -> DenseBlock:
        """Inverse of dump. Raises ValueError naming the failed check."""
    @staticmethod
    def join(
        blocks: Sequence[Buffer],
        *,
        offset: int,
        size: int,
        optimizer: str,
        optimizer_params: Mapping[str, float],
        options: UpdateOptions | None = None,
    ) -> DenseBlock:
        """Parameters [offset, offset + size) of dumped blocks laid end to end, with their state.

        The optimizer must be theirs; parameters and options may differ. Raises ValueError naming
        the check.
        """
