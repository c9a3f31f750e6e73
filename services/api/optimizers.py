"""Optimizers and initializers of a JobSpec: `{adagrad: {lr: 0.05}}`, or `adagrad` for the defaults.

Which names and parameters exist is the parameter server's knowledge (`ps_service.tables`); here is
the shape only.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_serializer, model_validator

from services.api.base import Strict


class _Named(Strict):
    """A name with numeric parameters, written as a one-entry mapping."""

    name: str = Field(min_length=1)
    params: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "name" not in value:
            if len(value) != 1:
                raise ValueError("write one name with its parameters, like {adagrad: {lr: 0.05}}")
            name, params = next(iter(value.items()))
            return {"name": name, "params": params or {}}
        return value

    @model_serializer
    def _short(self) -> dict[str, dict[str, float]]:
        return {self.name: self.params}


class OptimizerSpec(_Named):
    """E.g. `{adagrad: {lr: 0.05, initial_accumulator: 0.1}}`."""


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
