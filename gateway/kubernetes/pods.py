"""Pods and a ledger -> the processes there are, and what is to be done for those there shall be.
Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.kubernetes import names
from gateway.kubernetes.ledger import Grant, Ledger, Place
from gateway.targets import NOT_YET, Process, ProcessSpec
from services.kit.discovery import Role

_SIGNALS = range(129, 129 + 64)  # exit codes by which a shell, and a container, tells a signal
_PLAIN = ("Error", "Completed")  # reasons of an end that say no more than its exit code
_USUAL_WAITS = ("ContainerCreating", "PodInitializing")
_ENDED_PHASES = ("Failed", "Succeeded")


@dataclasses.dataclass(frozen=True)
class End:
    """How a pod's process ended; `code` as in Process."""

    code: int | None
    words: str


@dataclasses.dataclass(frozen=True)
class Pod:
    """A pod of a job, as it was listed."""

    name: str
    uid: str
    version: str
    generation: int
    role: Role
    granted: int | None = None  # the incarnation in its annotation
    deleting: bool = False
    end: End | None = None  # of its first process, also if the container runs again
    again: bool = False  # the container runs again, so the process's log is the one before
    waits_for: str = ""  # why its container has not begun

    @property
    def place(self) -> Place:
        """Role and rank."""
        return self.role, names.rank_of(self.name)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The ledger to store if it changed; then grants to hand over, and pods to kill."""

    ledger: Ledger
    deliver: tuple[tuple[Pod, int], ...] = ()
    kill: tuple[Pod, ...] = ()


def parse(document: Mapping[str, Any]) -> Pod:
    """From the API's pod."""
    meta, status = document["metadata"], document.get("status") or {}
    grant = (meta.get("annotations") or {}).get(names.GRANT)
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        generation=int(meta["labels"][names.GENERATION]),
        role=Role(meta["labels"][names.ROLE]),
        granted=None if grant is None else int(grant),
        deleting="deletionTimestamp" in meta,
        end=_end(status),
        again=_container(status).get("restartCount", 0) > 0,
        waits_for=_waits_for(status),
    )


def observe(ledger: Ledger, generation: int, pods: Iterable[Pod]) -> list[Process]:
    """See Target. A place whose pod went ended with it, for the pod that came back has no grant."""
    there = {pod.place: pod for pod in pods if pod.generation == generation}
    found = []
    for (role, rank), grant in ledger.granted(generation).items():
        pod = there.get((role, rank))
        if pod is None or pod.uid != grant.uid:
            words = "its pod was deleted"
            found.append(Process(role, rank, False, None, words, grant.incarnation))
        elif pod.granted == grant.incarnation:
            del there[role, rank]
            end = pod.end
            if end is not None:
                found.append(Process(role, rank, False, end.code, end.words, grant.incarnation))
            else:
                waits = pod.waits_for
                found.append(
                    Process(role, rank, True, incarnation=grant.incarnation, waits_for=waits)
                )
    found += [
        Process(*place, alive=True, incarnation=NOT_YET, waits_for=pod.waits_for)
        for place, pod in there.items()
    ]
    return sorted(found, key=lambda p: (p.role, p.rank, p.incarnation))


def plan(ledger: Ledger, pods: Iterable[Pod], processes: Sequence[ProcessSpec]) -> Plan:
    """What brings `processes`, all of one generation, nearer to running. Repeated until `observe`
    shows them; nothing is left to do then.
    """
    generation = processes[0].generation
    there = {pod.place: pod for pod in pods if pod.generation == generation}
    grants = dict(ledger.granted(generation))
    deliver: list[tuple[Pod, int]] = []
    kill: list[Pod] = []
    for spec in processes:
        place = spec.role, spec.rank
        pod, grant = there.get(place), grants.get(place)
        if pod is None or (grant is not None and grant.incarnation > spec.incarnation):
            continue
        if grant is not None and grant.incarnation == spec.incarnation:
            if pod.uid == grant.uid and pod.granted is None and not pod.deleting:
                deliver.append((pod, spec.incarnation))
        elif _fresh(pod, grant):
            grants[place] = Grant(spec.incarnation, pod.uid)
            deliver.append((pod, spec.incarnation))
        else:
            kill.append(pod)
    planned = dataclasses.replace(ledger, generation=generation, grants=grants)
    return Plan(planned, tuple(deliver), tuple(kill))


def _fresh(pod: Pod, earlier: Grant | None) -> bool:
    """Whether nothing ran in the pod and nothing was ever promised to it: a promise that was not
    handed over may still be, by a gateway that was slow.
    """
    unspoilt = pod.granted is None and pod.end is None and not pod.deleting
    return unspoilt and (earlier is None or earlier.uid != pod.uid)


def _end(status: Mapping[str, Any]) -> End | None:
    container = _container(status)
    states = (container.get("state") or {}, container.get("lastState") or {})
    for state in reversed(states):  # the first run, if the container runs again
        if state.get("terminated"):
            return _terminated(state["terminated"])
    if container.get("restartCount", 0) > 0:
        return End(None, "its container was started again")
    if status.get("phase") in _ENDED_PHASES:
        return End(None, _reason(status) or f"its pod {status['phase'].lower()}")
    return None


def _terminated(state: Mapping[str, Any]) -> End:
    code = int(state.get("exitCode", 0))
    if state.get("signal"):
        code = -int(state["signal"])
    elif code in _SIGNALS:
        code = 128 - code
    reason, message = state.get("reason") or "", state.get("message") or ""
    said = [reason] if reason and reason not in _PLAIN else []
    return End(code, "\n".join([*said, *([message] if message else [])]))


def _waits_for(status: Mapping[str, Any]) -> str:
    waiting = (_container(status).get("state") or {}).get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in _USUAL_WAITS:
        return _reason(waiting)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return _reason(condition)
    return ""


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for container in status.get("containerStatuses") or ():
        if container["name"] == names.CONTAINER:
            return dict(container)
    return {}


def _reason(what: Mapping[str, Any]) -> str:
    """`reason: message`, as far as they are there."""
    return ": ".join(what[key] for key in ("reason", "message") if what.get(key))
