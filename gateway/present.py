"""Records and leases -> the views of the API. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gateway.record import JobRecord
from gateway.replacement import progress_since
from services.api.views import CheckpointView, JobView, MemberView
from services.kit.discovery import Checkpoint, Member, incarnation_of


def job_view(
    record: JobRecord, members: Sequence[Member] = (), newest: Checkpoint | None = None
) -> JobView:
    """The job as users see it; progress is live while it runs, and what the last generation left
    otherwise. Of a trainer that was replaced only the replacement counts.
    """
    members = [
        m for m in members if m.incarnation == incarnation_of(record.incarnations, m.role, m.rank)
    ]
    live = bool(members) and record.state.trains
    checkpoint = record.checkpoint if newest is None else checkpoint_view(newest)
    return JobView(
        id=record.id,
        name=record.name,
        state=record.state,
        generation=record.generation,
        restarts=record.restarts,
        created=record.created,
        updated=record.updated,
        error=record.error,
        spec=record.spec,
        progress=progress_since(record, members) if live else record.progress,
        result=record.result,
        checkpoint=checkpoint,
        members=[member_view(m) for m in members],
        version=record.version,
        tenant=record.tenant,
    )


def member_view(member: Member) -> MemberView:
    """One process."""
    return MemberView(
        role=str(member.role),
        rank=member.rank,
        phase=str(member.phase),
        address=member.address,
        metrics_address=member.metrics_address,
        error=member.error,
        status=member.status,
    )


def checkpoint_view(checkpoint: Checkpoint) -> CheckpointView:
    """A complete checkpoint."""
    return CheckpointView(**dataclasses.asdict(checkpoint))
