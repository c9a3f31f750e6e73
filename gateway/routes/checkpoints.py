"""`/v1/jobs/{job}`: take, list and restore checkpoints."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gateway import commands
from gateway.compile import PARTITIONS
from gateway.deps import Gateway, Operator, Parts, Viewer
from gateway.identity import Identity
from gateway.present import job_view
from gateway.record import JobRecord
from gateway.routes.headers import Conditional
from gateway.routes.jobs import asked, own, room
from services.api import manifest
from services.api.views import CheckpointView, JobState, JobView, RestoreRequest
from services.kit.errors import Conflict, InvalidInput, NotFound

router = APIRouter(prefix="/v1/jobs", tags=["checkpoints"])


@router.post("/{job}:checkpoint")
def take(gateway: Parts, who: Operator, job: str) -> CheckpointView:
    """Takes a checkpoint now and answers when it is complete."""
    record = gateway.job(who, job)
    _folder(record)
    if record.state != JobState.RUNNING:
        raise Conflict(f"job {job} is {record.state}; a checkpoint is taken of a running job")
    return gateway.checkpoints.take(job, record.generation)


@router.get("/{job}/checkpoints")
def list_checkpoints(gateway: Parts, who: Viewer, job: str) -> list[CheckpointView]:
    """Complete checkpoints, oldest first."""
    record = gateway.job(who, job)
    if record.spec.get("checkpoint") is None:
        return []
    return gateway.checkpoints.list(job, _folder(record))


@router.post("/{job}:restore", status_code=202)
def restore(
    gateway: Parts,
    who: Operator,
    response: Response,
    conditions: Conditional,
    job: str,
    body: RestoreRequest,
) -> JobView:
    """Starts the job again from a checkpoint, maybe with other counts of processes; also when it
    had ended.
    """
    record = gateway.job(who, job)
    uri = _manifest(gateway, record, body.checkpoint)
    stored = manifest.read(gateway.storage, uri)
    _check_owner(gateway, who, uri, stored.job)
    if stored.partitions != PARTITIONS:
        raise InvalidInput(
            f"{uri} has {stored.partitions} partitions; this gateway's jobs have {PARTITIONS}"
        )
    change = conditions.on(
        lambda r: commands.restore(r, uri, body, gateway.clock()),
        f"restore {body.model_dump_json()}",
    )
    before = record.version
    record = gateway.store.update(job, own(who, change), room(gateway, record.tenant))
    if record.version != before:
        asked(gateway, job, "restore", f"restore from {uri} was asked for")
    response.headers["ETag"] = commands.etag(record)
    return job_view(record)


def _check_owner(gateway: Gateway, who: Identity, uri: str, job: str) -> None:
    """Another tenant's checkpoint is not there, even for who knows its URI."""
    try:
        owner = gateway.store.get(job)
    except NotFound:
        return  # taken by another installation, or before its records were lost
    if not who.sees(owner.tenant):
        raise NotFound(f"there is no checkpoint {uri}")


def _manifest(gateway: Gateway, record: JobRecord, wanted: str | None) -> str:
    """URI of the manifest the request names by id or URI, or of the newest one."""
    if wanted is not None and "://" in wanted:
        return wanted
    if wanted is None:
        newest = gateway.registry.latest_checkpoint(record.id)
        if newest is not None:
            return newest.uri
    known = gateway.checkpoints.list(record.id, _folder(record))
    if not known:
        raise NotFound(f"job {record.id} has no checkpoint")
    if wanted is None:
        return known[-1].uri
    for checkpoint in known:
        if checkpoint.id == wanted:
            return checkpoint.uri
    ids = ", ".join(c.id for c in known)
    raise NotFound(f"job {record.id} has no checkpoint {wanted!r}; it has {ids}")


def _folder(record: JobRecord) -> str:
    checkpoint = record.spec.get("checkpoint")
    if checkpoint is None:
        raise Conflict(f"job {record.id} has no `checkpoint` in its spec")
    return str(checkpoint["to"])
