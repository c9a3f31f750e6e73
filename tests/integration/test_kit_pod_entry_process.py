"""The entry of a pod as a process: it waits, becomes the member, and ends when it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kit import config
from services.kit.pod_entry import PodConfig
from tests.data import ROOT

MEMBER = """
import os, sys
place = (os.environ["EMBERMESH_MEMBER_" + name] for name in ("RANK", "INCARNATION"))
print(os.getpid(), *sys.argv[1:], *place)
"""


@pytest.fixture
def settings(tmp_path: Path) -> PodConfig:
    (tmp_path / "marks").mkdir()
    (tmp_path / "incarnation").touch()
    (tmp_path / "told.py").write_text(MEMBER)
    return PodConfig(
        "em-clicks-1-trainer-12", str(tmp_path / "incarnation"), str(tmp_path / "marks")
    )


@pytest.fixture
def entry(settings: PodConfig, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "services.kit.pod_entry", "told", "an argument"],
        env={
            **config.inherited(),
            **config.environment(settings),
            "PYTHONPATH": f"{ROOT}:{tmp_path}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def wait_until_it_waits(entry: subprocess.Popen[str]) -> None:
    assert entry.stderr is not None
    assert "waits to be granted an incarnation" in entry.stderr.readline()


def test_the_entry_becomes_the_member_when_it_is_granted(
    entry: subprocess.Popen[str], settings: PodConfig
) -> None:
    wait_until_it_waits(entry)
    time.sleep(0.3)
    assert entry.poll() is None
    Path(settings.grant).write_text("1")
    out, _ = entry.communicate(timeout=30)
    # The same process: signals and the exit code reach Kubernetes as the member's own.
    assert out.split("\n")[0] == f"{entry.pid} an argument 12 1"
    assert entry.returncode == 0


def test_a_pod_that_waits_ends_when_it_is_told(entry: subprocess.Popen[str]) -> None:
    wait_until_it_waits(entry)
    entry.send_signal(signal.SIGTERM)
    entry.communicate(timeout=30)
    assert entry.returncode == 0
