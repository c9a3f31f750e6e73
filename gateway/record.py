"""What the gateway keeps of a job: one immutable record, changed only by making another one.

A record holds what must outlive every process. What can be seen (processes, leases, the newest
checkpoint) is looked up each time and copied here only when a generation ends and takes it along.
"""

from __future__ import annotations

import base64
import dataclasses
import secrets
from typing import Any

import pydantic

from services.api.access import DEFAULT_TENANT
from services.api.spec import JobSpec
from services.api.views import CheckpointView, JobState, Progress, Result

_ID_BYTES = 4  # 32 random bits, of which six base32 letters (30 bits) are used


@dataclasses.dataclass(frozen=True)
class JobRecord:
    """A job. `version` grows by one with every stored change; times are Unix seconds."""

    id: str
    name: str
    spec: dict[str, Any]  # the JobSpec as JSON; resources are those of the present generation
    created: float
    updated: float
    since: float  # when the present state was entered
    tenant: str = DEFAULT_TENANT  # for whom it runs; nobody else sees it
    state: JobState = JobState.PENDING
    version: int = 0
    generation: int = 0  # of the newest attempt; 0 before the first
    restarts: int = 0  # attempts lost to failures since submission or the last :restore
    error: str = ""  # why it failed, or what the last restart was for
    becomes: JobState | None = None  # state that follows STOPPING; PENDING = starts again
    restore: str = (
        ""  # manifest the present (PENDING: the next) generation starts from; empty = from scratch
    )
    checkpoint_before: str = ""  # id of the newest checkpoint when the present generation began
    not_before: float = 0.0  # PENDING: earliest start
    incarnations: tuple[int, ...] = ()  # see discovery.Run; of the present generation
    replaced_at: float = 0.0  # when a trainer of this generation was last replaced
    scale_to: int | None = None  # trainers asked for, until the change is carried out
    scale_sparse_to: int | None = None  # sparse-PS asked for, likewise
    scale_dense_to: int | None = None  # dense-PS asked for, likewise
    scale_at: float = 0.0  # when that was asked
    scale_request: str = ""  # id of the REST request that asked it; empty: the autoscaler did
    scale_trace: dict[str, str] = dataclasses.field(
        default_factory=dict
    )  # tracing.HEADERS of that request
    progress: Progress = dataclasses.field(
        default_factory=Progress
    )  # as the last generation left it
    result: Result | None = None
    checkpoint: CheckpointView | None = None  # the newest one when the last generation ended
    commands: tuple[str, ...] = ()  # `Idempotency-Key` and digest of the newest keyed commands

    @property
    def scaling(self) -> bool:
        """Whether other numbers of processes are asked for."""
        asked = (self.scale_to, self.scale_sparse_to, self.scale_dense_to)
        return any(count is not None for count in asked)

    @property
    def job_spec(self) -> JobSpec:
        """The spec, parsed."""
        return JobSpec.model_validate(self.spec)

    def to_json(self) -> bytes:
        """JSON text."""
        return _ADAPTER.dump_json(self)

    @classmethod
    def from_json(cls, text: bytes) -> JobRecord:
        """Inverse of to_json."""
        return _ADAPTER.validate_json(text)


_ADAPTER = pydantic.TypeAdapter(JobRecord)


def new_record(spec: JobSpec, now: float, tenant: str = DEFAULT_TENANT) -> JobRecord:
    """A job that waits to be started; its id is its name and six random letters or digits."""
    suffix = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()[:6]
    return JobRecord(
        id=f"{spec.name}-{suffix}",
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        created=now,
        updated=now,
        since=now,
        tenant=tenant,
    )
