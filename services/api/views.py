"""What the gateway answers: jobs, events, checkpoints. `embermesh.Client` reads the same."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class JobState(str, Enum):
    """States of a job; the allowed moves are a table in `gateway.states`."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    STOPPING = "stopping"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def __str__(self) -> str:
        return self.value

    @property
    def final(self) -> bool:
        """Whether the job is over."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

    @property
    def at_rest(self) -> bool:
        """Whether it has no processes and nothing more happens by itself: over, or paused."""
        return self.final or self == JobState.PAUSED

    @property
    def trains(self) -> bool:
        """Whether all its processes were ready and are at work."""
        return self in (JobState.RUNNING, JobState.PAUSING)


class View(BaseModel):
    """Base of answers: clients ignore fields they don't know, so that the API may grow."""


class Progress(View):
    """Where the job stands, summed or averaged over its trainers."""

    samples: int = 0  # rows trained, over all generations
    total_samples: int | None = None  # rows the job will train, where the source knows it
    samples_per_second: float = 0.0
    step: int = 0
    loss: float | None = None  # progressive log loss of the recent window
    auc: float | None = None  # progressive AUC of the recent window
    rows: int = 0  # embedding rows held
    bad_rows: int = 0
    lag: int | None = None  # Kafka: messages behind


class Result(View):
    """The evaluation on the held-out rows."""

    auc: float | None = None
    logloss: float | None = None
    bayes_auc: float | None = None  # synthetic sources: what a perfect model would reach
    samples: int = 0  # held-out rows


class MemberView(View):
    """One process of the job."""

    role: str
    rank: int
    phase: str
    address: str = ""
    metrics_address: str = ""
    error: str = ""
    status: dict[str, Any] = Field(default_factory=dict)


class CheckpointView(View):
    """A complete checkpoint."""

    id: str
    uri: str
    created: float
    samples: int = 0
    rows: int = 0
    bytes: int = 0


class JobView(View):
    """A job as the API shows it."""

    id: str
    name: str
    state: JobState
    generation: int = 0
    restarts: int = 0
    created: float
    updated: float
    error: str = ""
    spec: dict[str, Any]
    progress: Progress = Field(default_factory=Progress)
    result: Result | None = None
    checkpoint: CheckpointView | None = None  # the newest complete one
    members: list[MemberView] = Field(default_factory=list)
    version: int = 0  # grows with every change of the record; the ETag
    tenant: str = ""  # for whom it runs


class JobList(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next: str | None = None  # `cursor` of the next page; None: this is the last


class TableSize(View):
    """What an embedding table will take."""

    name: str
    dim: int
    rows: int
    rows_from: str  # eviction or bucketize: the spec bounds them; assumed: nothing does
    row_bytes: int  # weights, optimizer state, meta, and the index's share
    bytes: int


class StepSize(View):
    """What one trainer moves in a step at most, all keys distinct."""

    keys: int
    pull_bytes: int
    push_bytes: int


class JobSize(View):
    """The answer to a dry run: what the job would take, and whether it would be admitted."""

    tables: list[TableSize]
    rows: int
    memory_bytes: int  # of all shards' rows and filters; what stands by for new rows is extra
    shards: int
    shard_memory_bytes: int  # of the largest shard
    trainers: int
    step: StepSize
    admitted: bool = True
    shortages: list[str] = Field(default_factory=list)  # why it would be refused


class EventView(View):
    """Something that happened to a job."""

    id: str
    time: float
    kind: str
    message: str


class EventList(View):
    """Events, oldest first."""

    events: list[EventView]


class Problem(View):
    """problem+json (RFC 9457); `errors` has one line per wrong field."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] = Field(default_factory=list)


class RestoreRequest(View):
    """Body of `:restore`: start the job again from a checkpoint."""

    checkpoint: str | None = None  # id or manifest URI; default: the newest
    placement: Literal["remote", "embedded"] | None = None
    sparse_ps: int | None = Field(default=None, ge=1, le=1024)
    dense_ps: int | None = Field(default=None, ge=1, le=64)
    trainers: int | None = Field(default=None, ge=1, le=1024)


class ScaleRequest(View):
    """Body of `:scale`: numbers of processes to go on with; what is left out stays as it is."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    trainers: int | None = Field(default=None, ge=1, le=1024)
    sparse_ps: int | None = Field(default=None, ge=1, le=1024)
    dense_ps: int | None = Field(default=None, ge=1, le=64)

    @model_validator(mode="after")
    def _asks_for_something(self) -> ScaleRequest:
        if not self.counts():
            raise ValueError("give trainers, sparse_ps or dense_ps")
        return self

    def counts(self) -> dict[str, int]:
        """Those that were given, by field."""
        return self.model_dump(exclude_none=True)
