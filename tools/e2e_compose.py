"""`make e2e-compose`: the platform of docker-compose.yml on a real Docker Engine, from building the
images to a finished job that lost a trainer and a parameter server on its way; always torn down.

The last line of its output is a JSON object: `ok`, seconds of each stage, versions, image sizes,
and what was seen. `EMBERMESH_E2E_KEEP=1` leaves the stack up to be looked at; `EMBERMESH_E2E_TAG`
names images that are there already.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embermesh.client import Client
from services.api.views import JobState, JobView
from tools.stages import ROOT, Report, StageFailed, main, run, say, until

PROJECT = "embermesh-e2e"
ROWS, PARTITIONS, IDS = 300_000, 6, 500
TOPIC = "clicks"
# Seconds, for a machine that has other things to do.
STARTS, RECOVERS, FINISHES = 240.0, 240.0, 600.0
PORTS = ("GATEWAY_PORT", "KAFKA_PORT", "PROMETHEUS_PORT", "ALERTMANAGER_PORT", "GRAFANA_PORT")
JOB: dict[str, Any] = {
    "name": "compose",
    "model": {"name": "deepfm", "hidden": [32, 16]},
    "data": {"source": f"kafka://kafka:9092/{TOPIC}", "format": "arrow", "holdout": {"last": 0.02}},
    "features": {
        "label": "label",
        "dense": {"x1..x4": {}},
        "sparse": {"c1..c6": {"dim": 8, "encode": "id"}},
    },
    "training": {"mode": "hybrid", "batch_size": 32, "seed": 7},
    "optimizers": {"sparse": {"adagrad": {"lr": 0.1}}, "dense": {"adam": {"lr": 0.003}}},
    "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 2},
    "checkpoint": {"to": "file:///checkpoints", "every": "5s", "keep": 3},
    "max_restarts": 8,
}


class Stack:
    """The containers of one Compose project on free ports of this machine."""

    def __init__(self) -> None:
        self.env = {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT}
        self.env |= {name: str(_free_port()) for name in PORTS}
        self.env["TRAINERS"] = "4"  # two, one to scale by, one to spare
        self.env["IMAGE_TAG"] = os.environ.get("EMBERMESH_E2E_TAG", "e2e-compose")

    def compose(self, *words: str, seconds: float) -> str:
        """`docker compose` with these words; its output."""
        return run(["docker", "compose", *words], env=self.env, seconds=seconds)

    def docker(self, *words: str, seconds: float = 60) -> str:
        """`docker` with these words; its output."""
        return run(["docker", *words], env=self.env, seconds=seconds)

    def url(self, port: str) -> str:
        """Of what is published on that port."""
        return f"http://127.0.0.1:{self.env[port]}"

    def container_at(self, address: str) -> str:
        """The id of the container with the IP address of `address` (host:port)."""
        wanted = address.rpartition(":")[0]
        for container in self.compose("ps", "--quiet", seconds=60).split():
            shape = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
            if wanted in self.docker("inspect", "--format", shape, container).split():
                return container
        raise StageFailed(f"no container has the address {wanted}")

    def logs(self) -> str:
        """The end of what every container wrote, for whoever looks for a failure."""
        return self.compose("logs", "--no-color", "--tail", "40", seconds=60)


def engine(stack: Stack) -> dict[str, str]:
    """Starts an engine unless one answers, and takes its environment; versions."""
    script = ROOT / "deploy" / "engine" / "engine.sh"
    run([script, "up"], env=stack.env, seconds=900)
    for name, value in re.findall(
        r"^export (\w+)=(.*)$", run([script, "env"], env=stack.env, seconds=60), re.MULTILINE
    ):
        stack.env[name] = value
    shape = "{{.Server.Version}}"
    return {
        "engine": stack.docker("version", "--format", shape).strip(),
        "compose": stack.compose("version", "--short", seconds=60).strip(),
    }


def third_party(stack: Stack) -> dict[str, str]:
    """Image -> pulled, built or missing. Raises StageFailed when one is missing that is needed."""
    text = run([ROOT / "deploy" / "engine" / "engine.sh", "images"], env=stack.env, seconds=1800)
    found = dict(line.split(" ", 1) for line in text.splitlines())
    for name, how in found.items():
        if how.startswith("missing") and not name.startswith("grafana/"):
            raise StageFailed(f"image {name}: {how}")
    return found


def build(stack: Stack) -> dict[str, int]:
    """Our images -> MB; built unless EMBERMESH_E2E_TAG names those of an earlier build."""
    tag = stack.env["IMAGE_TAG"]
    if "EMBERMESH_E2E_TAG" not in os.environ:
        run([ROOT / "deploy" / "build.sh"], env={**stack.env, "TAG": tag}, seconds=3600)
    sizes = {}
    for image in ("gateway", "ps", "trainer", "checkpoint"):
        name = f"embermesh-{image}:{tag}"
        size = stack.docker("image", "inspect", "--format", "{{.Size}}", name)
        sizes[name] = int(size) // 1_000_000
    return sizes


def start(stack: Stack, images: Mapping[str, str]) -> str:
    """Starts everything and waits until it is healthy; what there is to say about Grafana."""
    services = stack.compose("config", "--services", seconds=60).split()
    missing = any(n.startswith("grafana/") and h.startswith("missing") for n, h in images.items())
    if missing:
        services.remove("grafana")
    words = ("up", "--detach", "--no-build", "--wait", "--wait-timeout", "600", *services)
    stack.compose(*words, seconds=700)
    return "image not available" if missing else "running"


def write_clicks(path: Path) -> None:
    """Rows whose label depends on ids and numbers, as Parquet; the same at every call."""
    rng = np.random.default_rng(5)
    dense = rng.normal(size=(ROWS, 4)).astype(np.float32)
    ids = rng.integers(0, IDS, size=(ROWS, 6))
    logit = dense @ np.array([0.4, -0.3, 0.2, 0.1], np.float32)
    logit += rng.normal(scale=0.7, size=(6, IDS))[np.arange(6), ids].sum(axis=1)
    label = (rng.random(ROWS) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    columns: dict[str, Any] = {"label": label}
    columns |= {f"x{i + 1}": dense[:, i] for i in range(4)}
    columns |= {f"c{i + 1}": ids[:, i] for i in range(6)}
    pq.write_table(pa.table(columns), path, row_group_size=20_000)


def produce(stack: Stack) -> None:
    """Fills the topic, packed: many rows in a message."""
    broker = f"kafka://127.0.0.1:{stack.env['KAFKA_PORT']}/{TOPIC}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clicks.parquet")
        write_clicks(file)
        words = ["produce", str(file), broker, "--create", str(PARTITIONS), "--format", "arrow"]
        embermesh(stack, *words, seconds=300)


def embermesh(stack: Stack, *words: str, seconds: float = 120) -> str:
    """The command line, pointed at the stack."""
    env = {k: v for k, v in stack.env.items() if not k.startswith("EMBERMESH_")}
    env["EMBERMESH_URL"] = stack.url("GATEWAY_PORT")
    return run([Path(sys.executable).with_name("embermesh"), *words], env=env, seconds=seconds)


def sees_auc_rise(look: Callable[[], JobView]) -> dict[str, float]:
    """Waits until the AUC of the recent window is well above chance and above what it was first."""
    first = until(lambda: look().progress.auc, seconds=STARTS, what="a first AUC")

    def risen() -> float | None:
        auc = look().progress.auc
        return auc if auc is not None and auc > max(first, 0.6) else None

    later = until(risen, seconds=RECOVERS, what=f"an AUC above {first:.3f} and 0.6")
    return {"first": round(first, 4), "later": round(later, 4)}


def kills_a_trainer(stack: Stack, client: Client, job: str) -> None:
    """A trainer's container dies; its rank runs on in a spare one, in the same generation."""
    before = client.get(job)
    victim = stack.container_at(_member(before, "trainer").address)
    stack.docker("kill", victim)

    def replaced() -> bool:
        view = _alive(client.get(job))
        ready = [m for m in view.members if m.role == "trainer" and m.phase in ("ready", "done")]
        return view.restarts > before.restarts and len(ready) == _trainers(view)

    until(replaced, seconds=RECOVERS, what="the replacement of the killed trainer")
    if client.get(job).generation != before.generation:
        raise StageFailed("the job went back to a checkpoint for a trainer's death")
    stack.docker("start", victim)


def kills_a_sparse_ps(stack: Stack, client: Client, job: str) -> None:
    """A shard's container dies and there is none to spare: the job says that it waits, and goes on
    from its newest checkpoint when the container is back.
    """
    before = client.get(job)
    victim = stack.container_at(_member(before, "sparse-ps").address)
    stack.docker("kill", victim)
    seen = len(client.events(job))

    def waits() -> bool:
        _alive(client.get(job))
        return any(event.kind == "waiting" for event in client.events(job)[seen:])

    until(waits, seconds=RECOVERS, what="the job's word that it waits for a sparse-PS")
    stack.docker("start", victim)

    def again() -> bool:
        view = _alive(client.get(job))
        return view.state == JobState.RUNNING and view.generation > before.generation

    until(again, seconds=RECOVERS, what="the job's next generation")


def prometheus_knows(stack: Stack, job: str) -> dict[str, float]:
    """Values of queries that must have data."""
    queries = {
        "samples": f'sum(embermesh_trainer_samples_total{{job="{job}"}})',
        "members_up": 'sum(up{role!=""})',
        "busy_agents": "sum(embermesh_standby_busy)",
        "jobs": "sum(embermesh_jobs)",
    }

    def ask(query: str) -> float | None:
        answer = httpx.get(
            f"{stack.url('PROMETHEUS_PORT')}/api/v1/query", params={"query": query}, timeout=10
        ).json()
        result = answer.get("data", {}).get("result", [])
        return float(result[0]["value"][1]) if result else None

    return {
        name: until(lambda q=query: ask(q), seconds=60, what=f"data of {query}")  # type: ignore[misc]
        for name, query in queries.items()
    }


def alerts_have_a_way(stack: Stack) -> str:
    """Prometheus holds the Alertmanager for active, and that has read the configuration; where
    alerts go.
    """

    def active() -> list[str]:
        answer = httpx.get(f"{stack.url('PROMETHEUS_PORT')}/api/v1/alertmanagers", timeout=10)
        return [found["url"] for found in answer.json()["data"]["activeAlertmanagers"]]

    (url,) = until(active, seconds=60, what="an Alertmanager that Prometheus holds for active")
    status = httpx.get(f"{stack.url('ALERTMANAGER_PORT')}/api/v2/status", timeout=10).json()
    if "receiver: nobody" not in status["config"]["original"]:
        raise StageFailed("the Alertmanager runs with another configuration than ours")
    return url


def finishes(client: Client, job: str) -> dict[str, Any]:
    """The job's end."""
    view = client.wait(job, FINISHES)
    if view.state != JobState.SUCCEEDED:
        raise StageFailed(f"the job is {view.state}: {view.error}")
    auc = view.result.auc if view.result else None
    if auc is None or auc < 0.7:
        raise StageFailed(f"test AUC {auc} is below 0.7")
    return {
        "samples": view.progress.samples,
        "test_auc": round(auc, 4),
        "generations": view.generation,
        "restarts": view.restarts,
    }


def body(report: Report, stack: Stack) -> None:
    """All stages, in order."""
    with report.stage("engine"):
        report.facts["versions"] = engine(stack)
    with report.stage("third-party images"):
        report.facts["images"] = images = third_party(stack)
    with report.stage("build"):
        report.facts["image_mb"] = build(stack)
    with report.stage("up"):
        report.facts["grafana"] = start(stack, images)
    with report.stage("produce"):
        produce(stack)
    with Client(stack.url("GATEWAY_PORT")) as client:
        with report.stage("submit and start"):
            job = client.submit(JOB).id

            def running() -> bool:
                return _alive(client.get(job)).state == JobState.RUNNING

            until(running, seconds=STARTS, what="the job to run")
        with report.stage("AUC rises"):
            report.facts["auc"] = sees_auc_rise(lambda: _alive(client.get(job)))
        with report.stage("scale trainers"):
            embermesh(stack, "scale", job, "--trainers", "3")
            until(
                lambda: running() and _trainers(client.get(job)) == 3,
                seconds=RECOVERS,
                what="three trainers",
            )
        with report.stage("metrics"):
            report.facts["prometheus"] = prometheus_knows(stack, job)
            report.facts["alerts_go_to"] = alerts_have_a_way(stack)
        with report.stage("kill a trainer"):
            kills_a_trainer(stack, client, job)
        with report.stage("kill a sparse-PS"):
            kills_a_sparse_ps(stack, client, job)
        with report.stage("finish"):
            report.facts["job"] = finishes(client, job)


def _trainers(view: JobView) -> int:
    count: int = view.spec["resources"]["trainers"]
    return count


def _member(view: JobView, role: str) -> Any:
    return next(m for m in view.members if m.role == role and m.address)


def _alive(view: JobView) -> JobView:
    if view.state.final:
        raise StageFailed(f"the job is {view.state} too early: {view.error}")
    return view


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run() -> int:
    stack = Stack()

    def stages(report: Report) -> None:
        try:
            body(report, stack)
        except BaseException:
            say("what the containers wrote last:")
            sys.stderr.write(stack.logs())
            raise

    def tear_down() -> None:
        if stack.env.get("EMBERMESH_E2E_KEEP") == "1":
            say(f"left up: {json.dumps({name: stack.env[name] for name in PORTS})}")
            return
        stack.compose("down", "--volumes", "--timeout", "20", seconds=180)

    return main(stages, tear_down)


if __name__ == "__main__":
    raise SystemExit(_run())
