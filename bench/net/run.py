"""The training modes over a real network: each process of a job is a host of its own, 1 ms and
1 Gbit/s from all others.

Every mode that the JobSpec knows trains the same rows with the same batch. Prints one JSON line:
`modes` with, for each mode, `step_ms`, `bytes_per_step` (of one trainer, both directions, by the
counters of its host's device; heartbeats and this program's looks at the step counter included),
`samples_per_second` and `auc`; or `skipped`, why this machine can't run it.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import workload as w
from bench.net.hosts import Hosts, Impossible, require
from embermesh import redis_program
from embermesh.processes import ProcessId, free_port, spawn, tail, wait_until
from gateway.compile import PARTITIONS, Surroundings, processes
from gateway.targets import ProcessSpec
from ps_service.sharding import ShardMap
from services.api.spec import JobSpec, Training
from services.kit import config
from services.kit.discovery import Member, Phase, Registry, Role, Run, connect
from services.kit.errors import EmbermeshError

DELAY, RATE = 0.001, 1e9  # seconds, bits a second
POLL_SECONDS, JOB_SECONDS, GRACE_SECONDS = 0.5, 600.0, 10.0
_STEPS = re.compile(r"^embermesh_trainer_steps_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Look:
    """At a running job."""

    time: float  # seconds
    steps: float  # of trainer 0
    bytes: int  # of all trainers


def modes() -> list[str]:
    """All that the JobSpec knows."""
    return list(typing.get_args(Training.model_fields["mode"].annotation))


def rates(looks: Sequence[Look], trainers: int, batch_size: int) -> dict[str, float]:
    """Between the first and the last look. Raises ValueError when no step lies between them."""
    first, last = looks[0], looks[-1]
    steps, seconds = last.steps - first.steps, last.time - first.time
    if steps <= 0:
        raise ValueError("the job was over before its steps could be counted; give it more")
    return {
        "step_ms": 1e3 * seconds / steps,
        "bytes_per_step": (last.bytes - first.bytes) / steps / trainers,
        "samples_per_second": steps * batch_size * trainers / seconds,
    }


class Job:
    """One job on its hosts, without gateway and checkpoint service."""

    def __init__(self, spec: JobSpec, hosts: Hosts, redis_url: str, folder: Path) -> None:
        self._spec, self._hosts, self._folder = spec, hosts, folder
        self._registry = Registry(connect(redis_url))
        shards = ShardMap.even(PARTITIONS, spec.resources.sparse_ps)
        self._run = Run(
            job=f"net-{spec.training.mode}",
            generation=1,
            spec=spec.model_dump(mode="json"),
            epoch=shards.epoch,
            owners=shards.owners.tolist(),
        )
        self._redis_url = redis_url
        self._running: dict[str, ProcessId] = {}

    def measure(self, warm_up: int, steps: int) -> dict[str, float | None]:
        """Trains to the end; looks count from step `warm_up` to `steps` steps later."""
        looks: list[Look] = []
        self._registry.publish_run(self._run)
        deadline, pause = time.monotonic() + JOB_SECONDS, threading.Event()
        # One client for all looks: to make one is 22 ms of CPU, of certificates.
        http = httpx.Client(timeout=10.0, trust_env=False)
        try:
            for spec in processes(self._run, self._spec, Surroundings(self._redis_url, "", "info")):
                self._start(spec)
            while (trainers := self._trainers()) is None or any(
                t.phase != Phase.DONE for t in trainers
            ):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{self._run.job}: not over within {JOB_SECONDS:.0f} s")
                pause.wait(POLL_SECONDS)
                if trainers and all(t.phase == Phase.READY for t in trainers):
                    look = self._look(http, trainers)
                    looks += [look] if warm_up <= look.steps < warm_up + steps else []
        finally:
            http.close()
            for process in self._running.values():
                process.stop(GRACE_SECONDS)
        resources, training = self._spec.resources, self._spec.training
        result = trainers[0].status.get("result") or {}
        measured = rates(looks, resources.trainers, training.batch_size)
        return {**measured, "auc": result.get("auc")}

    def _start(self, spec: ProcessSpec) -> None:
        name = host(spec.role, spec.rank)
        address = {"EMBERMESH_MEMBER_HOST": self._hosts.address(name)}
        command = [sys.executable, "-m", spec.module, *spec.arguments]
        self._running[name] = spawn(
            self._hosts.command(name, command),
            {**config.inherited(), **spec.env, **address},
            self._log(name),
        )

    def _trainers(self) -> list[Member] | None:
        """All trainers by rank, None while some are not up. Raises RuntimeError with the end of
        its log when a process has ended.
        """
        for name, process in self._running.items():
            if not process.alive():
                raise RuntimeError(f"{name} of {self._run.job} ended:\n{tail(self._log(name))}")
        members = self._registry.members(self._run.job, 1)
        trainers = [m for m in members if m.role == Role.TRAINER]
        up = {t.phase for t in trainers} <= {Phase.READY, Phase.DONE}
        return trainers if up and len(trainers) == self._spec.resources.trainers else None

    def _look(self, http: httpx.Client, trainers: Sequence[Member]) -> Look:
        url = f"http://{trainers[0].metrics_address}/metrics"
        found = _STEPS.search(http.get(url).text)
        steps = float(found[1]) if found else 0.0
        moved = sum(self._hosts.traffic(host(Role.TRAINER, t.rank)) for t in trainers)
        return Look(time.monotonic(), steps, moved)

    def _log(self, name: str) -> Path:
        return self._folder / f"{self._run.job}-{name}.log"


def host(role: Role, rank: int) -> str:
    return f"{role}-{rank}"


def start_redis(stack: ExitStack, address: str, folder: Path) -> str:
    """URL of a Redis server that all hosts reach."""
    port, url = free_port(address), f"redis://{address}:{{}}/0"
    options = ["--bind", address, "--protected-mode", "no"]
    command = [*redis_program.command(port, folder), *options]
    server = spawn(command, config.inherited(), folder / "redis.log")
    stack.callback(server.stop, GRACE_SECONDS)

    def answers() -> bool:
        try:
            connect(url.format(port)).close()
        except EmbermeshError:
            return False
        return True

    if not wait_until(answers, 20.0):
        raise RuntimeError(f"Redis did not start:\n{tail(folder / 'redis.log')}")
    return url.format(port)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """All modes, one after another on the same hosts."""
    trainers, shards = args.trainers, args.sparse_ps
    data = w.Data(args.cache.absolute(), 0, args.test_rows)
    rows = (args.warm_up + args.steps) * args.batch_size * trainers
    counts = {Role.TRAINER: trainers, Role.SPARSE_PS: shards, Role.DENSE_PS: 1}
    names = [host(role, rank) for role, count in counts.items() for rank in range(count)]
    table: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(Hosts(names, delay=DELAY, rate=RATE))
        redis_url = start_redis(stack, hosts.address(""), folder)
        for mode in args.modes:
            spec = w.job(
                data.train(rows).as_uri(),
                args.batch_size,
                data={"holdout": {"source": data.test().as_uri()}},
                training={"mode": mode},
                resources={"trainers": trainers, "sparse_ps": shards, "dense_ps": 1},
            )
            table[mode] = Job(spec, hosts, redis_url, folder).measure(args.warm_up, args.steps)
    return table


def _end(*_: object) -> None:
    raise SystemExit(143)  # so that whatever was made is taken down


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", default=modes(), help="default: all")
    parser.add_argument("--batch-size", type=int, default=512, help="rows per step of a trainer")
    parser.add_argument("--steps", type=int, default=400, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=20, help="steps before the measurement")
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--sparse-ps", type=int, default=2)
    parser.add_argument("--test-rows", type=int, default=50_000, help="held out")
    parser.add_argument("--cache", type=Path, default=Path(".cache/bench"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    result: dict[str, Any] = {"modes": {}, "skipped": ""}
    try:
        require()
        result["modes"] = compare(args)
    except Impossible as reason:
        result["skipped"] = f"can't run here: {reason}"
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
