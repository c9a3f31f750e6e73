"""`features` of a JobSpec: which columns are read, and what becomes of their values.

The transforms named here have one implementation, `trainer_service.transform`, used in training and
evaluation.
"""

from __future__ import annotations

import itertools
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from services.api.base import Strict
from services.api.lifecycle import Admission, Eviction
from services.api.optimizers import InitializerSpec, OptimizerSpec
from services.api.ranges import expand

# What features that read one table must agree on.
SHARED_FIELDS = ("dim", "initializer", "optimizer", "weights", "admission", "eviction")


class DenseFeature(Strict):
    """One float per row. Applied in this order: missing, clip, log."""

    column: str | None = Field(
        default=None, description="Column it is read from; default: the feature's name."
    )
    missing: float = Field(default=0.0, description="Value used where the column is empty.")
    clip: tuple[float, float] | None = Field(
        default=None, description="[low, high] bounds of the value."
    )
    log: bool = Field(default=False, description="Replace x by sign(x)·ln(1 + |x|).")

    @field_validator("clip")
    @classmethod
    def _ordered(cls, clip: tuple[float, float] | None) -> tuple[float, float] | None:
        if clip is not None and clip[0] > clip[1]:
            raise ValueError(f"low {clip[0]} is above high {clip[1]}")
        return clip


class SparseFeature(Strict):
    """Keys of rows in an embedding table: one per sample, or several with `separator`."""

    dim: int = Field(
        default=16, ge=1, le=1024, description="Floats of the embedding the model sees."
    )
    column: str | None = Field(
        default=None, description="Column it is read from; default: the feature's name."
    )
    table: str | None = Field(
        default=None,
        description="Table it reads; features may share one. Default: the feature's name.",
    )
    encode: Literal["hash", "id"] = Field(
        default="hash",
        description="hash: stable 64-bit hash of the value's text. id: the value is the key.",
    )
    bucketize: tuple[float, ...] | None = Field(
        default=None,
        description="Rising boundaries; the key is the number of boundaries that are <= the value.",
    )
    cross: tuple[str, ...] | None = Field(
        default=None,
        description="Columns (two or more) whose values together make the key; replaces `column`.",
    )
    missing: Literal["own", "skip"] = Field(
        default="own",
        description="An empty value has a row of its own (own), or adds nothing (skip).",
    )
    separator: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="Splits a multi-valued column, e.g. '|'.",
    )
    combiner: Literal["sum", "mean", "sqrtn"] = Field(
        default="sum", description="How rows of a multi-valued feature are pooled."
    )
    initializer: InitializerSpec | None = Field(
        default=None, description="Initial rows; default: uniform in ±0.01."
    )
    optimizer: OptimizerSpec | None = Field(
        default=None, description="Overrides optimizers.sparse for this table."
    )
    weights: Literal["fp32", "fp16", "bf16"] = Field(
        default="fp32",
        description="How a row's weights are kept. 16 bits are rounded stochastically, so that "
        "small updates are not lost; the optimizer's state stays fp32.",
    )
    admission: Admission | None = Field(
        default=None, description="Which keys get a row; default: every key that is trained."
    )
    eviction: Eviction | None = Field(
        default=None, description="Which rows are removed; default: none."
    )

    @model_validator(mode="after")
    def _consistent(self) -> SparseFeature:
        if self.cross is not None:
            if len(self.cross) < 2:
                raise ValueError("cross needs at least two columns")
            if self.column or self.bucketize or self.separator or self.encode == "id":
                raise ValueError(
                    "cross can't be combined with column, bucketize, separator or encode: id"
                )
        if self.bucketize is not None:
            if self.separator or self.encode == "id":
                raise ValueError("bucketize can't be combined with separator or encode: id")
            if not self.bucketize or any(a >= b for a, b in itertools.pairwise(self.bucketize)):
                raise ValueError("bucketize needs boundaries in rising order")
        return self


class Features(Strict):
    """Label, dense and sparse features. A key like C1..C26 stands for a range of features."""

    label: str = Field(default="label", description="Column with 0 or 1.")
    dense: dict[str, DenseFeature] = Field(
        default_factory=dict,
        description="Feature name -> transforms; a name, a range or a list of them: no transforms.",
    )
    sparse: dict[str, SparseFeature] = Field(
        default_factory=dict, description="Feature name -> how it becomes keys."
    )

    @field_validator("dense", mode="before")
    @classmethod
    def _names_only(cls, value: Any) -> Any:
        if isinstance(value, str):
            return expand_keys({value: {}})
        if isinstance(value, list):
            wrong = next((v for v in value if not isinstance(v, str)), None)
            if wrong is not None:
                raise ValueError(f"{wrong!r} is not a name; transforms need the mapping form")
            return _merged([(expand(name), {}) for name in value])
        return expand_keys(value) if isinstance(value, dict) else value

    @field_validator("sparse", mode="before")
    @classmethod
    def _ranges(cls, value: Any) -> Any:
        return expand_keys(value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _tables_agree(self) -> Features:
        if not self.dense and not self.sparse:
            raise ValueError("name at least one dense or sparse feature")
        both = self.dense.keys() & self.sparse.keys()
        if both:
            raise ValueError(
                f"feature {min(both)!r} is both dense and sparse; "
                "give one another name and set its column"
            )
        first: dict[str, tuple[str, SparseFeature]] = {}
        for name, feature in self.sparse.items():
            table = feature.table or name
            other_name, other = first.setdefault(table, (name, feature))
            for field in SHARED_FIELDS:
                if getattr(other, field) != getattr(feature, field):
                    raise ValueError(
                        f"features {other_name!r} and {name!r} share table {table!r} "
                        f"but differ in {field}"
                    )
        return self

    def tables(self) -> dict[str, SparseFeature]:
        """Table name -> the first feature that reads it; table ids follow this order."""
        tables: dict[str, SparseFeature] = {}
        for name, feature in self.sparse.items():
            tables.setdefault(feature.table or name, feature)
        return tables

    def columns(self) -> list[str]:
        """Columns the data must have, without repeats, in naming order (label first)."""
        wanted = [self.label]
        wanted += [f.column or name for name, f in self.dense.items()]
        for name, sparse in self.sparse.items():
            wanted += list(sparse.cross) if sparse.cross else [sparse.column or name]
        return list(dict.fromkeys(wanted))


def expand_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Replaces range keys by the names they stand for; a name given twice is an error."""
    return _merged([(expand(str(key)), item) for key, item in value.items()])


def _merged(groups: list[tuple[list[str], Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for names, item in groups:
        for name in names:
            if name in out:
                raise ValueError(f"feature {name!r} is given twice")
            out[name] = item if item is not None else {}
    return out
