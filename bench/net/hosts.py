"""Hosts of a benchmark: one network namespace each, joined by a wire with delay and a bounded rate.

Namespaces are named `embermesh-PID-HOST`. They are removed when the block ends, however it ends;
those of a run that was killed, by the next run. Needs root and `ip` (iproute2).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from bench.net import wire

_PREFIX = "embermesh-"
_HOST_DEVICE = "wire0"
_SECONDS = 20  # for one call of `ip`


class Impossible(RuntimeError):
    """Why this machine can't have such hosts."""


def require() -> None:
    """Raises Impossible that says what is missing."""
    if os.geteuid() != 0:
        raise Impossible("network namespaces need root")
    if shutil.which("ip") is None:
        raise Impossible("the program ip is missing (Debian: apt-get install iproute2)")
    if not os.access(wire.DEVICE, os.R_OK | os.W_OK):
        raise Impossible(f"{wire.DEVICE} is missing: the kernel or container has no TUN devices")


class Hosts:
    """`with Hosts(names, delay=…, rate=…) as hosts`; this process is the host named ''."""

    def __init__(self, names: Sequence[str], *, delay: float, rate: float) -> None:
        """`delay` in seconds from each host, `rate` in bits a second."""
        self._pid = os.getpid()
        self._names, self._delay, self._rate = ["", *names], delay, rate
        self._stack = ExitStack()

    def address(self, name: str) -> str:
        """IPv4 address of a host, in a range that RFC 2544 sets aside for benchmarks."""
        return f"198.18.{self._pid % 256}.{1 + self._names.index(name)}"

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """`command`, to be run on a host."""
        return ["ip", "netns", "exec", self._namespace(name), *command]

    def traffic(self, name: str) -> int:
        """Bytes that have entered and left a host so far, by its device's counters."""
        shown = _ip("-n", self._namespace(name), "-j", "-s", "link", "show", _HOST_DEVICE)
        counters = json.loads(shown)[0]["stats64"]
        return int(counters["rx"]["bytes"]) + int(counters["tx"]["bytes"])

    def __enter__(self) -> Hosts:
        require()
        remove_orphans()
        try:
            ends = {socket.inet_aton(self.address(n)): self._add(n) for n in self._names}
            process = multiprocessing.get_context("fork").Process(
                target=wire.carry,
                args=(ends, self._delay, self._rate / 8, os.getpid()),
                daemon=True,
            )
            process.start()
            self._stack.callback(process.join, _SECONDS)
            self._stack.callback(process.terminate)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _namespace(self, name: str) -> str:
        return f"{_PREFIX}{self._pid}-{name}"

    def _add(self, name: str) -> int:
        """Makes the host; the wire's end at it."""
        device = f"em{self._pid}-{self._names.index(name)}"
        if name:
            _ip("netns", "add", self._namespace(name))
            self._stack.callback(_ip, "netns", "del", self._namespace(name))
        end = wire.open_end(device)
        self._stack.callback(os.close, end)
        if name:
            _ip("link", "set", device, "netns", self._namespace(name), "name", _HOST_DEVICE)
            device = _HOST_DEVICE
        at = ["-n", self._namespace(name)] if name else []
        _ip(*at, "address", "add", f"{self.address(name)}/24", "dev", device)
        _ip(*at, "link", "set", device, "mtu", str(wire.MTU), "up")
        if name:
            _ip(*at, "link", "set", "lo", "up")
        return end


def remove_orphans() -> None:
    """Removes namespaces of runs whose process is gone."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0] if line.strip() else ""
        pid = name.removeprefix(_PREFIX).split("-")[0]
        if name.startswith(_PREFIX) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _ip("netns", "del", name)


def _ip(*words: str) -> str:
    done = subprocess.run(
        ["ip", *words], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode != 0:
        raise Impossible(f"ip {' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout
