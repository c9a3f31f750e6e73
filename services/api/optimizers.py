"""Optimizers and initializers of a JobSpec: `{adagrad: {lr: 0.05}}`, or `adagrad` for the defaults.

Beside its name an optimizer may have `clip`, `schedule` and `weight_decay`. Which names and
parameters exist is the parameter server's knowledge (`ps_service.tables`); here is the shape only.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from services.api.base import Strict

KSTEP_OPTIMIZERS = ("adam", "adamw")  # of the dense parameters: the rule of kstep is one of Adam


class _Named(Strict):
    """A name with numeric parameters, written as a one-entry mapping."""

    name: str = Field(min_length=1)
    params: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, dict) or "name" in value:
            return value
        options = {k: v for k, v in value.items() if k in cls.model_fields}
        names = [k for k in value if k not in options]
        if len(names) != 1:
            raise ValueError(cls._how_to_write())
        params = value[names[0]] or {}
        if isinstance(params, dict):  # YAML reads the steps of a piecewise schedule as numbers
            params = {str(key): item for key, item in params.items()}
        return {"name": names[0], "params": params, **options}

    @classmethod
    def _how_to_write(cls) -> str:
        return "write one name with its parameters, like {adagrad: {lr: 0.05}}"

    @model_serializer(mode="wrap")
    def _short(self, complete: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = complete(self)
        name, params = fields.pop("name"), fields.pop("params")
        return {name: params, **{k: v for k, v in fields.items() if v}}


class Clip(Strict):
    """Bounds of a row's gradient, summed over the batch; first by value, then by norm."""

    value: float | None = Field(default=None, gt=0, description="Each element is cut to ±value.")
    norm: float | None = Field(
        default=None,
        gt=0,
        description="A row's gradient is scaled down to at most this L2 norm; embedding rows only.",
    )

    @model_validator(mode="after")
    def _some(self) -> Clip:
        if self.value is None and self.norm is None:
            raise ValueError("give value, norm or both")
        return self


class ScheduleSpec(_Named):
    """E.g. `{cosine: {steps: 100000, warmup: 1000}}` or `{piecewise: {10000: 0.5, 50000: 0.1}}`."""

    @classmethod
    def _how_to_write(cls) -> str:
        return "write one name with its parameters, like {cosine: {steps: 100000}}"


class OptimizerSpec(_Named):
    """E.g. `{adagrad: {lr: 0.05, initial_accumulator: 0.1}, clip: {norm: 1}}`.

    The same for `optimizers.dense` and for a feature's own `optimizer`.
    """

    clip: Clip | None = Field(default=None, description="Bounds of a gradient; default: none.")
    schedule: ScheduleSpec | None = Field(
        default=None, description="What multiplies lr as steps pass; default: constant."
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Weights shrink by lr · weight_decay at each step they take; not for adamw, "
        "which has a parameter of that name, and not for ftrl and group_ftrl.",
    )

    @classmethod
    def _how_to_write(cls) -> str:
        return (
            "write one name with its parameters, like {adagrad: {lr: 0.05}}; beside it may stand "
            "clip, schedule and weight_decay"
        )


class InitializerSpec(_Named):
    """E.g. `{uniform: {low: -0.01, high: 0.01}}`, `{normal: {stddev: 0.01}}`, `zeros`."""


class Optimizers(Strict):
    """Optimizer of the embedding rows and of the dense parameters."""

    sparse: OptimizerSpec = Field(
        default_factory=lambda: OptimizerSpec(
            name="adagrad", params={"lr": 0.05, "initial_accumulator": 0.1}
        ),
        description="Of the embedding rows; a feature may name its own.",
    )
    dense: OptimizerSpec = Field(
        default_factory=lambda: OptimizerSpec(name="adam", params={"lr": 0.001}),
        description="Of the dense parameters.",
    )
