"""What a process uses of the machine: memory and CPU, and how much of each it may use.

The bounds are those of the container (cgroup v2 or v1) where there is one, else the machine's. The
figures go into the lease, where the gateway's autoscaler reads them, and beside the client
library's `process_*` metrics. Linux only, as is the client library's ProcessCollector.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import prometheus_client

_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 60  # cgroup v1 states "no limit" as a number about as large as memory can be
_MEMORY_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # v2, v1


def expose(registry: prometheus_client.CollectorRegistry) -> None:
    """Declares `process_*` of the client library and the bounds they are to be compared with."""
    prometheus_client.ProcessCollector(registry=registry)
    memory = prometheus_client.Gauge(
        "embermesh_process_memory_limit_bytes",
        "Memory this process may use: its container's limit, else the machine's memory.",
        registry=registry,
    )
    memory.set(memory_limit())
    cpus = prometheus_client.Gauge(
        "embermesh_process_cpus",
        "CPUs this process may use: its container's quota, else those it may run on.",
        registry=registry,
    )
    cpus.set(cpu_limit())


def memory_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may use, > 0."""
    machine = os.sysconf("SC_PHYS_PAGES") * _PAGE
    limits = [_number(cgroup / name) for name in _MEMORY_LIMITS]
    return int(min([machine, *(limit for limit in limits if 0 < limit < _UNLIMITED)]))


def cpu_limit(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """CPUs this process may use, > 0; a container's quota may be a fraction of one."""
    usable = float(len(os.sched_getaffinity(0)))
    quota, period = _pair(cgroup / "cpu.max")  # v2
    if not math.isfinite(quota):
        quota = _number(cgroup / "cpu" / "cpu.cfs_quota_us")  # v1, -1: none
        period = _number(cgroup / "cpu" / "cpu.cfs_period_us")
    if 0 < quota < math.inf and 0 < period < math.inf:
        return min(usable, quota / period)
    return usable


class UsageMeter:
    """Memory now, and CPU since the last look. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        self._last = clock(), cpu_clock()
        self._bounds = memory_limit(), cpu_limit()

    def look(self) -> dict[str, float]:
        """`memory_share` and `cpu_share`: of what this process may use, 1 is all of it."""
        memory, cpus = self._bounds
        with self._lock:
            (then, cpu_then), now, cpu = self._last, self._clock(), self._cpu_clock()
            self._last = now, cpu
        wall = now - then
        return {
            "memory_share": resident_bytes() / memory,
            "cpu_share": (cpu - cpu_then) / (wall * cpus) if wall > 0 else 0.0,
        }


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _number(path: Path) -> float:
    return _pair(path)[0]


def _pair(path: Path) -> tuple[float, float]:
    """The file's first two numbers; infinity for one that is missing or says `max`."""
    try:
        words = path.read_text().split()
    except OSError:
        return math.inf, math.inf
    numbers = [float(w) if w != "max" else math.inf for w in words[:2]]
    first, second = (*numbers, math.inf, math.inf)[:2]
    return first, second
