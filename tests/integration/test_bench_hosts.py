"""Hosts of the network bench: real namespaces, a wire that delays, and nothing left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bench.net.hosts import Hosts, Impossible, remove_orphans, require
from tests.data import ROOT

DELAY, RATE = 0.02, 16e6  # seconds, bits a second
SINK = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
print("up", flush=True)
while True:
    peer, _ = server.accept()
    while peer.recv(1 << 16):
        pass
    peer.sendall(b"!")
    peer.close()
"""
HOLD = """
import signal, sys, time
from bench.net.hosts import Hosts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its jobs ignore it
with Hosts(["a", "b"], delay=0.001, rate=1e9):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    try:
        require()
    except Impossible as reason:
        pytest.skip(str(reason))


def namespaces(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"embermesh-{pid}-")]


@pytest.fixture(scope="module")
def sink() -> Iterator[tuple[Hosts, str]]:
    with Hosts(["sink"], delay=DELAY, rate=RATE) as hosts:
        command = hosts.command("sink", [sys.executable, "-c", SINK])
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            yield hosts, hosts.address("sink")
            process.kill()


def test_a_round_trip_takes_two_delays(sink: tuple[Hosts, str]) -> None:
    took = []
    for _ in range(3):
        start = time.monotonic()
        socket.create_connection((sink[1], 7000), timeout=10).close()
        took.append(time.monotonic() - start)
    assert 2 * DELAY <= min(took) < 4 * DELAY


def test_bytes_take_the_time_of_the_rate_and_are_counted(sink: tuple[Hosts, str]) -> None:
    hosts, address = sink
    size, before, start = 1_000_000, hosts.traffic("sink"), time.monotonic()
    with socket.create_connection((address, 7000), timeout=10) as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"!"
    seconds = time.monotonic() - start
    assert 8 * size / RATE <= seconds < 4 * 8 * size / RATE
    assert size < hosts.traffic("sink") - before < 1.2 * size


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        assert len(namespaces(process.pid)) == 2
        process.send_signal(number)
        process.wait(20)
    if number == signal.SIGKILL:  # nobody could clean up: the next run does
        remove_orphans()
    assert namespaces(process.pid) == []
