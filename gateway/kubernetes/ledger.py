"""What the target remembers of a job, in one ConfigMap: the leader's token and the grants. Pure.

Why grants: a StatefulSet brings back whatever ends, but a process of a generation may begin only
once (a parameter server that came back would be empty and say nothing about it). So a pod begins
nothing by itself: it waits (`services.kit.pod_entry`) until it is granted an incarnation of its
rank. A grant names one pod by its uid; the ledger holds it first, then the pod's annotation carries
it. A pod that comes back has another uid and no grant, so it waits, and the rank counts as ended
until the reconciler asks for its next incarnation or generation. A container that comes back inside
its pod finds the mark of its first run, and waits as well.

Why here: the ledger is written by compare-and-set (its resourceVersion), so of two gateways only
one grants, and one whose token is lower than the ledger's is refused. The ledger owns all other
objects of the job: deleting it deletes them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gateway.kubernetes import names
from services.kit.discovery import Role
from services.kit.errors import Damaged

Place = tuple[Role, int]


@dataclasses.dataclass(frozen=True)
class Grant:
    """The newest incarnation of a rank that may run, and the one pod that may run it."""

    incarnation: int
    uid: str


@dataclasses.dataclass(frozen=True)
class Ledger:
    """A ledger as it was read. `uid` and `version` are Kubernetes'; empty before it is stored."""

    job: str
    fence: int = 0  # highest leader token seen
    generation: int = 0  # of the grants
    grants: Mapping[Place, Grant] = dataclasses.field(default_factory=dict)
    uid: str = ""
    version: str = ""
    owners: tuple[Mapping[str, Any], ...] = ()  # ownerReferences: what deletes it with itself

    def granted(self, generation: int) -> Mapping[Place, Grant]:
        """The grants of that generation; none once another one began."""
        return self.grants if self.generation == generation else {}


def parse(document: Mapping[str, Any]) -> Ledger:
    """From the ConfigMap. Raises Damaged for one that somebody else wrote."""
    meta, data = document["metadata"], document.get("data") or {}
    try:
        grants = {
            (Role(role), int(rank)): Grant(incarnation, uid)
            for role, ranks in json.loads(data["grants"]).items()
            for rank, (incarnation, uid) in ranks.items()
        }
        return Ledger(
            job=meta["labels"][names.JOB],
            fence=int(data["fence"]),
            generation=int(data["generation"]),
            grants=grants,
            uid=meta["uid"],
            version=meta["resourceVersion"],
            owners=tuple(meta.get("ownerReferences") or ()),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise Damaged(f"ConfigMap {meta['name']} is no ledger of a job: {what}") from error


def render(ledger: Ledger, instance: str) -> dict[str, Any]:
    """The ConfigMap; with the version that was read, so that a write over a newer one fails."""
    grants: dict[str, dict[str, tuple[int, str]]] = {}
    for (role, rank), grant in sorted(ledger.grants.items()):
        grants.setdefault(str(role), {})[str(rank)] = (grant.incarnation, grant.uid)
    meta: dict[str, Any] = {
        "name": names.ledger_name(ledger.job),
        "labels": names.of_job(instance, ledger.job),
    }
    if ledger.owners:
        meta["ownerReferences"] = [dict(owner) for owner in ledger.owners]
    if ledger.version:
        meta |= {"resourceVersion": ledger.version, "uid": ledger.uid}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": {
            "fence": str(ledger.fence),
            "generation": str(ledger.generation),
            "grants": json.dumps(grants, separators=(",", ":")),
        },
    }


def owned_by(config_map: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """`owners` of a ledger that shall go when that ConfigMap goes."""
    meta = config_map["metadata"]
    return ({"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]},)
