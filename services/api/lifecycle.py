"""Admission and eviction of a table's rows in a JobSpec: which keys get a row, and which rows go.

The parameter server's core knows the same names, parameters and defaults; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from services.api.base import Duration, Strict

Params = dict[str, float]

_DAY = 86_400.0
_LONGEST = 1e9  # seconds


class CountAdmission(Strict):
    """A key gets its row when it comes for the n-th time; a mini-batch counts once.

    Keys without a row are counted in a Bloom filter of 4-bit counters: about 5 bytes for each of
    `keys` at an error of 1 %.
    """

    n: int = Field(default=2, ge=1, le=15, description="Mini-batches that must name the key.")
    keys: int = Field(
        default=10_000_000, ge=1, le=10**12, description="Distinct keys waiting for their row."
    )
    error: float = Field(
        default=0.01, ge=1e-6, le=0.5, description="Share of them that may get it too early."
    )


class ProbabilityAdmission(Strict):
    """Each mini-batch that names a key without a row makes one with probability p."""

    p: float = Field(default=0.5, ge=0, le=1, description="Fixed by seed, table, key and step.")


class Admission(Strict):
    """Which keys get a row; exactly one of the two. A key without one reads its initial row."""

    count: CountAdmission | None = Field(default=None, description="After n occurrences.")
    probability: ProbabilityAdmission | None = Field(default=None, description="By chance.")

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        return _named(value)

    @model_serializer(mode="wrap")
    def _given(self, complete: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(complete(self))

    @model_validator(mode="after")
    def _one(self) -> Admission:
        if (self.count is None) == (self.probability is None):
            raise ValueError("give exactly one of count and probability")
        return self

    def policy(self) -> tuple[str, Params]:
        """Name and parameters, as the parameter server wants them."""
        if self.count is not None:
            return "count", _params(self.count)
        assert self.probability is not None  # _one
        return "probability", _params(self.probability)


class LruLimit(Strict):
    """Above so many rows, those go that were not pulled for longest."""

    rows: int = Field(default=10_000_000, ge=1, le=10**15, description="Of the whole table.")


class LfuLimit(Strict):
    """Above so many rows, those go that were pulled least."""

    rows: int = Field(default=10_000_000, ge=1, le=10**15, description="Of the whole table.")
    half_life: Duration = Field(
        default=7 * _DAY, ge=0, le=_LONGEST, description="A pull counts half after it; 0: for ever."
    )


class NormRule(Strict):
    """Rows with small weights go."""

    below: float = Field(default=1e-3, ge=1e-18, le=1e18, description="L2 norm of the weights.")
    idle: Duration = Field(
        default=_DAY, ge=0, le=_LONGEST, description="And not pulled for so long: rows start small."
    )


class ScoreRule(Strict):
    """Rows with a low score go: show * (samples without a click) + click * (samples with one)."""

    below: float = Field(default=0.8, ge=1e-18, le=1e6, description="The score.")
    show: float = Field(default=0.1, ge=0, le=1e6, description="Worth of a sample without a click.")
    click: float = Field(default=1.0, ge=0, le=1e6, description="Worth of a sample with a click.")
    half_life: Duration = Field(
        default=30 * _DAY,
        ge=0,
        le=_LONGEST,
        description="A sample counts half after it; 0: for ever.",
    )
    idle: Duration = Field(
        default=_DAY, ge=0, le=_LONGEST, description="And not pulled for so long."
    )


class Eviction(Strict):
    """Rules by which rows are removed while training goes on; one that applies is enough.

    Time is event time: that of the newest request, not of the server's clock.
    """

    ttl: Duration | None = Field(
        default=None, ge=1, le=_LONGEST, description="Rows not pulled for longer go, e.g. 30d."
    )
    lru: LruLimit | None = Field(default=None, description="Bounds the rows; not beside lfu.")
    lfu: LfuLimit | None = Field(default=None, description="Bounds the rows; not beside score.")
    norm: NormRule | None = Field(default=None, description="By the size of the weights.")
    score: ScoreRule | None = Field(default=None, description="By shows and clicks.")
    floor: int = Field(
        default=0, ge=0, le=10**15, description="Rows of the table that ttl, norm and score leave."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        return _named(value)

    @model_serializer(mode="wrap")
    def _given(self, complete: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(complete(self))

    @model_validator(mode="after")
    def _together(self) -> Eviction:
        if self.lfu is not None and (self.lru is not None or self.score is not None):
            other = "lru" if self.lru is not None else "score"
            raise ValueError(f"lfu and {other} exclude each other: a row keeps one measure of use")
        return self

    def rules(self) -> dict[str, Params]:
        """Rule -> parameters, as the parameter server wants them."""
        rules: dict[str, Params] = {}
        if self.ttl is not None:
            rules["ttl"] = {"seconds": self.ttl}
        for name in ("lru", "lfu", "norm", "score"):
            rule = getattr(self, name)
            if rule is not None:
                rules[name] = _params(rule)
        if self.floor and rules:
            rules["floor"] = {"rows": float(self.floor)}
        return rules


def _params(section: Strict) -> Params:
    return {name: float(value) for name, value in section.model_dump().items()}


def _named(value: Any) -> Any:
    """`count` means `{count: {}}`, and `{count: null}` too: all defaults."""
    if isinstance(value, str):
        return {value: {}}
    if isinstance(value, dict):
        return {key: {} if item is None else item for key, item in value.items()}
    return value


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """What is not given must not be written: read back, a null means all defaults."""
    return {key: item for key, item in fields.items() if item is not None}
