"""The local cluster: Redis, the checkpoint service and the gateway as background processes of this
machine.

`up` starts what isn't running and leaves the rest alone, so it also mends a cluster that lost a
process. What runs is written to `cluster.json` in the cluster's folder; everything else there
(logs, Redis's data, jobs) belongs to the services. Jobs' own processes are the gateway's business:
`down` asks it to cancel them first.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import httpx
import pydantic

from embermesh import redis_program
from embermesh.client import Client
from embermesh.processes import (
    LOOPBACK,
    ProcessId,
    free_port,
    port_is_free,
    spawn,
    tail,
    wait_until,
)
from gateway.access_config import OPEN_LOOPBACK, AccessConfig
from gateway.config import GatewayConfig
from services.checkpoint.config import CheckpointServiceConfig
from services.kit import config, discovery, errors
from services.kit.tls import TlsConfig
from services.kit.tracing import TracingConfig

DEFAULT_PORT = 8080
START_SECONDS = 60.0  # for one service to become ready
STOP_SECONDS = 15.0  # for one service to drain
DYING_SECONDS = 3.0  # for a killed service to let go of its port
CANCEL_SECONDS = 45.0  # for all jobs to end
TURN_SECONDS = 120.0  # for another command on the same folder
_STATE_FILE, _LOCK_FILE = "cluster.json", "lock"
Say = Callable[[str], None]


class Service(pydantic.BaseModel, frozen=True):
    """One running service; `port` is the one its readiness is asked at."""

    id: ProcessId
    port: int
    log: Path


class ClusterState(pydantic.BaseModel, frozen=True):
    """What `up` decided and what it started, by service name (redis, checkpoint, gateway)."""

    url: str  # of the gateway
    port: int  # of the gateway
    redis_url: str
    redis_port: int | None  # None: somebody else's Redis
    checkpoint_port: int
    checkpoint_metrics_port: int
    services: dict[str, Service] = {}

    def running(self) -> dict[str, Service]:
        """Services whose process is alive."""
        return {name: service for name, service in self.services.items() if service.id.alive()}


class LocalCluster:
    """The cluster whose files lie in `folder`. Two commands at once take turns."""

    def __init__(self, folder: Path, say: Say = lambda _: None) -> None:
        self.folder = folder.absolute()
        self._say = say

    def state(self) -> ClusterState | None:
        """The recorded state, whether or not it still runs, or None. Raises Damaged."""
        path = self.folder / _STATE_FILE
        try:
            return ClusterState.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except pydantic.ValidationError as error:
            raise errors.Damaged(
                f"{path} is damaged ({error.error_count()} problems); remove it"
            ) from error

    def up(self, *, port: int | None = None, redis_url: str | None = None) -> ClusterState:
        """Starts every service that isn't running and waits until all are ready.

        `port` is the gateway's (default: as before, else 8080); `redis_url` names a Redis of your
        own. Raises InvalidInput when the port is taken, Conflict when a cluster runs with other
        settings, Unavailable with the end of the log when a service doesn't come up; then nothing
        that this call started is left behind.
        """
        with self._turn():
            return self._up(port, redis_url)

    def down(self) -> bool:
        """Cancels the jobs but the paused ones, stops every service, forgets the state. False when
        there was nothing to stop.
        """
        with self._turn():
            state = self.state()
            if state is None:
                return False
            running = state.running()
            if running or self._orphans():
                self._end_jobs()
            stopped = self.state() or state
            for name in ("gateway", "checkpoint", "redis"):
                if name in stopped.services and stopped.services[name].id.alive():
                    self._say(f"stopping {name}")
                    stopped.services[name].id.stop(STOP_SECONDS)
            (self.folder / _STATE_FILE).unlink(missing_ok=True)
            return bool(running)

    def _up(self, port: int | None, redis_url: str | None) -> ClusterState:
        before = self.state()
        state = self._plan(before, port, redis_url)
        if state.redis_port is None:
            discovery.connect(state.redis_url).close()
        kept = dict(state.services)
        try:
            # The gateway and the checkpoint service need Redis; they come up side by side.
            for names in (["redis"] if state.redis_port else [], ["checkpoint", "gateway"]):
                for name in names:
                    if name not in state.services:
                        state = self._start(state, name)
                for name in names:
                    if not self._await(state, name) and name in kept:
                        # It was dying when we looked: a killed process closes its sockets first.
                        state = self._start(state, name)
                        self._await(state, name)
                    self._require_ready(state, name)
        except BaseException:
            for name, service in state.services.items():
                if kept.get(name) != service:
                    service.id.stop(STOP_SECONDS)
            self._write(state.model_copy(update={"services": kept}) if kept else None)
            raise
        return state

    def _plan(
        self, before: ClusterState | None, port: int | None, redis_url: str | None
    ) -> ClusterState:
        running = before.running() if before else {}
        if before and running:
            for option, wanted, present in (
                ("--port", port, before.port),
                ("--redis-url", redis_url, before.redis_url),
            ):
                if wanted not in (None, present):
                    raise errors.Conflict(
                        f"{option} {wanted}: a cluster with {present} runs in {self.folder}; "
                        "take it down first"
                    )
            return before.model_copy(update={"services": running})
        if before is not None and redis_url is None and before.redis_port is None:
            redis_url = before.redis_url
        chosen = port or (before.port if before else DEFAULT_PORT)
        redis_port = None if redis_url else free_port()
        return ClusterState(
            url=f"http://{LOOPBACK}:{chosen}",
            port=chosen,
            redis_url=redis_url or f"redis://{LOOPBACK}:{redis_port}/0",
            redis_port=redis_port,
            checkpoint_port=free_port(),
            checkpoint_metrics_port=free_port(),
        )

    def _start(self, state: ClusterState, name: str) -> ClusterState:
        command, env, port = self._launch(state, name)
        # A process that was killed holds its port until its last thread is gone.
        if not wait_until(lambda: port_is_free(port), DYING_SECONDS):
            raise errors.InvalidInput(
                f"{name}: port {port} is in use; choose another (--port for the gateway)"
            )
        self._say(f"starting {name}")
        log = self.folder / "logs" / f"{name}.log"
        env = {**config.inherited(), **self._shared(), **env}
        service = Service(id=spawn(command, env, log), port=port, log=log)
        state = state.model_copy(update={"services": {**state.services, name: service}})
        self._write(state)
        return state

    def _launch(self, state: ClusterState, name: str) -> tuple[list[str], Mapping[str, str], int]:
        """Command, settings and readiness port of a service."""
        if name == "redis":
            assert state.redis_port is not None
            data = self.folder / "redis"
            data.mkdir(parents=True, exist_ok=True)
            return redis_program.command(state.redis_port, data), {}, state.redis_port
        if name == "checkpoint":
            checkpoint = CheckpointServiceConfig(
                redis_url=state.redis_url,
                host=LOOPBACK,
                port=state.checkpoint_port,
                metrics_port=state.checkpoint_metrics_port,
            )
            return (
                _module("services.checkpoint"),
                config.environment(checkpoint),
                checkpoint.metrics_port,
            )
        gateway = GatewayConfig(
            redis_url=state.redis_url,
            host=LOOPBACK,
            port=state.port,
            state_dir=str(self.folder),
            checkpoint_address=f"{LOOPBACK}:{state.checkpoint_port}",
        )
        # Everybody on this machine may use it: the gateway refuses this mode on other interfaces.
        access = AccessConfig(mode=OPEN_LOOPBACK)
        env = {**config.environment(gateway), **config.environment(access)}
        return _module("gateway"), env, gateway.port

    @staticmethod
    def _shared() -> dict[str, str]:
        """Settings of whoever calls `up` that hold for every process: certificates, traces."""
        return {
            **config.environment(config.load(TlsConfig)),
            **config.environment(config.load(TracingConfig)),
        }

    @staticmethod
    def _ready(state: ClusterState, name: str) -> bool:
        if name == "redis":
            return _redis_answers(state.redis_url)
        return _http_ready(state.services[name].port)

    def _await(self, state: ClusterState, name: str) -> bool:
        """Waits until the service is ready, START_SECONDS at most. False when it has ended."""
        service = state.services[name]
        wait_until(lambda: self._ready(state, name) or not service.id.alive(), START_SECONDS)
        return service.id.alive()

    def _require_ready(self, state: ClusterState, name: str) -> None:
        service = state.services[name]
        if not service.id.alive():
            raise errors.Unavailable(
                f"{name} did not start; {service.log} ends:\n{tail(service.log)}"
            )
        if not self._ready(state, name):
            raise errors.Unavailable(
                f"{name} was not ready after {START_SECONDS:.0f} s; "
                f"{service.log} ends:\n{tail(service.log)}"
            )

    def _end_jobs(self) -> None:
        """Cancels what runs. A gateway that died is started once more, for its jobs outlive it."""
        try:
            with Client(self._up(None, None).url) as client:
                going = [job.id for job in client.all_jobs() if not job.state.at_rest]
                for job in going:
                    self._say(f"cancelling {job}")
                    with suppress(errors.Conflict):  # it is about to end by itself
                        client.cancel(job)

                def ended() -> bool:
                    return all(client.get(job).state.at_rest for job in going)

                if not wait_until(ended, CANCEL_SECONDS, every=0.2):
                    raise errors.DeadlineExceeded(
                        f"jobs did not end within {CANCEL_SECONDS:.0f} s: {', '.join(going)}"
                    )
        except errors.EmbermeshError as error:
            self._say(f"could not end all jobs, processes of theirs may still run: {error}")

    def _orphans(self) -> bool:
        """Whether processes of jobs run, as the gateway's pid files say."""
        records = (path.read_text() for path in self.folder.glob("jobs/*/*/*.pid"))
        return any(ProcessId.from_text(text).alive() for text in records if text)

    def _write(self, state: ClusterState | None) -> None:
        path = self.folder / _STATE_FILE
        if state is None:
            path.unlink(missing_ok=True)
            return
        temporary = path.with_suffix(".tmp")
        temporary.write_text(state.model_dump_json(indent=1))
        temporary.replace(path)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / _LOCK_FILE).open("a")
        except OSError as error:
            raise errors.InvalidInput(
                f"can't use {self.folder} for the cluster's state: {error}"
            ) from error
        with lock:
            if not wait_until(lambda: _locked(lock), TURN_SECONDS, every=0.2):
                raise errors.Conflict(
                    f"another command has been working on {self.folder} for {TURN_SECONDS:.0f} s"
                )
            yield


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the file's closing
    except BlockingIOError:
        return False
    return True


def _module(name: str) -> list[str]:
    return [sys.executable, "-m", name]


def _redis_answers(url: str) -> bool:
    try:
        discovery.connect(url).close()
    except errors.Unavailable:
        return False
    return True


def _http_ready(port: int) -> bool:
    try:
        return httpx.get(
            f"http://{LOOPBACK}:{port}/readyz", timeout=2.0, trust_env=False
        ).is_success
    except httpx.HTTPError:
        return False
