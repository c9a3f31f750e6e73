"""`make bench-quality`: test AUC of every mode on W1 and on real clicks, beside Keras in memory.

For each seed and data set all sides train on the same rows. A finished run is one line of the work
file (build/quality/runs.jsonl), so an interrupted benchmark goes on where it stopped; a change of
the job or of the code that trains it begins anew. Writes `bench/results/quality.json` and two
pictures; with --quick to build/quality instead.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.quality import plots
from bench.quality.cases import DATA, ROOT, SIDES, Document, document
from bench.quality.summary import Curve, Run, summarise, table
from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from services.api.views import JobState, JobView
from services.kit.errors import EmbermeshError

WORK = ROOT / "build" / "quality"
KERAS = "bench/quality/keras_reference.py"
CODE = ("ps_service", "services", "trainer_service")
DEADLINE_SECONDS = 1800  # of one run; the longest takes five minutes on two quiet cores
CANCEL_SECONDS, GIT_SECONDS = 60, 60
REPORT_SECONDS = 30  # between two lines about a run


class WorkFile:
    """Finished runs, one JSON object a line. A line that was cut short counts as not there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> dict[str, Run]:
        """By their key; of two with one key the later."""
        found: dict[str, Run] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    run = json.loads(line)
                except json.JSONDecodeError:
                    continue
                found[run["key"]] = run
        return found

    def add(self, run: Run) -> None:
        """Appends a run, on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            # A blank line first: what an interruption left of the last one must not swallow this.
            file.write("\n" + json.dumps(run) + "\n")
            file.flush()
            os.fsync(file.fileno())


def code_version(paths: Sequence[str]) -> str:
    """What git says of the code there, with changes that aren't committed."""
    commands = (["rev-parse", *(f"HEAD:{path}" for path in paths)], ["diff", "HEAD", "--", *paths])
    return "".join(
        subprocess.run(
            ["git", *c], cwd=ROOT, capture_output=True, text=True, check=True, timeout=GIT_SECONDS
        ).stdout
        for c in commands
    )


def key_of(side: str, job: Document, code: str) -> str:
    """What makes two runs the same."""
    text = json.dumps([side, job, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def train_job(client: Client, job: Document) -> dict[str, Any]:
    """One job on the cluster. Raises RuntimeError when it ends otherwise than well."""
    curve: Curve = []
    start = said = time.monotonic()

    def look(view: JobView) -> None:
        nonlocal said
        progress, now = view.progress, time.monotonic()
        if progress.samples > (curve[-1][1] if curve else 0):
            curve.append((now - start, progress.samples, progress.auc))
        if now - said >= REPORT_SECONDS and not view.state.final:
            said = now
            total = f" of {progress.total_samples:,}" if progress.total_samples else ""
            say(f"    {now - start:4.0f} s  {view.state}  {progress.samples:,}{total} samples")

    submitted = client.submit(job)
    try:
        done = client.wait(submitted.id, DEADLINE_SECONDS, on_update=look)
    except EmbermeshError:
        client.cancel(submitted.id)  # or it would slow the next one down
        client.wait(submitted.id, CANCEL_SECONDS)
        raise
    if done.state != JobState.SUCCEEDED or done.result is None or done.result.auc is None:
        raise RuntimeError(f"the job ended as {done.state}: {done.error or 'no result'}")
    return {
        "auc": done.result.auc,
        "logloss": done.result.logloss,
        "bayes_auc": done.result.bayes_auc,
        "test_rows": done.result.samples,
        "samples": done.progress.samples,
        "embedding_rows": done.progress.rows,
        "curve": curve,
    }


def train_keras(job: Document) -> dict[str, Any]:
    """The same job by keras_reference.py, a process of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(job, file)  # JSON is YAML
        file.flush()
        done = subprocess.run(
            [sys.executable, KERAS, "--spec", file.name],
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=DEADLINE_SECONDS,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{KERAS} failed:\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def wanted(args: argparse.Namespace) -> list[Run]:
    """What the flags ask for, in order: runs without results."""
    ours, reference = code_version(CODE), code_version([KERAS])
    runs: list[Run] = []
    for seed, data, side in itertools.product(args.seeds, args.data, SIDES):
        job = document(data, side, seed, quick=args.quick)
        key = key_of(side, job, ours + reference if side == "keras" else ours)
        runs.append({"key": key, "data": data, "side": side, "seed": seed, "job": job})
    return runs


def train_all(args: argparse.Namespace, client: Client) -> tuple[list[Run], list[str]]:
    """All runs that the flags ask for, and what failed."""
    work, asked, start = WorkFile(WORK / "runs.jsonl"), wanted(args), time.monotonic()
    known, runs, failures = work.runs(), [], []
    say(f"{len(asked)} runs, {sum(r['key'] in known for r in asked)} of them in {work.path}")
    for number, run in enumerate(asked, start=1):
        name = f"{number:2}/{len(asked)}  {run['data']} {run['side']} seed {run['seed']}"
        if run["key"] not in known:
            before, began = os.getloadavg()[0], time.monotonic()
            try:
                keras = run["side"] == "keras"
                result = train_keras(run["job"]) if keras else train_job(client, run["job"])
            except (EmbermeshError, RuntimeError, subprocess.TimeoutExpired) as error:
                failures.append(f"{name}: {error}")
                say(f"{name:32} failed: {error}")
                continue
            seconds = time.monotonic() - began
            known[run["key"]] = {
                **run, "load": [before, os.getloadavg()[0]], "seconds": seconds, **result
            }  # fmt: skip
            work.add(known[run["key"]])
        runs.append(known[run["key"]])
        minutes = (time.monotonic() - start) / 60
        say(f"{name:32} AUC {known[run['key']]['auc']:.4f}  after {minutes:.1f} min")
    return runs, failures


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    names = ("embermesh", "tensorflow", "keras", "numpy")
    return {"python": sys.version.split()[0]} | {n: importlib.metadata.version(n) for n in names}


def main() -> int:
    """0, or 1 when a run failed; what did finish is written all the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), help="data sets")
    parser.add_argument("--seeds", nargs="+", type=int, help="default: 1 2 3; with --quick: 1")
    parser.add_argument("--quick", action="store_true", help="one epoch, a tenth of W1's rows")
    args = parser.parse_args()
    args.seeds = args.seeds or ([1] if args.quick else [1, 2, 3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is taken down
    target = WORK if args.quick else ROOT / "bench" / "results"
    with tempfile.TemporaryDirectory(prefix="embermesh-quality-") as folder:
        cluster = LocalCluster(Path(folder))
        try:
            with Client(cluster.up(port=free_port()).url) as client:
                runs, failures = train_all(args, client)
        finally:
            cluster.down()
    if runs:
        result = summarise(runs) | {"quick": args.quick, "versions": versions()}
        target.mkdir(parents=True, exist_ok=True)
        (target / "quality.json").write_text(json.dumps(result, indent=1) + "\n")
        plots.draw(runs, result, target)
        say(f"\n{table(result)}\nwritten to {target.relative_to(ROOT)}")
    for failure in failures:
        sys.stderr.write(f"failed: {failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
