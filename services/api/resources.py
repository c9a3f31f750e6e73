"""The JobSpec's `resources` section: how many processes a job has, where its servers are."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from services.api.base import Strict
from services.api.pods import PodSizes


class Resources(Strict):
    """How many processes of each kind."""

    placement: Literal["remote", "embedded"] = Field(
        default="remote",
        description="Where the parameter servers are. remote: processes of their own. embedded: "
        "trainer i has sparse shard i and, if there is one, dense block i in its process, and "
        "reaches them without a socket; sparse_ps is then the number of trainers.",
    )
    sparse_ps: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Sparse parameter-server shards; not to be given with placement embedded.",
    )
    dense_ps: int = Field(default=1, ge=1, le=64, description="Dense parameter-server blocks.")
    trainers: int = Field(default=1, ge=1, le=1024, description="Trainers.")
    pods: PodSizes = Field(
        default_factory=PodSizes,
        description="CPU and memory of each process, where processes are pods (target kubernetes); "
        "other targets ignore it.",
    )

    @property
    def embedded(self) -> bool:
        """Whether each trainer's process has a shard."""
        return self.placement == "embedded"

    @model_validator(mode="before")
    @classmethod
    def _a_shard_for_each_trainer(cls, given: Any) -> Any:
        """Fills in the count, so that whoever asks for the number of shards need not know why."""
        if not isinstance(given, dict) or given.get("placement") != "embedded":
            return given
        trainers = given.get("trainers", 1)
        if given.get("sparse_ps", trainers) != trainers:
            raise ValueError(
                f"sparse_ps is {given['sparse_ps']}, but with placement embedded each of the "
                f"{trainers} trainers has one shard; leave it out"
            )
        return {**given, "sparse_ps": trainers}
