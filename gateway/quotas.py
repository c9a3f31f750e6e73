"""Whether a job has room in its tenant's quota. Pure but for the look at the quota."""

from __future__ import annotations

from gateway.record import JobRecord
from gateway.sizing import usage
from gateway.store import Admit
from services.api.access import Quota, Usage
from services.kit.errors import QuotaExceeded


def within(tenant: str, quota: Quota) -> Admit:
    """An `Admit` for the store. A change that takes no more than the job had always has room: a
    tenant whose quota was lowered can still scale down.
    """

    def admit(before: JobRecord | None, record: JobRecord, others: list[JobRecord]) -> None:
        had = [before] if before is not None and not before.state.at_rest else []
        has = [record] if not record.state.at_rest else []  # a paused job may ask for other counts
        present, wanted = used([*others, *had]), used([*others, *has])
        grown = {field: value for field, value in wanted if value > getattr(present, field)}
        found = shortages(tenant, quota, Usage(**grown))
        if found:
            raise QuotaExceeded("\n".join(found))

    return admit


def used(records: list[JobRecord]) -> Usage:
    """What the jobs take; one that is about to scale counts with the trainers it asks for, if they
    are more.
    """
    taken = usage([record.job_spec for record in records])
    asked = sum(
        max(0, record.scale_to - record.spec["resources"]["trainers"])
        for record in records
        if record.scale_to is not None
    )
    return taken.model_copy(update={"trainers": taken.trainers + asked})


def shortages(tenant: str, quota: Quota, wanted: Usage) -> list[str]:
    """One line for each bound that `wanted` is above."""
    lines = []
    for field in ("jobs", "trainers", "memory_bytes"):
        bound, value = getattr(quota, field), getattr(wanted, field)
        if bound is not None and value > bound:
            lines.append(f"{field}: tenant {tenant!r} would use {value}; its quota is {bound}")
    return lines
