"""`/v1/jobs`: submit, list, look at, cancel, pause, resume, scale."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse

from gateway import admission, commands, quotas, sizing
from gateway.deps import Gateway, Operator, Parts, Viewer, visible
from gateway.identity import Identity
from gateway.present import job_view
from gateway.record import JobRecord, new_record
from gateway.routes.headers import Conditional, Key
from gateway.store import Admit
from services.api import spec as jobspec
from services.api.access import Quota, TenantName
from services.api.views import EventList, EventView, JobList, JobSize, JobView, ScaleRequest
from services.kit import trail
from services.kit.discovery import Role
from services.kit.errors import InvalidInput, NotFound

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

EVENT_ID = r"^(-|\d{1,20}(-\d{1,20})?)$"
_MAX_ROWS = 10**15
_CALLED = {"trainers": "trainers", "sparse_ps": "sparse-PS", "dense_ps": "dense-PS"}


async def _raw_body(request: Request) -> bytes:
    return await request.body()


@router.post(
    "", status_code=201, responses={200: {"model": JobSize, "description": "With dry_run."}}
)
def submit(
    gateway: Parts,
    who: Operator,
    request: Request,
    response: Response,
    body: Annotated[bytes, Depends(_raw_body)],
    content_type: Annotated[str, Header(include_in_schema=False)] = "",
    key: Key = "",
    dry_run: Annotated[bool, Query(description="Only say what the job would take.")] = False,
    assumed_rows: Annotated[
        int, Query(ge=1, le=_MAX_ROWS, description="Dry run: rows of a table without a bound.")
    ] = sizing.ASSUMED_ROWS,
    tenant: Annotated[TenantName | None, Query(description="Default: the caller's own.")] = None,
) -> JobView | JobSize:
    """Starts a job from a JobSpec in YAML or JSON. The same Idempotency-Key and body give the same
    job. With `dry_run` nothing starts: the answer is the job's size and whether it has room.
    """
    spec, home = _parse(body, content_type), who.home(tenant)
    admission.check(spec)
    record = new_record(spec, gateway.clock(), home)
    if dry_run:
        response.status_code = 200
        return _size(gateway, record, assumed_rows)
    record, created = gateway.store.create(record, key, body, room(gateway, home))
    if created:
        asked(gateway, record.id, "submitted", f"job {record.id} was submitted")
    request.state.job = record.id  # for the audit log
    response.headers["Location"] = f"/v1/jobs/{record.id}"
    return view(gateway, record, response)


@router.get("")
def list_jobs(
    gateway: Parts,
    who: Viewer,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[
        str, Query(max_length=200, description="`next` of the page before this one.")
    ] = "",
) -> JobList:
    """Jobs the caller may see, newest first, page by page."""
    records = gateway.store.page(who.tenant, limit + 1, cursor)
    page, more = records[:limit], len(records) > limit
    return JobList(
        jobs=[look(gateway, record) for record in page], next=page[-1].id if more else None
    )


@router.get("/{job}")
def get(gateway: Parts, who: Viewer, response: Response, job: str) -> JobView:
    """The job as it stands now, with its processes. ETag names the record's version."""
    return view(gateway, gateway.job(who, job), response)


@router.post("/{job}:cancel", status_code=202)
def cancel(
    gateway: Parts, who: Operator, response: Response, conditions: Conditional, job: str
) -> JobView:
    """Stops the job for good; its checkpoints stay."""
    before = gateway.job(who, job)
    change = conditions.on(lambda r: commands.cancel(r, gateway.clock()), "cancel")
    record = gateway.store.update(job, own(who, change))
    if record.version != before.version:
        asked(gateway, job, "cancel", "cancellation was asked for")
    return view(gateway, record, response)


@router.post("/{job}:pause", status_code=202)
def pause(
    gateway: Parts, who: Operator, response: Response, conditions: Conditional, job: str
) -> JobView:
    """Takes a checkpoint, ends the job's processes and keeps it until it is resumed. A checkpoint
    that fails leaves it running, and an event says why.
    """
    before = gateway.job(who, job)
    change = conditions.on(lambda r: commands.pause(r, gateway.clock()), "pause")
    record = gateway.store.update(job, own(who, change))
    if record.version != before.version:
        asked(gateway, job, "pause", "a pause was asked for")
    return view(gateway, record, response)


@router.post("/{job}:resume", status_code=202)
def resume(
    gateway: Parts, who: Operator, response: Response, conditions: Conditional, job: str
) -> JobView:
    """Starts a paused job again where it was paused, if its tenant's quota has room; takes back a
    pause that is under way.
    """
    before = gateway.job(who, job)
    change = conditions.on(lambda r: commands.resume(r, gateway.clock()), "resume")
    record = gateway.store.update(job, own(who, change), room(gateway, before.tenant))
    if record.version != before.version:
        asked(gateway, job, "resume", "it was asked to go on")
    return view(gateway, record, response)


@router.post("/{job}:scale", status_code=202)
def scale(
    gateway: Parts,
    who: Operator,
    response: Response,
    conditions: Conditional,
    job: str,
    body: ScaleRequest,
) -> JobView:
    """Goes on with other numbers of processes, from a checkpoint that is taken first. What the body
    leaves out stays as it is, or as it was asked for before. A paused job resumes with them.
    """
    change = conditions.on(
        lambda r: commands.scale(
            r,
            body.trainers,
            gateway.clock(),
            sparse_ps=body.sparse_ps,
            dense_ps=body.dense_ps,
            request=trail.present().request_id,
            trace=gateway.traces.carried(),
        ),
        f"scale {body.model_dump_json()}",
    )
    before = gateway.job(who, job)
    record = gateway.store.update(job, own(who, change), room(gateway, before.tenant))
    if record.version != before.version:
        counts = ", ".join(f"{n} {_CALLED[field]}" for field, n in body.counts().items())
        asked(gateway, job, "scale", f"{counts} were asked for")
    return view(gateway, record, response)


@router.get("/{job}/events")
def events(
    gateway: Parts, who: Viewer, job: str, after: Annotated[str, Query(pattern=EVENT_ID)] = "-"
) -> EventList:
    """What happened to the job, oldest first; `after` the id of an event gives only later ones."""
    gateway.job(who, job)
    return EventList(
        events=[EventView.model_validate(e) for e in gateway.registry.events(job, after)]
    )


@router.get("/{job}/logs", response_class=PlainTextResponse)
def logs(
    gateway: Parts,
    who: Viewer,
    job: str,
    role: Role = Role.TRAINER,
    rank: Annotated[int, Query(ge=0, le=65_535)] = 0,
    tail: Annotated[int, Query(ge=1, le=10_000)] = 200,
    generation: Annotated[int | None, Query(ge=1)] = None,
) -> str:
    """The last `tail` lines of a process; of the newest generation unless another is named. Of one
    that failed and is gone, those that were kept: at most 50.
    """
    record = gateway.job(who, job)
    wanted = record.generation if generation is None else generation
    try:
        return gateway.target.logs(job, wanted, role, rank, tail)
    except NotFound:
        with contextlib.suppress(NotFound):  # the target's own words tell more
            return gateway.kept.find(job, wanted, role, rank, tail)
        raise


def own(who: Identity, change: commands.Change) -> commands.Change:
    """`change` of a job that exists for the caller."""
    return lambda record: change(visible(who, record))


def room(gateway: Gateway, tenant: str) -> Admit | None:
    """What asks whether the tenant's quota has room for a changed job; None: it has no bounds."""
    quota = gateway.tenancy.quota(tenant) or gateway.access.quota
    return quotas.within(tenant, quota) if quota != Quota() else None


def asked(gateway: Gateway, job: str, kind: str, message: str) -> None:
    """Notes a change that a user asked for, and lets the reconciler look at once."""
    gateway.registry.emit(job, kind, message)
    gateway.wake()


def look(gateway: Gateway, record: JobRecord) -> JobView:
    """The job as it stands now; progress and processes are looked up while it lives."""
    if record.state.at_rest or record.generation == 0:
        return job_view(record)
    members = gateway.registry.members(record.id, record.generation)
    return job_view(record, members, gateway.registry.latest_checkpoint(record.id))


def view(gateway: Gateway, record: JobRecord, response: Response) -> JobView:
    """The job as it stands now; the response gets its ETag."""
    response.headers["ETag"] = commands.etag(record)
    return look(gateway, record)


def _size(gateway: Gateway, record: JobRecord, assumed_rows: int) -> JobSize:
    """Room is judged as a submission would be, whatever rows the caller assumes."""
    bound = gateway.tenancy.quota(record.tenant) or gateway.access.quota
    wanted = quotas.used([*gateway.store.active(record.tenant), record])
    found = quotas.shortages(record.tenant, bound, wanted)
    sized = sizing.size(record.job_spec, assumed_rows)
    return sized.model_copy(update={"admitted": not found, "shortages": found})


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
