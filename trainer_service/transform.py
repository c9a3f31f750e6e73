"""Transform: columns of raw values -> labels, dense floats and keys, as the JobSpec's features say.

The one implementation for training, evaluation and serving. It knows nothing of files, messages or
tables.

Keys. hash: XXH64 (seed 0) of the value's text. id: the value's 64 bits. bucketize: the number of
boundaries <= the value. cross: XXH64 of the columns' hashes in the order given. A missing value
with `missing: own` has the key MISSING_KEY (which is the hash of the empty text), with bucketize
the key len(boundaries) + 1.

Dense values. missing, clip, then sign(x)·ln(1 + |x|) where `log` is set; float64 up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.api.features import Features, SparseFeature
from services.kit.errors import InvalidInput
from trainer_service import _native, columns

MISSING_KEY = 0xEF46DB3751D8E999
MAX_REASONS = 5
_SHOWN = 60  # characters of a value in a message

Converted = TypeVar("Converted")


@dataclass(frozen=True, eq=False)
class TransformedRows:
    """Arrays of `Batch` for the m good rows of the n given ones."""

    labels: npt.NDArray[np.float32]  # (m,)
    dense: npt.NDArray[np.float32]  # (m, D)
    keys: npt.NDArray[np.uint64]  # (K,)
    offsets: npt.NDArray[np.int32]  # (F * m + 1,)
    good: npt.NDArray[np.bool_]  # (n,)
    reasons: tuple[tuple[int, str], ...]  # (index of the row, what is wrong) of the first bad rows


@dataclass(frozen=True, eq=False)
class _FeatureKeys:
    keys: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.int32] | None  # (n,) keys per row; None: one each
    malformed: npt.NDArray[np.bool_] | None = None  # (n,) rows; None: none


def check_columns(features: Features, available: Iterable[str]) -> None:
    """Raises InvalidInput that names the feature, its column, and the columns there are."""
    there = list(available)
    known = set(there)
    wanted = [("the label", features.label)]
    wanted += [(f"feature {n!r}", f.column or n) for n, f in features.dense.items()]
    wanted += [(f"feature {n!r}", c) for n, f in features.sparse.items() for c in _columns(n, f)]
    for what, column in wanted:
        if column not in known:
            raise InvalidInput(
                f"{what} needs column {column!r}; the data has: {', '.join(there) or 'none'}"
            )


def _columns(name: str, feature: SparseFeature) -> tuple[str, ...]:
    return feature.cross or (feature.column or name,)


class Transform:
    """Applies the transforms of `features`; many threads may share one object."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._dense = [(name, f.column or name) for name, f in features.dense.items()]
        self._sparse = [(name, _columns(name, f), f) for name, f in features.sparse.items()]
        specs = list(features.dense.values())
        unbounded = (-np.inf, np.inf)
        self._missing = np.array([f.missing for f in specs])
        self._low, self._high = np.array([f.clip or unbounded for f in specs]).reshape(-1, 2).T
        self._clips = any(f.clip for f in specs)
        self._log = np.array([f.log for f in specs], bool)
        self._keeps = not self._clips and not self._log.any()  # values are what is trained
        # The column of each feature, if all of them are single ids.
        self._ids = [names[0] for _, names, f in self._sparse if _is_id(f)]
        if len(self._ids) < len(self._sparse):
            self._ids = []
        self._single = _single(0)  # of the last batch: the next one is mostly as long

    def apply(self, batch: pa.RecordBatch) -> TransformedRows:
        """Transforms the rows of `batch`; leaves out those with a bad label or number and says why.

        Raises InvalidInput for a column that is missing or has a type no transform takes.
        """
        problems = _Problems(batch)
        rows = self._rows(batch, problems)
        if problems.good.all():
            return rows
        clean = batch.filter(pa.array(problems.good))
        kept = self._rows(clean, _Problems(clean))
        return TransformedRows(
            kept.labels,
            kept.dense,
            kept.keys,
            kept.offsets,
            problems.good,
            tuple(problems.reasons()),
        )

    def _rows(self, batch: pa.RecordBatch, problems: _Problems) -> TransformedRows:
        data = dict(zip(batch.schema.names, batch.columns, strict=True))
        try:
            labels = self._labels(data, problems)
            dense = self._dense_matrix(data, batch.num_rows, problems)
            keys, offsets = self._all_keys(data, batch.num_rows, problems)
        except KeyError:
            check_columns(self._features, data)
            raise
        return TransformedRows(labels, dense, keys, offsets, problems.good, ())

    def _all_keys(
        self, data: dict[str, pa.Array], rows: int, problems: _Problems
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        """Keys and offsets of all features, feature-major."""
        if self._ids:
            joined = columns.joined_ids([data[column] for column in self._ids])
            if joined is not None:
                return joined, self._singles(len(joined))
        parts = [
            self._keys(name, names, feature, data, problems)
            for name, names, feature in self._sparse
        ]
        if not parts:
            return np.zeros(0, np.uint64), _single(0)
        keys = np.concatenate([part.keys for part in parts])
        if all(part.counts is None for part in parts):
            return keys, self._singles(len(keys))
        ones = np.ones(rows, np.int32)
        counts = [ones if part.counts is None else part.counts for part in parts]
        return keys, columns.offsets_of(np.concatenate(counts))

    def _singles(self, keys: int) -> npt.NDArray[np.int32]:
        """As `_single`, and the same array where that will do."""
        single = self._single  # another thread may replace it
        if len(single) != keys + 1:
            single = self._single = _single(keys)
        return single

    def _labels(self, data: dict[str, pa.Array], problems: _Problems) -> npt.NDArray[np.float32]:
        column = self._features.label
        values, _ = _named("the label", column, columns.numbers, data)
        wrong = (values != 0) & (values != 1)  # NaN is wrong too
        if wrong.any():
            problems.add(wrong, "the label", column, "is not 0 or 1")
        return values.astype(np.float32)

    def _dense_matrix(
        self, data: dict[str, pa.Array], rows: int, problems: _Problems
    ) -> npt.NDArray[np.float32]:
        if self._keeps:
            joined = columns.joined_floats([data[column] for _, column in self._dense])
            if joined is not None:
                return np.ascontiguousarray(joined.T)
        by_feature = np.empty((len(self._dense), rows))
        for i, (name, column) in enumerate(self._dense):
            values, malformed = _named(f"feature {name!r}", column, columns.numbers, data)
            if malformed is not None:
                problems.add(malformed, f"feature {name!r}", column, "is not a number")
            by_feature[i] = values
            missing = np.isnan(by_feature[i])
            if missing.any():
                by_feature[i, missing] = self._missing[i]
        matrix = by_feature.T
        if self._clips:
            np.clip(matrix, self._low, self._high, out=matrix)
        if self._log.any():
            logs = np.sign(matrix) * np.log1p(np.abs(matrix))
            np.copyto(matrix, logs, where=self._log)
        return self._narrow(matrix, problems)

    def _narrow(
        self, matrix: npt.NDArray[np.float64], problems: _Problems
    ) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):
            narrow = matrix.astype(np.float32, order="C")
        infinite = np.isinf(narrow)
        if infinite.any():
            for i in np.flatnonzero(infinite.any(axis=0)):
                name, column = self._dense[i]
                problems.add(
                    infinite[:, i], f"feature {name!r}", column, "is beyond the range of float32"
                )
        return narrow

    def _keys(
        self,
        name: str,
        names: tuple[str, ...],
        feature: SparseFeature,
        data: dict[str, pa.Array],
        problems: _Problems,
    ) -> _FeatureKeys:
        what = f"feature {name!r}"
        if feature.cross:
            return _cross(
                [_named(what, c, columns.texts, data) for c in names], feature.missing == "own"
            )
        column = names[0]

        def encode(values: pa.Array) -> _FeatureKeys:
            return _encode(values, feature)

        part = _named(what, column, encode, data)
        if part.malformed is not None:
            kind = "a number" if feature.bucketize else "a 64-bit integer"
            problems.add(part.malformed, what, column, f"is not {kind}")
        return part


def _named(
    what: str, column: str, convert: Callable[[pa.Array], Converted], data: dict[str, pa.Array]
) -> Converted:
    """`convert(data[column])`, its InvalidInput told which column it is about."""
    values = data[column]
    try:
        return convert(values)
    except InvalidInput as error:
        raise InvalidInput(f"{what}, column {column!r}: {error}") from None


def _is_id(feature: SparseFeature) -> bool:
    """Whether an integer is the key."""
    other = feature.cross or feature.separator or feature.bucketize
    return feature.encode == "id" and not other


def _encode(column: pa.Array, feature: SparseFeature) -> _FeatureKeys:
    own = feature.missing == "own"
    if columns.is_list(column) and not feature.bucketize:
        return _many(*columns.lists(column), feature)
    if feature.separator:
        text = columns.texts(column)
        rows, offsets, data = _native.split(text.offsets, text.data, feature.separator.encode())
        tokens = pa.Array.from_buffers(
            pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        return _many(rows, tokens, feature)
    if feature.bucketize:
        values, malformed = columns.decimals(column)
        keys = np.searchsorted(np.array(feature.bucketize), values, side="right").astype(np.uint64)
        return _one(keys, np.isnan(values), own, len(feature.bucketize) + 1, malformed)
    if feature.encode == "id":
        keys, missing, malformed = columns.ids(column)
        return _one(keys, missing, own, MISSING_KEY, malformed)
    text = columns.texts(column)
    return _one(text.hashes(), None if own else text.missing, own, MISSING_KEY, None)


def _one(
    keys: npt.NDArray[np.uint64],
    missing: npt.NDArray[np.bool_] | None,
    own: bool,
    missing_key: int,
    malformed: npt.NDArray[np.bool_] | None,
) -> _FeatureKeys:
    """One key per row, or none where it is missing and has no row of its own."""
    if missing is None or not missing.any():
        return _FeatureKeys(keys, None, malformed)
    if own:
        return _FeatureKeys(np.where(missing, np.uint64(missing_key), keys), None, malformed)
    return _FeatureKeys(keys[~missing], (~missing).astype(np.int32), malformed)


def _many(rows: npt.NDArray[np.int32], tokens: pa.Array, feature: SparseFeature) -> _FeatureKeys:
    """Several keys per row; empty tokens don't count, and a row without any is missing."""
    wrong: npt.NDArray[np.bool_] | None = None
    if feature.encode == "id":
        keys, missing, wrong = columns.ids(tokens)
    else:
        text = columns.texts(tokens)
        keys, missing = text.hashes(), text.missing
    malformed = _rows_with(wrong, rows) if wrong is not None and wrong.any() else None
    if missing is not None and missing.any():
        kept = np.concatenate(([0], np.cumsum(~missing)))
        keys, rows = keys[~missing], kept[rows].astype(np.int32)
    counts = np.diff(rows)
    empty = counts == 0
    if feature.missing == "own" and empty.any():
        keys = np.insert(keys, rows[:-1][empty], np.uint64(MISSING_KEY))
        counts = np.maximum(counts, 1)
    return _FeatureKeys(keys, counts, malformed)


def _rows_with(flags: npt.NDArray[np.bool_], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """(n,) rows that have a flagged token."""
    before = np.concatenate(([0], np.cumsum(flags)))
    return np.asarray(before[rows[1:]] > before[rows[:-1]])


def _cross(parts: list[columns.Text], own: bool) -> _FeatureKeys:
    keys = _native.hash_combine([part.hashes() for part in parts])
    if own:
        return _FeatureKeys(keys, None)
    missing = np.logical_or.reduce([part.missing for part in parts])
    return _one(keys, missing, own, MISSING_KEY, None)


def _single(keys: int) -> npt.NDArray[np.int32]:
    """Read-only offsets (keys + 1,) of bags with one key each."""
    offsets = np.arange(keys + 1, dtype=np.int32)
    offsets.setflags(write=False)
    return offsets


class _Problems:
    """Which rows of a batch are bad, and why the first of them are."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._found: list[tuple[npt.NDArray[np.bool_], str, str, str]] = []
        self.good = np.ones(batch.num_rows, bool)

    def add(self, rows: npt.NDArray[np.bool_], what: str, column: str, complaint: str) -> None:
        """Marks `rows` bad."""
        self._found.append((rows, what, column, complaint))
        self.good &= ~rows

    def reasons(self) -> Iterable[tuple[int, str]]:
        """One reason for each of the first MAX_REASONS bad rows."""
        for row in np.flatnonzero(~self.good)[:MAX_REASONS].tolist():
            _, what, column, complaint = next(f for f in self._found if f[0][row])
            yield row, f"{what}, column {column!r}: {self._shown(column, row)} {complaint}"

    def _shown(self, column: str, row: int) -> str:
        value = self._batch.column(column)[row].as_py()
        shown = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
