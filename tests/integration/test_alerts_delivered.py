"""The way of an alert on real parts: Prometheus with its own `alerting` section, an Alertmanager
with our configuration, and a receiver in the place of `nobody`.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.data import ROOT
from tests.fixtures.missing import program
from tests.fixtures.ports import LOOPBACK, find_free_port
from tests.fixtures.process import ServerProcess
from tests.fixtures.prometheus_server import START_DEADLINE, Prometheus, configuration
from tests.integration.gateway_harness import wait_for

OURS = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"


class Receiver:
    """A webhook that keeps what it is told."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        alerts = self.alerts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                alerts.extend(json.loads(body)["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.1,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def with_receiver(url: str) -> dict[str, Any]:
    """Our configuration as docs/deploy.md says to change it, and with less patience."""
    document = yaml.safe_load(OURS.read_text().replace("receiver: nobody", "receiver: people"))
    webhook = {"url": url, "send_resolved": False}
    document["receivers"] = [{"name": "people", "webhook_configs": [webhook]}]
    for route in (document["route"], *document["route"]["routes"]):
        route["group_wait"] = "2s"  # longer than both alerts need to arrive
    return dict(document)


@pytest.fixture
def alertmanager(receiver: Receiver, tmp_path: Path) -> Iterator[str]:
    """host:port of one that tells the receiver."""
    file, address = tmp_path / "alertmanager.yml", f"{LOOPBACK}:{find_free_port()}"
    file.write_text(yaml.safe_dump(with_receiver(receiver.url)))

    def ready() -> bool:
        try:
            return httpx.get(f"http://{address}/-/ready", timeout=1, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    options = {"config.file": str(file), "storage.path": str(tmp_path / "data")}
    options |= {"web.listen-address": address, "cluster.listen-address": ""}
    server = ServerProcess(
        [
            program("prometheus-alertmanager", "prometheus-alertmanager"),
            *(f"--{name}={value}" for name, value in options.items()),
        ],
        log=tmp_path / "alertmanager.log",
        ready=ready,
        deadline=START_DEADLINE,
        cwd=tmp_path,
    )
    server.start()
    yield address
    server.stop()


def rules(folder: Path) -> Path:
    """Alerts of nothing: one as a warning and critical, one as a warning alone. They fire when the
    Alertmanager has been discovered, for what is told before is only repeated after a minute.
    """

    def alert(name: str, severity: str) -> dict[str, Any]:
        labels = {"severity": severity, "job": "a"}
        return {"alert": name, "expr": "vector(1)", "for": "8s", "labels": labels}

    fired = [("Both", "warning"), ("Both", "critical"), ("Mild", "warning")]
    group = {"name": "fired", "rules": [alert(*words) for words in fired]}
    file = folder / "fired.yml"
    file.write_text(yaml.safe_dump({"groups": [group]}))
    return file


@pytest.mark.timeout(120)
def test_alerts_reach_who_is_to_be_told_and_a_warning_is_held_back_by_its_critical_twin(
    alertmanager: str, receiver: Receiver, start_prometheus: Callable[..., Any], tmp_path: Path
) -> None:
    config = configuration("127.0.0.1:1", "127.0.0.1:1")
    config["rule_files"] = [str(rules(tmp_path))]
    (ours,) = config["alerting"]["alertmanagers"]
    assert ours["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    ours["static_configs"] = [{"targets": [alertmanager]}]
    server: Prometheus
    with start_prometheus(tmp_path / "prometheus", config) as server:

        def active() -> list[str]:
            return [a["url"] for a in server.get("/api/v1/alertmanagers")["activeAlertmanagers"]]

        wait_for(lambda: active() == [f"http://{alertmanager}/api/v2/alerts"], timeout=20)

        def told() -> set[tuple[str, str]]:
            labels = [alert["labels"] for alert in receiver.alerts]
            return {(each["alertname"], each["severity"]) for each in labels}

        wait_for(lambda: len(told()) == 2, lambda: str(told()), timeout=40)
        assert told() == {("Both", "critical"), ("Mild", "warning")}
