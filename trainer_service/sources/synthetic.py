"""synthetic://criteo?rows=N&holdout=M: Criteo-shaped clicks whose true probability is known.

13 dense floats I1..I13 ~ N(0, 1), 26 ids C1..C26 and `label`. Slot s has a cardinality between 10
and 2,000,000 (geometric) and draws ranks by Zipf(1.05); its id carries the slot in the top 16 bits.
The planted model is

    logit = BIAS + dense·w + W_SCALE·Σ_s w(id_s) + PAIR_SCALE·Σ_pairs w(id_a, id_b)
    label ~ Bernoulli(sigmoid(logit))

where w(·) is a nearly normal number derived from a hash, so no weight is stored. The AUC of the
true probabilities is the Bayes AUC: what a perfect model would reach. Rows of a stripe depend on
(training.seed, stripe) only, so every trainer makes its own stripes and no others; the planted
model itself never changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.api.manifest import PositionEntry
from services.api.spec import JobSpec
from services.kit.errors import InvalidInput
from trainer_service.sources import Claimer
from trainer_service.sources._bad_rows import BadRows
from trainer_service.sources._lanes import Lanes, lane_names
from trainer_service.sources._stripes import Stripe, StripeSource
from trainer_service.sources.file import training_rows
from trainer_service.transform import Transform, check_columns

DENSE, SLOTS = 13, 26
CARDINALITIES = np.round(np.geomspace(10, 2_000_000, SLOTS)).astype(np.int64)
PAIRS = ((0, 1), (2, 4), (3, 6), (5, 7))
ZIPF = 1.05
W_SCALE, PAIR_SCALE, DENSE_SCALE, BIAS = 0.28, 0.45, 0.12, -1.45
_MODEL_SEED = 20261129
_WEIGHT_SALT, _PAIR_SALT = np.uint64(0xA5A5), np.uint64(0x5A5A)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TRAINING, _HOLDOUT = 0, 1  # random streams
_MAX_ROWS = 10**12


@dataclass(frozen=True)
class SyntheticUrl:
    """What the URL asks for."""

    rows: int = 1_000_000
    holdout: int = 0

    @staticmethod
    def parse(url: str) -> SyntheticUrl:
        """Raises InvalidInput that names the part of the URL which is wrong."""
        parts = urlsplit(url)
        if parts.netloc != "criteo" or parts.path.strip("/"):
            raise InvalidInput(
                f"data.source: unknown synthetic data {parts.netloc + parts.path!r}; known: criteo"
            )
        values: dict[str, int] = {}
        for key, text in parse_qsl(parts.query, keep_blank_values=True):
            low = {"rows": 1, "holdout": 0}.get(key)
            if low is None:
                raise InvalidInput(
                    f"data.source: unknown key {key!r} in {url!r}; known: rows, holdout"
                )
            if not (text.isascii() and text.isdigit() and low <= int(text) <= _MAX_ROWS):
                raise InvalidInput(
                    f"data.source: {key}={text!r} is not an integer in [{low}, {_MAX_ROWS}]"
                )
            values[key] = int(text)
        return SyntheticUrl(**values)


class CriteoModel:
    """The planted model."""

    columns = ("label", *(f"I{i + 1}" for i in range(DENSE)), *(f"C{i + 1}" for i in range(SLOTS)))

    def __init__(self, cardinalities: npt.NDArray[np.int64] = CARDINALITIES) -> None:
        """`cardinalities` (SLOTS,): how many values each slot has."""
        self._zipf, self._cardinalities = _Zipf(ZIPF), cardinalities
        self._totals = self._zipf.mass(cardinalities)
        self._dense_weights = (
            np.random.default_rng(_MODEL_SEED).normal(0, DENSE_SCALE, DENSE).astype(np.float32)
        )

    def rows(
        self, count: int, seed: tuple[int, ...]
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.float32]]:
        """`count` rows and their true click probabilities (count,), a pure function of the
        arguments.
        """
        rng = np.random.default_rng(seed)
        dense = rng.standard_normal((DENSE, count), np.float32)
        # A slot's distribution is a prefix of the endless one: scaled to the prefix's mass, one
        # inverse serves all.
        ranks = self._zipf.ranks(rng.random((SLOTS, count)) * self._totals[:, None])
        np.minimum(ranks, self._cardinalities[:, None] - 1, out=ranks)
        ids = _ids(ranks)
        logits = BIAS + self._dense_weights @ dense + self._sparse_logits(ids)
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        labels = (rng.random(count) < probabilities).astype(np.int8)
        arrays = [labels, *dense, *ids.view(np.int64)]
        batch = pa.RecordBatch.from_arrays([pa.array(a) for a in arrays], names=list(self.columns))
        return batch, probabilities.astype(np.float32)

    @staticmethod
    def _sparse_logits(ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
        logits = W_SCALE * _normal(ids ^ _WEIGHT_SALT).sum(axis=0, dtype=np.float64)
        left, right = (ids[list(side)] for side in zip(*PAIRS, strict=True))
        pairs = _normal(((left * _GOLDEN) ^ right) ^ _PAIR_SALT)
        return np.asarray(logits + PAIR_SCALE * pairs.sum(axis=0, dtype=np.float64))


class _Zipf:
    """The running sum H(k) = Σ_{i=1..k} i^-a and its inverse.

    A table up to k = 1024; beyond it the midpoint form H(k) = c - (k + ½)^(1-a) / (a - 1), whose
    error moves a rank by less than 1e-4. So there are no tables as long as the largest slot.
    """

    _TABLE = 1024

    def __init__(self, exponent: float) -> None:
        self._slope = exponent - 1
        self._table = np.cumsum(np.arange(1, self._TABLE + 1, dtype=np.float64) ** -exponent)
        # The form's own error at the border (Euler and Maclaurin's next term): kept, it would move
        # the ranks of the longest tail.
        error = exponent * (self._TABLE + 0.5) ** (-exponent - 1) / 24
        self._limit = self._table[-1] + self._tail(np.array(self._TABLE)) - error

    def mass(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """H of each count."""
        small = self._table[np.minimum(counts, self._TABLE) - 1]
        beyond = self._limit - self._tail(counts)
        return np.asarray(np.where(counts <= self._TABLE, small, beyond))

    def ranks(self, masses: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The 0-based ranks r with H(r) <= mass < H(r + 1)."""
        ranks = np.searchsorted(self._table, masses.ravel(), side="right").reshape(masses.shape)
        beyond = ranks == self._TABLE
        rest = (self._limit - masses[beyond]) * self._slope
        ranks[beyond] = rest ** (-1 / self._slope) - 0.5
        return ranks

    def _tail(self, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return np.asarray((counts + 0.5) ** -self._slope / self._slope)


class SyntheticStripes:
    """`rows` rows of one random stream in stripes of `size`; see `Stripes`."""

    def __init__(
        self, name: str, model: CriteoModel, rows: int, size: int, seed: tuple[int, int]
    ) -> None:
        self.name = name
        self.rows: int | None = rows
        self.count: int | None = -(-rows // size)
        self._model = model
        self._total = rows
        self._size = size
        self._seed = seed

    def read(
        self,
        first: int,
        wanted: Callable[[int], bool],
        bad_rows: BadRows | None,  # noqa: ARG002 - none of these rows is malformed
    ) -> Iterator[Stripe]:
        """See `Stripes`."""
        for index in itertools.takewhile(
            lambda i: i * self._size < self._total, itertools.count(first)
        ):
            if wanted(index):
                row = index * self._size
                count = min(self._size, self._total - row)
                rows, probabilities = self._model.rows(count, (*self._seed, index))
                yield Stripe(index, row, rows, probabilities)


def open_training(
    spec: JobSpec,
    *,
    rank: int,
    trainers: int,
    resume: Mapping[str, PositionEntry],
    claim: Claimer,
) -> StripeSource:
    """See `sources.open_training`."""
    check_columns(spec.features, CriteoModel.columns)
    url = spec.data.source
    rows, _ = _split(spec, SyntheticUrl.parse(url))
    lanes = Lanes(lane_names(), rank, trainers, spec.training.epochs, resume, claim)
    return _source(spec, url, rows, _TRAINING, lanes, spec.training.epochs)


def open_holdout(spec: JobSpec, url: str) -> StripeSource | None:
    """See `sources.open_holdout`."""
    check_columns(spec.features, CriteoModel.columns)
    parsed = SyntheticUrl.parse(url)
    own_source = spec.data.holdout is not None and spec.data.holdout.source is not None
    rows = parsed.rows if own_source else _split(spec, parsed)[1]
    if rows == 0:
        return None
    return _source(spec, url, rows, _HOLDOUT, Lanes(["holdout"], 0, 1, 1, {}), 1)


def _split(spec: JobSpec, url: SyntheticUrl) -> tuple[int, int]:
    """Training and held-out rows."""
    if spec.data.holdout is None or spec.data.holdout.last is None:
        return url.rows, url.holdout
    if url.holdout:
        raise InvalidInput("data: give either holdout.last or holdout= in the synthetic:// URL")
    training = training_rows(url.rows, spec.data.holdout.last)
    return training, url.rows - training


def _source(
    spec: JobSpec, url: str, rows: int, stream: int, lanes: Lanes, epochs: int
) -> StripeSource:
    seed = (spec.training.seed, stream)
    stripes = SyntheticStripes(url, CriteoModel(), rows, spec.training.batch_size, seed)
    return StripeSource(
        stripes, Transform(spec.features), lanes, epochs, BadRows(spec.data.max_bad_rows)
    )


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The output function of SplitMix64: a bijection of 64-bit words that mixes well."""
    mixed: npt.NDArray[np.uint64] = values + _GOLDEN
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _normal(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """One nearly normal number per word: the sum of four 16-bit uniforms of its hash, scaled."""
    hashes = _mix(words)
    quarter = np.uint64(0xFFFF)
    sums = (hashes & quarter) + (hashes >> np.uint64(48))
    sums += (hashes >> np.uint64(16)) & quarter
    sums += (hashes >> np.uint64(32)) & quarter
    centred = sums.astype(np.float32) / np.float32(65536) - np.float32(2)
    return np.asarray(centred * np.float32(np.sqrt(3.0)))


def _ids(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """(SLOTS, n) keys: slot + 1 in the top 16 bits, so positive as int64; a hash of both below."""
    slots = np.arange(1, SLOTS + 1, dtype=np.uint64)[:, None]
    low = _mix((slots << np.uint64(40)) + ranks.astype(np.uint64)) & np.uint64((1 << 48) - 1)
    return np.asarray((slots << np.uint64(48)) | low)
