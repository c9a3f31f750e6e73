"""What every process is made of: exit codes, logs, the telemetry endpoint, a member's life."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import prometheus_client
import pytest
import redis

from services.kit import config, net
from services.kit.discovery import Phase, Registry, Role, Run
from services.kit.errors import Unavailable
from services.kit.member import MemberConfig
from services.kit.telemetry import TelemetryServer
from tests.data import ROOT
from tests.fixtures.ports import LOOPBACK

RUN = Run("job-a", 2, {"name": "job"}, epoch=1, owners=[0])


def python(code: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts `code` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        env=config.inherited() | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


BODY = """
    from services.kit import errors, lifecycle, telemetry
    def body(stop):
        telemetry.setup_logging("info", service="test", rank=3)
        {body}
    lifecycle.main(body)
"""


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("pass", 0, ""),
        ("raise errors.Unavailable('no Redis')", 1, "Unavailable: no Redis"),
        ("raise errors.InvalidInput('rank: -1')", 2, "InvalidInput: rank: -1"),
        ("{}['x']", 1, "KeyError"),
    ],
)
def test_the_exit_code_tells_whether_a_restart_helps(body: str, code: int, words: str) -> None:
    process = python(BODY.format(body=body))
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert len(lines) == (1 if words else 0)
    for line in lines:
        assert (line["level"], line["service"], line["rank"]) == ("error", "test", 3)
        assert words in line["message"] + line.get("exception", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(number: signal.Signals) -> None:
    process = python(BODY.format(body="print('up', flush=True); stop.wait(30); print('drained')"))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=10)
    assert (process.returncode, stdout) == (0, "drained\n")


class Endpoint:
    """A telemetry server whose readiness and metric the tests set."""

    def __init__(self) -> None:
        self.ready = False
        registry = prometheus_client.CollectorRegistry()
        self.gauge = prometheus_client.Gauge("embermesh_rows", "Rows.", registry=registry)
        self.server = TelemetryServer(registry, lambda: self.ready, LOOPBACK, 0)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.server.address}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.close()


def test_the_telemetry_endpoint(endpoint: Endpoint) -> None:
    endpoint.gauge.set(17)
    assert "embermesh_rows 17.0" in endpoint.get("/metrics")[1]
    assert endpoint.get("/healthz") == (200, "ok\n")
    assert endpoint.get("/readyz") == (503, "starting\n")
    endpoint.ready = True
    assert endpoint.get("/readyz?verbose=1") == (200, "ready\n")
    assert endpoint.get("/")[0] == 404


def test_a_metric_that_fails_is_a_500_and_the_endpoint_lives_on(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.gauge.set_function(lambda: 1 / 0)
    assert endpoint.get("/metrics") == (500, "ZeroDivisionError: division by zero\n")
    assert endpoint.get("/healthz")[0] == 200
    assert "GET /metrics failed" in caplog.text


def test_a_client_that_hangs_up_disturbs_nobody(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    host, port = endpoint.server.address.split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sendall(b"GET /metrics HTTP/1.0\r\n")
    assert endpoint.get("/healthz")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_metrics_port_in_use_is_named(endpoint: Endpoint) -> None:
    port = int(endpoint.server.address.split(":")[1])
    with pytest.raises(Unavailable, match=f"can't serve metrics on {LOOPBACK}:{port}: .*in use"):
        TelemetryServer(prometheus_client.CollectorRegistry(), lambda: True, LOOPBACK, port)


def test_every_interface_is_advertised_as_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert net.advertised("10.1.2.3") == "10.1.2.3"
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert net.advertised("0.0.0.0") == "127.0.0.1"
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    with pytest.raises(Unavailable, match=r"'no-such-host\.invalid' has no address"):
        net.advertised("0.0.0.0")


MEMBER = """
    from services.kit.discovery import Phase, Role
    from services.kit import errors, member
    def body(process, stop):
        process.update(address="127.0.0.1:5")
        process.announce(Phase.READY, lambda: {{"epoch": process.run.epoch}})
        {body}
    member.main(Role.SPARSE_PS, body)
"""


def start_member(redis_url: str, body: str, generation: int = 2) -> subprocess.Popen[str]:
    settings = MemberConfig(job="job-a", generation=generation, rank=1, redis_url=redis_url)
    return python(MEMBER.format(body=body), config.environment(settings))


def test_a_members_life(redis_db: redis.Redis, redis_url: str) -> None:
    registry = Registry(redis_db)
    registry.publish_run(RUN)
    process = start_member(redis_url, "stop.wait(30)")
    end = time.monotonic() + 20
    while not (members := registry.members("job-a", 2)) or members[0].phase is not Phase.READY:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
    (member,) = members
    assert (member.role, member.rank, member.address) == (Role.SPARSE_PS, 1, "127.0.0.1:5")
    assert member.status.keys() == {"epoch", "memory_share", "cpu_share"}
    assert 0 < member.status["memory_share"] < 1
    with urllib.request.urlopen(f"http://{member.metrics_address}/readyz", timeout=5) as answer:
        assert answer.status == 200
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert registry.members("job-a", 2) == []


@pytest.mark.parametrize(
    ("error", "code", "text", "permanent"),
    [
        ("errors.Damaged('x.emb: checksum')", 2, "x.emb: checksum", True),
        ("errors.Unavailable('peer gone')", 1, "peer gone", False),
        ("KeyError('x')", 1, "KeyError: 'x'", False),
    ],
)
def test_a_failed_members_last_word(
    redis_db: redis.Redis, redis_url: str, error: str, code: int, text: str, permanent: bool
) -> None:
    registry = Registry(redis_db)
    registry.publish_run(RUN)
    process = start_member(redis_url, f"raise {error}")
    process.communicate(timeout=20)
    assert process.returncode == code
    (member,) = registry.members("job-a", 2)
    assert (member.phase, member.error, member.permanent) == (Phase.FAILED, text, permanent)


def test_a_member_of_another_generation_does_not_start(
    redis_db: redis.Redis, redis_url: str
) -> None:
    Registry(redis_db).publish_run(RUN)
    process = start_member(redis_url, "pass", generation=1)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "job job-a is at generation 2, not 1" in stderr
    assert Registry(redis_db).members("job-a", 1) == []
