"""Target `kubernetes`: every process is a pod of a StatefulSet, in one namespace.

What is made is in `gateway.kubernetes.manifests`; how a process is known to have ended, and why
none begins twice, in `gateway.kubernetes.ledger`. In short: a pod waits until it is granted an
incarnation; what ended shows in its container's status, or by its pod being gone.

The fence: every action begins with the job's ledger, which holds the highest token seen; a lower
one is refused. The ledger is written by compare-and-set before anything that follows from it, and
pods are changed in the very version that was looked at. So a gateway that lost the lead in the
middle of an action can at most hand over a grant that the ledger holds already and its successor
has read, or make an object of a generation that is over, which nobody grants anything and the next
sweep removes.

Its log is gone with a pod. Of those that failed the gateway keeps the last lines
(`gateway.last_logs`); collect whole logs with what the cluster has for that.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import prometheus_client

from gateway.config import GatewayConfig
from gateway.kubernetes import ledger as ledgers
from gateway.kubernetes import manifests, names, pods
from gateway.kubernetes.api import (
    CONFIG_MAPS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Api,
    Kind,
    Object,
    connect,
)
from gateway.kubernetes.config import KubernetesConfig
from gateway.kubernetes.ledger import Ledger
from gateway.kubernetes.metrics import ApiMetrics
from gateway.kubernetes.pods import Pod
from gateway.targets import Observe, Process, ProcessSpec
from services.kit import config
from services.kit.discovery import Role
from services.kit.errors import Conflict, EmbermeshError, InvalidInput, NotFound, Unavailable

_CLAIM_TRIES = 5  # each one lost to another gateway's write
# In the order of their making; the StatefulSet last, for it needs the others.
_KINDS = {"ConfigMap": CONFIG_MAPS, "Service": SERVICES, "StatefulSet": STATEFUL_SETS}


class KubernetesTarget:
    """See Target, Surveyor, Keeper and Measured. Keeps nothing, so threads may share it.
    `stop_seconds`: from SIGTERM to SIGKILL.
    """

    def __init__(self, api: Api, settings: KubernetesConfig, stop_seconds: float) -> None:
        self._api, self._settings, self._stop_seconds = api, settings, stop_seconds

    def expose(self, registry: prometheus_client.CollectorRegistry) -> None:
        """See Measured."""
        self._api.watch(ApiMetrics(registry).answered)

    def observe(self, job: str, generation: int) -> list[Process]:
        """See Target."""
        try:
            ledger = self._ledger(job)
        except NotFound:
            ledger = Ledger(job)
        # Pods second: one that is newer than the ledger that was read just waits.
        return pods.observe(ledger, generation, self._pods(job, generation))

    def survey(self) -> Observe:
        """See Surveyor: two requests, however many jobs there are."""
        return _Survey(self._api, self._settings.instance).observe

    def start(self, processes: Sequence[ProcessSpec], fence: int) -> None:
        """See Target. Pods come some time after their StatefulSet, so it has to be repeated until
        `observe` shows all. Raises InvalidInput when settings lack what these processes need.
        """
        job, generation = processes[0].job, processes[0].generation
        ledger = self._claim(job, fence)
        if ledger.generation > generation:
            raise Conflict(f"job {job} is at generation {ledger.generation}, not {generation}")
        if ledger.generation < generation:
            ledger = self._store(dataclasses.replace(ledger, generation=generation, grants={}))
            self._remove_before({job: generation}, {names.JOB: job})
        self._make(processes, ledger)
        plan = pods.plan(ledger, self._pods(job, generation), processes)
        if plan.ledger != ledger:
            self._store(plan.ledger)
        for pod, incarnation in plan.deliver:
            with _outdated():
                grant = {names.GRANT: str(incarnation)}
                self._api.annotate(PODS, pod.name, pod.uid, pod.version, grant)
        for pod in plan.kill:
            with _outdated():
                self._api.delete(PODS, pod.name, pod.uid, grace=0)

    def stop(self, job: str, generation: int, *, kill: bool, fence: int) -> None:
        """See Target."""
        self._claim(job, fence)
        # First what would bring pods back.
        for document in self._list(STATEFUL_SETS, job, generation):
            self._remove(STATEFUL_SETS, document)
        for pod in self._pods(job, generation):
            if kill or not pod.deleting:
                with _outdated():
                    self._api.delete(PODS, pod.name, pod.uid, grace=0 if kill else None)

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        """See Target; of a pod that is gone there is none, and the one that came back in its
        place has nothing to say.
        """
        for pod in self._pods(job, generation):
            if pod.place == (role, rank) and pod.granted is not None:
                try:
                    return self._api.log(pod.name, names.CONTAINER, tail, previous=pod.again)
                except InvalidInput as error:
                    raise NotFound(f"{role} {rank} of job {job} has no log yet: {error}") from error
        raise NotFound(f"{role} {rank} of job {job}, generation {generation}, has no pod any more")

    def collect(self, active: Collection[str], fence: int) -> None:
        """See Keeper. Who deletes a ledger deletes all that is the job's."""
        generations = {}
        for document in self._api.list(CONFIG_MAPS, _every_ledger(self._settings.instance)):
            ledger = ledgers.parse(document)
            if ledger.fence > fence:
                raise _superseded(ledger, fence)
            if ledger.job in active:
                generations[ledger.job] = ledger.generation
                continue
            name = document["metadata"]["name"]
            with _outdated():  # it was started again after we looked
                self._api.delete(CONFIG_MAPS, name, ledger.uid, version=ledger.version)
        self._remove_before(generations, {})

    def _make(self, processes: Sequence[ProcessSpec], ledger: Ledger) -> None:
        """Makes the objects of those roles that lack their StatefulSet."""
        there = {
            document["metadata"]["labels"][names.ROLE]
            for document in self._list(STATEFUL_SETS, ledger.job, ledger.generation)
        }
        missing = [s for r, s in manifests.by_role(processes).items() if str(r) not in there]
        for specs in missing:
            made = manifests.objects(specs, self._settings, ledger.uid, self._stop_seconds)
            for document in made:
                with contextlib.suppress(Conflict):  # it is there already
                    self._api.create(_KINDS[document["kind"]], document)
        if missing:  # nothing refuses the making of an object, so look again
            present = self._ledger(ledger.job)
            if present.fence > ledger.fence:
                raise _superseded(present, ledger.fence)

    def _claim(self, job: str, fence: int) -> Ledger:
        """The job's ledger, which knows the token from now on. Raises Conflict for an old one."""
        for _ in range(_CLAIM_TRIES):
            with contextlib.suppress(Conflict):
                return self._claimed(job, fence)
            ledger = self._ledger(job)
            if ledger.fence > fence:
                raise _superseded(ledger, fence)
        raise Conflict(f"job {job}: somebody else keeps writing to its ledger")

    def _claimed(self, job: str, fence: int) -> Ledger:
        try:
            ledger = self._ledger(job)
        except NotFound:
            new = Ledger(job, fence, owners=self._owners())
            document = ledgers.render(new, self._settings.instance)
            return ledgers.parse(self._api.create(CONFIG_MAPS, document))
        if ledger.fence > fence:
            raise _superseded(ledger, fence)
        if ledger.fence == fence:
            return ledger
        return self._write(dataclasses.replace(ledger, fence=fence))

    def _owners(self) -> tuple[Mapping[str, Any], ...]:
        """Without its owner no job begins: a platform that is being removed must stay removed."""
        if not self._settings.owner:
            return ()
        try:
            return ledgers.owned_by(self._api.get(CONFIG_MAPS, self._settings.owner))
        except NotFound as error:
            name = f"{self._settings.PREFIX}OWNER"
            raise Unavailable(f"{name}={self._settings.owner!r}: {error}") from error

    def _store(self, ledger: Ledger) -> Ledger:
        """Raises Conflict that says so when a newer leader wrote meanwhile."""
        try:
            return self._write(ledger)
        except Conflict:
            present = self._ledger(ledger.job)
            if present.fence > ledger.fence:
                raise _superseded(present, ledger.fence) from None
            raise

    def _write(self, ledger: Ledger) -> Ledger:
        document = ledgers.render(ledger, self._settings.instance)
        return ledgers.parse(self._api.replace(CONFIG_MAPS, document))

    def _ledger(self, job: str) -> Ledger:
        return ledgers.parse(self._api.get(CONFIG_MAPS, names.ledger_name(job)))

    def _pods(self, job: str, generation: int) -> list[Pod]:
        return [pods.parse(document) for document in self._list(PODS, job, generation)]

    def _list(self, kind: Kind, job: str, generation: int) -> list[Object]:
        labels = names.of_job(self._settings.instance, job)
        return self._api.list(kind, names.selector({**labels, names.GENERATION: str(generation)}))

    def _remove_before(self, generations: dict[str, int], labels: dict[str, str]) -> None:
        """Removes objects of earlier generations of these jobs, among those with `labels`. Later
        ones are a new leader's.
        """
        wanted = names.selector({**names.of_instance(self._settings.instance), **labels})
        for kind in reversed(_KINDS.values()):
            for document in self._api.list(kind, f"{wanted},{names.GENERATION}"):
                of = document["metadata"]["labels"]
                if int(of[names.GENERATION]) < generations.get(of[names.JOB], 0):
                    self._remove(kind, document)

    def _remove(self, kind: Kind, document: Object) -> None:
        with _outdated():
            self._api.delete(kind, document["metadata"]["name"], document["metadata"]["uid"])


class _Survey:
    """All jobs' ledgers and pods as of one moment; see KubernetesTarget.survey. Not thread-safe."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api, self._instance = api, instance
        self._failure: EmbermeshError | None = None
        self._seen: tuple[dict[str, Object], dict[str, list[Object]]] | None = None

    def observe(self, job: str, generation: int) -> list[Process]:
        """See Target."""
        known, there = self._all()
        # Parsed here, so that what somebody did to one job's objects is that job's trouble alone.
        ledger = ledgers.parse(known[job]) if job in known else Ledger(job)
        return pods.observe(ledger, generation, [pods.parse(d) for d in there.get(job, ())])

    def _all(self) -> tuple[dict[str, Object], dict[str, list[Object]]]:
        if self._failure is not None:  # asking again for every job would take as long for each
            raise self._failure
        if self._seen is None:
            try:
                self._seen = self._look()
            except EmbermeshError as error:
                self._failure = error
                raise
        return self._seen

    def _look(self) -> tuple[dict[str, Object], dict[str, list[Object]]]:
        ledgers_of = {
            document["metadata"]["labels"][names.JOB]: document
            for document in self._api.list(CONFIG_MAPS, _every_ledger(self._instance))
        }
        # Pods second: one that is newer than the ledger that was read just waits.
        pods_of: dict[str, list[Object]] = {}
        labels = names.selector(names.of_instance(self._instance))
        for document in self._api.list(PODS, f"{labels},{names.JOB}"):
            pods_of.setdefault(document["metadata"]["labels"][names.JOB], []).append(document)
        return ledgers_of, pods_of


def create(settings: GatewayConfig) -> KubernetesTarget:
    """The target as the gateway's settings and `EMBERMESH_KUBERNETES_*` describe it."""
    own = config.load(KubernetesConfig)
    return KubernetesTarget(connect(own), own, settings.stop_seconds)


def _every_ledger(instance: str) -> str:
    """Selects the ledgers of all jobs; other objects of jobs belong to a generation."""
    labels = names.selector(names.of_instance(instance))
    return f"{labels},{names.JOB},!{names.GENERATION}"


def _outdated() -> contextlib.suppress:
    """What follows is about an object as it was seen; the next look sees what it has become."""
    return contextlib.suppress(Conflict, NotFound)


def _superseded(ledger: Ledger, fence: int) -> Conflict:
    return Conflict(
        f"job {ledger.job}: token {fence} is older than {ledger.fence}; another gateway leads"
    )
