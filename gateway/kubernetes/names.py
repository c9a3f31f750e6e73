"""Names and labels of what the target makes. Pure.

A job has one object of its own, the ledger; a generation has for each role a ConfigMap, a headless
Service and a StatefulSet, all of one name. Labels are what objects are found by; names are only
short enough, unique, and fit for people.
"""

from __future__ import annotations

import hashlib

from services.kit.discovery import Role

DOMAIN = "embermesh.io/"
JOB, GENERATION, ROLE = f"{DOMAIN}job", f"{DOMAIN}generation", f"{DOMAIN}role"
GRANT = f"{DOMAIN}incarnation"  # annotation of a pod: the incarnation that it may run, see `ledger`
CONTAINER = "member"
GRPC_PORT, METRICS_PORT = 7800, 7801  # of every pod
_PART_OF = "app.kubernetes.io/part-of"
_INSTANCE = "app.kubernetes.io/instance"
# A StatefulSet's name goes with ten characters more into a label of its pods, which holds 63.
_LONGEST = 52
_JOB_LONGEST = _LONGEST - len("em--") - len("-sparse-ps") - 7  # of a generation: ten million


def of_instance(instance: str) -> dict[str, str]:
    """Labels of everything that belongs to this platform."""
    return {_PART_OF: "embermesh", _INSTANCE: instance}


def of_job(instance: str, job: str) -> dict[str, str]:
    """Labels of everything that belongs to the job."""
    return {**of_instance(instance), "app.kubernetes.io/name": "embermesh-job", JOB: job}


def of_role(instance: str, job: str, generation: int, role: Role) -> dict[str, str]:
    """Labels of everything that belongs to one role of a generation, pods included."""
    return {
        **of_job(instance, job),
        "app.kubernetes.io/component": str(role),
        "app.kubernetes.io/managed-by": "embermesh-gateway",
        GENERATION: str(generation),
        ROLE: str(role),
    }


def selector(labels: dict[str, str]) -> str:
    """A label selector for all of `labels`."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def ledger_name(job: str) -> str:
    """Name of the job's own ConfigMap."""
    return f"em-{_short(job)}"


def role_name(job: str, generation: int, role: Role) -> str:
    """Name of a role's objects; `-RANK` behind it names a pod."""
    return f"em-{_short(job)}-{generation}-{role}"


def rank_of(pod: str) -> int:
    """The rank that a StatefulSet's pod of that name has."""
    return int(pod.rsplit("-", 1)[1])


def _short(job: str) -> str:
    if len(job) <= _JOB_LONGEST:
        return job
    digest = hashlib.sha256(job.encode()).hexdigest()[:10]
    return f"{job[: _JOB_LONGEST - 11].rstrip('-')}-{digest}"
