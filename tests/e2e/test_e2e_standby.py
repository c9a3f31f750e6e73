"""A whole job in agents that stand by: real trainers and servers, one agent killed by SIGKILL, its
rank runs on in the spare one; every row is trained.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from embermesh.client import Client
from services.api.views import JobState
from tests.e2e.waiting import until
from tests.fixtures.ports import LOOPBACK, find_free_port
from tests.fixtures.process import ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
ROWS = 60_000
AGENTS = ("sparse-ps", "sparse-ps", "dense-ps", "trainer", "trainer", "trainer")


class Platform:
    """Checkpoint service, gateway with target standby, and agents, as their images run them."""

    def __init__(self, redis_url: str, folder: Path, stack: ExitStack) -> None:
        self._redis_url, self._folder, self._stack = redis_url, folder, stack
        checkpoint, metrics, gateway = (find_free_port() for _ in range(3))
        self.url = f"http://{LOOPBACK}:{gateway}"
        self._service(
            "services.checkpoint",
            {"CHECKPOINT_PORT": checkpoint, "CHECKPOINT_METRICS_PORT": metrics},
            f"http://{LOOPBACK}:{metrics}/readyz",
        )
        settings = {
            "GATEWAY_PORT": gateway,
            "GATEWAY_TARGET": "standby",
            "GATEWAY_CHECKPOINT_ADDRESS": f"{LOOPBACK}:{checkpoint}",
            "ACCESS_MODE": "open-loopback",
        }
        self._service("gateway", settings, f"{self.url}/readyz")
        self.agents = [self._agent(number, role) for number, role in enumerate(AGENTS)]

    def log(self, number: int) -> str:
        """What an agent and its process wrote."""
        return (self._folder / f"agent-{number}.log").read_text()

    def _environment(self, settings: dict[str, object]) -> dict[str, str]:
        ours = {f"EMBERMESH_{name}": str(value) for name, value in settings.items()}
        return {**os.environ, **ours}

    def _service(self, module: str, settings: dict[str, object], ready: str) -> None:
        prefix = module.rpartition(".")[2].upper()
        settings = {f"{prefix}_REDIS_URL": self._redis_url, **settings}

        def answers() -> bool:
            try:
                return httpx.get(ready, timeout=1, trust_env=False).is_success
            except httpx.HTTPError:
                return False

        command = ["env", *(f"{k}={v}" for k, v in self._added(settings)), sys.executable]
        server = ServerProcess(
            [*command, "-m", module],
            log=self._folder / f"{module}.log",
            ready=answers,
            deadline=60,
        )
        server.start()
        self._stack.callback(server.stop)

    def _added(self, settings: dict[str, object]) -> list[tuple[str, str]]:
        environment = self._environment(settings)
        return [(k, v) for k, v in environment.items() if k not in os.environ]

    def _agent(self, number: int, role: str) -> subprocess.Popen[bytes]:
        settings: dict[str, object] = {
            "STANDBY_REDIS_URL": self._redis_url,
            "STANDBY_ROLES": role,
            "STANDBY_HOST": LOOPBACK,
            "STANDBY_METRICS_PORT": 0,
        }
        with (self._folder / f"agent-{number}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "services.standby"],
                env=self._environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def stop() -> None:
            process.terminate()
            try:
                process.wait(30)
            finally:
                process.kill()

        self._stack.callback(stop)
        return process


@pytest.fixture
def platform(redis_url: str, tmp_path: Path) -> Iterator[Platform]:
    with ExitStack() as stack:
        yield Platform(redis_url, tmp_path, stack)


def test_an_agent_dies_and_the_job_trains_every_row(
    platform: Platform, synthetic_job: Callable[..., dict[str, object]]
) -> None:
    with Client(platform.url) as client:
        job = client.submit(synthetic_job(ROWS, training={"batch_size": 32})).id

        def trained() -> int:
            view = client.get(job)
            assert not view.state.final, f"{view.state} too early: {view.error}"
            return view.progress.samples

        until(lambda: trained() > 2_000, seconds=120, what="the first rows")
        busy = [n for n in (3, 4, 5) if re.search(r"running \S+:trainer:", platform.log(n))]
        assert len(busy) == 2, "two work, one is to spare"
        platform.agents[busy[0]].send_signal(signal.SIGKILL)
        until(lambda: client.get(job).restarts == 1, seconds=60, what="the replacement")
        done = client.wait(job, 180)
    assert (done.state, done.generation, done.restarts) == (JobState.SUCCEEDED, 1, 1), done.error
    assert done.progress.samples == ROWS
    (spare,) = {3, 4, 5} - set(busy)
    assert re.search(r"running \S+:trainer:\d:1", platform.log(spare))
