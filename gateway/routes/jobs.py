"""`/v1/jobs`: submit, list, look at, cancel, scale."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from gateway import admission, commands
from gateway.deps import Gateway, Parts
from gateway.present import job_view
from gateway.record import JobRecord, new_record
from services.api import spec as jobspec
from services.api.views import EventList, EventView, JobList, JobView, ScaleRequest
from services.kit.discovery import Role
from services.kit.errors import InvalidInput

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MAX_BODY_BYTES = 1 << 18
_EVENT_ID = r"^(-|\d{1,20}(-\d{1,20})?)$"


async def spec_body(request: Request) -> bytes:
    """The raw body of a submission. Raises InvalidInput when it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise InvalidInput(f"the JobSpec is larger than {MAX_BODY_BYTES} bytes")
    return body


@router.post("", status_code=201)
def submit(
    gateway: Parts,
    response: Response,
    body: Annotated[bytes, Depends(spec_body)],
    content_type: Annotated[str, Header(include_in_schema=False)] = "",
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
) -> JobView:
    """Starts a job from a JobSpec in YAML or JSON. The same Idempotency-Key and body give the same
    job.
    """
    spec = _parse(body, content_type)
    admission.check(spec)
    record, created = gateway.store.create(new_record(spec, gateway.clock()), idempotency_key, body)
    if created:
        gateway.registry.emit(record.id, "submitted", f"job {record.id} was submitted")
        gateway.wake()
    response.headers["Location"] = f"/v1/jobs/{record.id}"
    return _view(gateway, record)


@router.get("")
def list_jobs(gateway: Parts, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JobList:
    """Jobs, newest first."""
    return JobList(jobs=[_view(gateway, record) for record in gateway.store.newest(limit)])


@router.get("/{job}")
def get(gateway: Parts, job: str) -> JobView:
    """The job as it stands now, with its processes."""
    return _view(gateway, gateway.store.get(job))


@router.post("/{job}:cancel", status_code=202)
def cancel(gateway: Parts, job: str) -> JobView:
    """Stops the job for good; its checkpoints stay."""
    record = gateway.store.update(job, lambda r: commands.cancel(r, gateway.clock()))
    return _asked(gateway, record, "cancel", "cancellation was asked for")


@router.post("/{job}:scale", status_code=202)
def scale(gateway: Parts, job: str, body: ScaleRequest) -> JobView:
    """Goes on with another number of trainers, from a checkpoint that is taken first."""
    record = gateway.store.update(job, lambda r: commands.scale(r, body.trainers, gateway.clock()))
    return _asked(gateway, record, "scale", f"{body.trainers} trainers were asked for")


@router.get("/{job}/events")
def events(
    gateway: Parts, job: str, after: Annotated[str, Query(pattern=_EVENT_ID)] = "-"
) -> EventList:
    """What happened to the job, oldest first; `after` the id of an event gives only later ones."""
    gateway.store.get(job)
    return EventList(
        events=[EventView.model_validate(e) for e in gateway.registry.events(job, after)]
    )


@router.get("/{job}/logs", response_class=PlainTextResponse)
def logs(
    gateway: Parts,
    job: str,
    role: Role = Role.TRAINER,
    rank: Annotated[int, Query(ge=0, le=65_535)] = 0,
    tail: Annotated[int, Query(ge=1, le=10_000)] = 200,
    generation: Annotated[int | None, Query(ge=1)] = None,
) -> str:
    """The last `tail` lines of a process; of the newest generation unless another is named."""
    record = gateway.store.get(job)
    wanted = record.generation if generation is None else generation
    return gateway.target.logs(job, wanted, role, rank, tail)


def _asked(gateway: Gateway, record: JobRecord, kind: str, message: str) -> JobView:
    gateway.registry.emit(record.id, kind, message)
    gateway.wake()
    return _view(gateway, record)


def _view(gateway: Gateway, record: JobRecord) -> JobView:
    if record.state.final or record.generation == 0:
        return job_view(record)
    members = gateway.registry.members(record.id, record.generation)
    return job_view(record, members, gateway.registry.latest_checkpoint(record.id))


def _parse(body: bytes, content_type: str) -> jobspec.JobSpec:
    if not body.strip():
        raise InvalidInput("the body is empty; send a JobSpec as YAML or JSON")
    return _parse_json(body) if "json" in content_type else jobspec.parse(body)


def _parse_json(body: bytes) -> jobspec.JobSpec:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f"a JobSpec is an object, got {type(document).__name__}")
    return jobspec.validate(document)
