"""What a table of embedding rows is, and which optimizers and initializers there are.

The native core declares the names, parameters, defaults and bounds; this module turns them into the
one error family and into the wire's `Table`. It knows neither features nor servers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ps_service import _native
from ps_service.row_policy import KEEP_ALL
from ps_service.row_policy import RowPolicy as RowPolicy
from services.api.optimizers import InitializerSpec, OptimizerSpec
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

DEFAULT_INITIALIZER = InitializerSpec(name="uniform", params={"low": -0.01, "high": 0.01})


WEIGHTS = "fp32"


@dataclasses.dataclass(frozen=True)
class UpdateOptions:
    """What becomes of a gradient beside the optimizer; zeros switch a feature off."""

    schedule: str = "constant"
    schedule_params: Mapping[str, float] = dataclasses.field(
        default_factory=lambda: {"warmup": 0.0}
    )
    clip_value: float = 0.0
    clip_norm: float = 0.0
    weight_decay: float = 0.0

    def to_proto(self) -> ps_pb2.UpdateOptions:
        """The wire form."""
        return ps_pb2.UpdateOptions(**dataclasses.asdict(self))

    @classmethod
    def from_proto(cls, options: ps_pb2.UpdateOptions) -> UpdateOptions:
        """Inverse of to_proto; an absent message means the defaults."""
        if not options.schedule:
            return cls()
        return cls(
            schedule=options.schedule,
            schedule_params=dict(options.schedule_params),
            clip_value=options.clip_value,
            clip_norm=options.clip_norm,
            weight_decay=options.weight_decay,
        )

    def native(self) -> _native.UpdateOptions:
        """The native core's form, unchecked."""
        return _native.UpdateOptions(**dataclasses.asdict(self))


NO_OPTIONS = UpdateOptions()


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """One table with every parameter filled in; a table's id is its position in the job's list of
    tables.
    """

    name: str
    dim: int  # floats per row
    optimizer: str
    optimizer_params: Mapping[str, float]
    initializer: str
    initializer_params: Mapping[str, float]
    options: UpdateOptions = NO_OPTIONS
    weights: str = WEIGHTS  # fp32, fp16 or bf16
    rows: RowPolicy = KEEP_ALL

    def to_proto(self) -> ps_pb2.Table:
        """The wire form."""
        return ps_pb2.Table(
            name=self.name,
            dim=self.dim,
            optimizer=self.optimizer,
            optimizer_params=dict(self.optimizer_params),
            initializer=self.initializer,
            initializer_params=dict(self.initializer_params),
            options=self.options.to_proto(),
            weights=self.weights,
            rows=self.rows.to_proto(),
        )

    @classmethod
    def from_proto(cls, table: ps_pb2.Table) -> TableSpec:
        """Inverse of to_proto; equal specs compare equal after the trip."""
        return cls(
            name=table.name,
            dim=table.dim,
            optimizer=table.optimizer,
            optimizer_params=dict(table.optimizer_params),
            initializer=table.initializer,
            initializer_params=dict(table.initializer_params),
            options=UpdateOptions.from_proto(table.options),
            weights=table.weights or WEIGHTS,
            rows=RowPolicy.from_proto(table.rows),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TableSpec:
        """Inverse of dataclasses.asdict, also of records that lack newer fields. Raises TypeError
        or ValueError.
        """
        fields = dict(record)
        options = UpdateOptions(**fields.pop("options", {}))
        rows = RowPolicy(**fields.pop("rows", {}))
        return cls(**fields, options=options, rows=rows)

    def native(self) -> _native.TableConfig:
        """The native core's form. Raises InvalidInput that names the table, the value and its
        bounds.
        """
        try:
            return _native.TableConfig(
                name=self.name,
                dim=self.dim,
                optimizer=self.optimizer,
                optimizer_params=dict(self.optimizer_params),
                initializer=self.initializer,
                initializer_params=dict(self.initializer_params),
                options=self.options.native(),
                weights=self.weights,
                rows=self.rows.native(),
            )
        except ValueError as error:
            raise InvalidInput(f"table {self.name!r}: {error}") from error


def table_spec(
    name: str,
    dim: int,
    optimizer: OptimizerSpec,
    initializer: InitializerSpec | None,
    weights: str = WEIGHTS,
    rows: RowPolicy = KEEP_ALL,
) -> TableSpec:
    """A table with defaults filled in; without `initializer` its rows start uniform in ±0.01.

    Raises InvalidInput that names the table and the unknown name or parameter together with the
    known ones, or the value that is out of bounds.
    """
    wanted = initializer or DEFAULT_INITIALIZER
    where = f"table {name!r}"
    spec = TableSpec(
        name=name,
        dim=dim,
        optimizer=optimizer.name,
        optimizer_params=_filled(
            where, "optimizer", optimizer.name, optimizer.params, _native.OPTIMIZERS
        ),
        initializer=wanted.name,
        initializer_params=_filled(
            where, "initializer", wanted.name, wanted.params, _native.INITIALIZERS
        ),
        options=_options(where, optimizer),
        weights=weights,
        rows=rows,
    )
    spec.native()
    return spec


def dense_optimizer(spec: OptimizerSpec) -> tuple[str, dict[str, float], UpdateOptions]:
    """Name, complete parameters and options of the dense parameters' optimizer. Raises InvalidInput
    like `table_spec`.
    """
    params = _filled("dense", "optimizer", spec.name, spec.params, _native.OPTIMIZERS)
    options = _options("dense", spec)
    try:
        _native.DenseBlock(
            np.zeros(1, np.float32),
            optimizer=spec.name,
            optimizer_params=params,
            options=options.native(),
        )
    except ValueError as error:
        raise InvalidInput(f"dense: {error}") from error
    return spec.name, params, options


def _options(where: str, spec: OptimizerSpec) -> UpdateOptions:
    clip = spec.clip
    name = spec.schedule.name if spec.schedule else UpdateOptions.schedule
    given = spec.schedule.params if spec.schedule else {}
    # The pieces of a piecewise schedule are named by their steps; the native core checks them.
    pieces = {k: float(v) for k, v in given.items() if name == "piecewise" and k.isdecimal()}
    others = {k: v for k, v in given.items() if k not in pieces}
    return UpdateOptions(
        schedule=name,
        schedule_params={**_filled(where, "schedule", name, others, _native.SCHEDULES), **pieces},
        clip_value=clip.value or 0.0 if clip else 0.0,
        clip_norm=clip.norm or 0.0 if clip else 0.0,
        weight_decay=spec.weight_decay,
    )


def _filled(
    where: str,
    kind: str,
    name: str,
    given: Mapping[str, float],
    known: Mapping[str, Mapping[str, float]],
) -> dict[str, float]:
    if name not in known:
        raise InvalidInput(f"{where}: unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
    unknown = sorted(given.keys() - known[name].keys())
    if unknown:
        names = ", ".join(sorted(known[name])) or "none"
        raise InvalidInput(
            f"{where}: {kind} {name!r} has no parameter {unknown[0]!r}; known: {names}"
        )
    return {**known[name], **{key: float(value) for key, value in given.items()}}
