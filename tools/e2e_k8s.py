"""`make e2e-k8s`: the Helm chart on a real Kubernetes, from building the images to a namespace that
is empty again. On its way a job scales, loses a trainer's pod, and lives through an upgrade.

The last line of its output is a JSON object: `ok`, seconds of each stage, versions, image sizes,
and what was seen. `EMBERMESH_E2E_KEEP=1` leaves the cluster up to be looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from embermesh.client import Client
from gateway import identity
from gateway.kubernetes import names
from services.api.views import JobState, JobView
from services.kit.discovery import Role
from services.kit.errors import Unavailable
from tools.cluster import Cluster
from tools.e2e_compose import Stack, build, engine, third_party
from tools.stages import ROOT, Report, StageFailed, main, say, until

CHART = ROOT / "helm" / "embermesh"
RELEASE, NAMESPACE = "ember", "embermesh-e2e"
FOLDER = ROOT / "build" / "e2e-k8s"
# Seconds, for a machine that has other things to do.
INSTALLS, STARTS, RECOVERS, GOES_ON = 600, 420.0, 420.0, 120.0
START = "EMBERMESH_GATEWAY_START_SECONDS"
JOB: dict[str, Any] = {
    "name": "clicks",
    "model": {"name": "deepfm", "hidden": [32, 16]},
    "data": {"source": "synthetic://criteo?rows=50000000"},  # more than this run lives to see
    "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": 4, "encode": "id"}}},
    "training": {"mode": "hybrid", "batch_size": 128, "seed": 3},
    "resources": {
        "sparse_ps": 2,
        "dense_ps": 1,
        "trainers": 1,
        # Without a request a pod gets what others leave of a busy processor, which is nothing.
        "pods": {"trainer": {"cpu": 0.3}, "sparse_ps": {"cpu": 0.1}, "dense_ps": {"cpu": 0.1}},
    },
    "checkpoint": {"to": "file:///checkpoints", "every": "30s", "keep": 2},
    "max_restarts": 10,
}


class Release:
    """The chart, installed in the cluster; `tag` is our images'."""

    def __init__(self, cluster: Cluster, tag: str, redis: str, kafka: str) -> None:
        # Helm's library reads the environment when it is loaded.
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"
        import helm_python

        self._helm = helm_python.Config(
            kubeconfig_path=str(cluster.kubeconfig), namespace=cluster.namespace
        )
        self.version: str = helm_python.helm_sdk_version()
        _, self.token = identity.new_token()
        self.values: dict[str, Any] = {
            "image": {"tag": tag, "pullPolicy": "Never"},
            "gateway": {
                "extraEnv": [{"name": START, "value": str(int(STARTS))}],
                # Four of them, two on their way out, must fit beside the job on two cores.
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            },
            "access": {"adminDigest": identity.digest(self.token)},
            "checkpointVolume": {"enabled": True, "size": "1Gi", "keep": False},
            "redis": {"image": redis, "size": "1Gi", "password": "only-for-this-run"},
            "kafka": {"enabled": True, "image": kafka, "size": "", "heap": "256m"},
        }

    def install(self) -> None:
        """And waits until everything is ready."""
        self._helm.install(
            str(CHART),
            RELEASE,
            self.values,
            namespace=NAMESPACE,
            create_namespace=True,
            wait="watcher",
            timeout=INSTALLS,
        )

    def upgrade(self, **gateway: Any) -> None:
        """With these values of the gateway changed; waits until everything is ready."""
        self.values["gateway"] |= gateway
        self._helm.upgrade(
            str(CHART), RELEASE, self.values, namespace=NAMESPACE, wait="watcher", timeout=INSTALLS
        )

    def test(self) -> None:
        """`helm test`."""
        self._helm.test(RELEASE, timeout=INSTALLS)

    def uninstall(self) -> None:
        """Removes the release, and with it the jobs that run."""
        self._helm.uninstall(RELEASE, timeout=INSTALLS)


class Watch:
    """The job as the gateway shows it, and its pods as Kubernetes does."""

    def __init__(self, cluster: Cluster, client: Client, job: str) -> None:
        self._cluster, self._client, self.job = cluster, client, job

    def view(self) -> JobView:
        """Raises StageFailed when the job is over."""
        view = self._client.get(self.job)
        if view.state.final:
            raise StageFailed(f"the job is {view.state} too early: {view.error}")
        return view

    def runs_with(self, trainers: int, seconds: float) -> JobView:
        """Waits until the job runs and every StatefulSet has its pods ready."""

        def there() -> JobView | None:
            view = self.view()
            sets = self._cluster.stateful_sets(f"{names.JOB}={self.job}")
            mine = {
                names.role_name(self.job, view.generation, role): count
                for role, count in (
                    (Role.SPARSE_PS, 2),
                    (Role.DENSE_PS, 1),
                    (Role.TRAINER, trainers),
                )
            }
            ready = {name: (count, count) for name, count in mine.items()}
            return view if view.state == JobState.RUNNING and sets == ready else None

        return until(there, seconds=seconds, what=f"a running job with {trainers} trainers")

    def trains_on(self) -> JobView:
        """Waits until more samples have been seen than now."""
        before = self.view().progress.samples

        def more() -> JobView | None:
            view = self.view()
            return view if view.progress.samples > before + 2000 else None

        return until(more, seconds=GOES_ON, what=f"more than {before} samples")

    def pods(self) -> dict[str, str]:
        """Name -> uid of the job's pods."""
        found = self._cluster.pods(f"{names.JOB}={self.job}")
        return {name: pod.metadata.uid for name, pod in found.items()}

    def loses_a_trainer(self, rank: int) -> JobView:
        """A trainer's pod is killed; its successor goes on in the same generation."""
        before = self.view()
        name = f"{names.role_name(self.job, before.generation, Role.TRAINER)}-{rank}"
        self._cluster.kill(name)

        def replaced() -> JobView | None:
            view = self.view()
            return view if view.restarts > before.restarts else None

        until(replaced, seconds=RECOVERS, what="the gateway to see the killed pod")
        after = self.runs_with(2, RECOVERS)
        if after.generation != before.generation:
            raise StageFailed("the job went back to a checkpoint for a trainer's death")
        return after


def gateway(cluster: Cluster, release: Release) -> Client:
    """A client of the gateway's service, once it answers."""
    client = Client(cluster.service_url(f"{RELEASE}-embermesh-gateway"), token=release.token)

    def answers() -> bool:
        try:
            client.jobs()
        except Unavailable:
            return False
        return True

    until(answers, seconds=60, what="the gateway's service")
    return client


def lives_through_an_upgrade(watch: Watch, release: Release, client: Client) -> None:
    """New gateways take over; the job's pods are the same ones, and train on."""
    before, pods = watch.view(), watch.pods()
    release.upgrade(logLevel="debug")
    after = watch.trains_on()
    if (after.generation, after.restarts) != (before.generation, before.restarts):
        raise StageFailed("the upgrade restarted the job")
    if watch.pods() != pods:
        raise StageFailed(f"the upgrade changed the job's pods: {pods} became {watch.pods()}")
    client.checkpoint(watch.job)


def body(report: Report, stack: Stack, start: Callable[[], Cluster]) -> None:
    """All stages, in order."""
    facts = report.facts
    with report.stage("engine"):
        facts["versions"] = engine(stack)
    with report.stage("third-party images"):
        facts["images"] = third_party(stack)
    with report.stage("build"):
        facts["image_mb"] = build(stack)
    with report.stage("cluster"):
        cluster = start()
        facts["versions"]["kubernetes"] = cluster.up()
        cluster.add_volume("checkpoints", "1Gi", "ReadWriteMany")
        cluster.add_volume("redis", "1Gi", "ReadWriteOnce")
    tag = next(iter(facts["image_mb"])).rpartition(":")[2]
    redis, kafka = (
        next(n for n in facts["images"] if n.startswith(prefix)) for prefix in ("redis:", "apache/")
    )
    with report.stage("install"):
        release = Release(cluster, tag, redis, kafka)
        facts["versions"]["helm"] = release.version
        release.install()
    with report.stage("helm test"):
        release.test()
    with gateway(cluster, release) as client:
        with report.stage("submit and start"):
            watch = Watch(cluster, client, client.submit(JOB).id)
            watch.runs_with(1, STARTS)
            watch.trains_on()
        with report.stage("scale trainers"):
            client.scale(watch.job, trainers=2)
            watch.runs_with(2, RECOVERS)
            watch.trains_on()
        with report.stage("kill a trainer's pod"):
            watch.loses_a_trainer(1)
            watch.trains_on()
        with report.stage("upgrade"):
            lives_through_an_upgrade(watch, release, client)
        view = watch.view()
        facts["job"] = {
            "samples": view.progress.samples,
            "generations": view.generation,
            "restarts": view.restarts,
            "checkpoints": len(client.checkpoints(watch.job)),
        }
    with report.stage("uninstall"):
        facts["objects"] = len(cluster.objects())
        release.uninstall()
        cluster.is_clean(RECOVERS)


def _run() -> int:
    stack = Stack()
    clusters: list[Cluster] = []

    def start() -> Cluster:
        clusters.append(Cluster(FOLDER, NAMESPACE, stack.env))
        clusters[0].down()  # what a run that was killed has left
        return clusters[0]

    def stages(report: Report) -> None:
        try:
            body(report, stack, start)
        except BaseException:
            for cluster in clusters:
                say("what the pods wrote last:")
                sys.stderr.write(cluster.tell())
            raise

    def tear_down() -> None:
        for cluster in clusters:
            if stack.env.get("EMBERMESH_E2E_KEEP") == "1":
                say(f"left up: KUBECONFIG={cluster.kubeconfig}")
            else:
                cluster.down()

    return main(stages, tear_down)


if __name__ == "__main__":
    raise SystemExit(_run())
