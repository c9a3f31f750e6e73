"""The JobSpec's `autoscale` section: between which bounds the platform chooses process counts."""

from __future__ import annotations

from pydantic import Field, model_validator

from services.api.base import Duration, Strict


class _Bounds(Strict):
    min: int = Field(default=1, ge=1, le=1024, description="Fewest.")
    max: int = Field(ge=1, le=1024, description="Most.")

    @model_validator(mode="after")
    def _ordered(self) -> _Bounds:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class TrainerScaling(_Bounds):
    """Trainers, by the stream's lag and by their share of time spent waiting for data."""

    lag: int = Field(
        default=10_000, ge=0, description="Messages behind, of all trainers, that are no reason."
    )
    catch_up: Duration = Field(
        default=300.0, gt=0, description="Lag that will be gone within this time is no reason."
    )


class SparsePsScaling(_Bounds):
    """Sparse-PS, by memory and CPU of the fullest shard."""

    memory: float = Field(
        default=0.8, gt=0, le=1, description="Share of its memory limit that a shard may use."
    )
    cpu: float = Field(default=0.8, gt=0, le=1, description="Share of its CPUs that it may use.")


class Autoscale(Strict):
    """Each change goes through a checkpoint and a restart of the job's processes from it."""

    trainers: TrainerScaling | None = Field(
        default=None, description="Chooses resources.trainers; none = it stays as it is."
    )
    sparse_ps: SparsePsScaling | None = Field(
        default=None, description="Chooses resources.sparse_ps; none = it stays as it is."
    )
    window: Duration = Field(
        default=120.0, ge=1, le=3_600, description="A reason must hold for this long."
    )
    cooldown: Duration = Field(
        default=600.0, ge=0, description="Least time between two changes, a user's included."
    )

    @model_validator(mode="after")
    def _something(self) -> Autoscale:
        if self.trainers is None and self.sparse_ps is None:
            raise ValueError("give trainers or sparse_ps")
        return self
