"""`make demo`: one whole job on a cluster of its own, from the first sample to a restore into more
shards.

Trains examples/demo.yaml, evaluates, checkpoints, restores the checkpoint into another number of
sparse-PS shards and evaluates again; the second AUC must be the first. Its folder (logs,
checkpoint) stays until the next demo. The last line on standard output is the result as one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import yaml
from rich.console import Console

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from embermesh.watch import watch
from services.api.views import JobState, JobView, MemberView
from services.kit import errors

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(".embermesh/demo")
RESTORED_SHARDS = 3
TOLERANCE = 1e-6  # between the AUC before and after the restore
TRAIN_SECONDS, RESTORE_SECONDS = 600.0, 300.0
SHOWN_METRICS = (
    "embermesh_trainer_samples_total",
    "embermesh_trainer_loss",
    "embermesh_trainer_auc",
    "embermesh_trainer_phase_seconds_sum",
    "embermesh_sparse_bytes",
    "embermesh_sparse_pulled_keys_total",
    "embermesh_sparse_pushed_keys_total",
    "embermesh_dense_version",
)


class Speedometer:
    """Rows per second while rows were trained: start-up, evaluation and restore left out."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def see(self, samples: int, now: float) -> None:
        """Takes the number of rows trained at the time `now` (seconds)."""
        if samples > 0 and (self._last is None or samples > self._last[1]):
            self._first = self._first or (now, samples)
            self._last = (now, samples)

    @property
    def samples_per_second(self) -> float:
        """The mean between the first and the last growth seen; 0 before there are two."""
        if self._first is None or self._last is None or self._last == self._first:
            return 0.0
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


class MetricsPeek:
    """Keeps the newest /metrics page of one process of each role, for its processes are gone when
    the job is over.
    """

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, str]] = {}  # process -> (URL, text)

    def see(self, members: list[MemberView]) -> None:
        """Reads the pages now; a process that is about to end is left out."""
        for member in members:
            if member.rank != 0 or not member.metrics_address:
                continue
            url = f"http://{member.metrics_address}/metrics"
            try:
                text = httpx.get(url, timeout=2.0, trust_env=False).text
            except httpx.HTTPError:
                continue
            self.pages[f"{member.role}-0"] = (url, text)


def main() -> None:
    """Runs the demo and exits: 0 only if the job succeeded and the restored AUC is the same."""
    parser = argparse.ArgumentParser(prog="python -m embermesh.demo", description=main.__doc__)
    parser.add_argument(
        "--spec", type=Path, default=ROOT / "examples" / "demo.yaml", help="JobSpec to train"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the demo's cluster keeps its files"
    )
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    try:
        outcome = run(arguments.spec, arguments.folder.absolute(), console)
    except errors.EmbermeshError as error:
        Console(stderr=True).print(f"demo: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.exit(0 if passed(outcome) else 1)


def passed(outcome: dict[str, Any]) -> bool:
    """Whether the job succeeded and the restored model evaluates like the trained one."""
    auc, restored = outcome["auc"], outcome["restored_auc"]
    same = auc is not None and restored is not None and abs(auc - restored) <= TOLERANCE
    return bool(outcome["state"] == JobState.SUCCEEDED.value and same)


def run(spec_file: Path, folder: Path, console: Console) -> dict[str, Any]:
    """The demo itself; the cluster is stopped whatever happens."""
    start = time.monotonic()
    cluster = LocalCluster(folder, lambda line: console.print(f"  {line}", markup=False))
    _make_room(cluster)
    spec = load_spec(spec_file, folder)
    console.print("[bold]1. a cluster of its own[/bold]")
    try:
        state = cluster.up(port=free_port())
        with Client(state.url) as client:
            outcome = _train_and_restore(client, spec, console)
    finally:
        cluster.down()
    outcome["seconds"] = round(time.monotonic() - start, 1)
    console.print(f"logs and checkpoint: {folder} (can be deleted)", markup=False)
    return outcome


def _train_and_restore(client: Client, spec: dict[str, Any], console: Console) -> dict[str, Any]:
    counts = spec.get("resources", {})
    console.print(
        f"[bold]2. train {spec['model']['name']} from {spec['data']['source']}[/bold] {counts}"
    )
    speed, peek = Speedometer(), MetricsPeek()

    def see(view: JobView) -> None:
        speed.see(view.progress.samples, time.monotonic())
        if view.state == JobState.RUNNING:
            peek.see(view.members)

    job = watch(client, client.submit(spec).id, console, timeout=TRAIN_SECONDS, on_update=see)
    outcome = _outcome(job, speed.samples_per_second)
    if job.state != JobState.SUCCEEDED or job.checkpoint is None:
        console.print(f"  {job.error or 'no checkpoint was written'}", markup=False)
        return outcome
    console.print(
        f"  test AUC {outcome['auc']:.4f}, best possible {outcome['bayes_auc']}", markup=False
    )

    console.print("[bold]3. metrics, as Prometheus scrapes them[/bold]")
    _print_metrics(peek, console)

    console.print(
        f"[bold]4. restore {job.checkpoint.id} into {RESTORED_SHARDS} sparse-PS shards[/bold]"
    )
    client.restore(job.id, checkpoint=job.checkpoint.id, sparse_ps=RESTORED_SHARDS)
    again = watch(client, job.id, console, timeout=RESTORE_SECONDS)
    if again.state != JobState.SUCCEEDED:
        console.print(f"  {again.error}", markup=False)
    outcome["state"] = again.state.value
    outcome["restored_auc"] = again.result.auc if again.result else None
    return outcome


def _outcome(job: JobView, samples_per_second: float) -> dict[str, Any]:
    result = job.result
    return {
        "job": job.id,
        "state": job.state.value,
        "samples": job.progress.samples,
        "auc": result.auc if result else None,
        "bayes_auc": result.bayes_auc if result else None,
        "logloss": result.logloss if result else None,
        "samples_per_second": round(samples_per_second, 1),
        "checkpoint": job.checkpoint.uri if job.checkpoint else None,
        "restored_auc": None,
    }


def _print_metrics(peek: MetricsPeek, console: Console) -> None:
    for url, text in peek.pages.values():
        lines = [line for line in text.splitlines() if line.startswith(SHOWN_METRICS)]
        console.print(f"  {url}", markup=False)
        for line in lines:
            console.print(f"    {line}", markup=False)


def _make_room(cluster: LocalCluster) -> None:
    """Empties the folder of the last demo; one that still runs is left alone."""
    state = cluster.state()
    if state is not None and state.running():
        raise errors.Conflict(
            f"a demo is running in {cluster.folder}; wait for it, or name another --folder"
        )
    shutil.rmtree(cluster.folder, ignore_errors=True)


def load_spec(path: Path, folder: Path) -> dict[str, Any]:
    """The JobSpec with its checkpoints in the demo's folder."""
    try:
        spec: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise errors.InvalidInput(f"can't read the JobSpec {path}: {error}") from error
    spec["checkpoint"] = {**spec.get("checkpoint", {}), "to": f"file://{folder / 'checkpoints'}"}
    return spec


if __name__ == "__main__":
    main()
