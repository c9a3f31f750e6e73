"""Memory and CPU of a process and their bounds, from made-up cgroup files and from this process."""

from __future__ import annotations

import math
import os
from pathlib import Path

import prometheus_client
import pytest

from services.kit import usage

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "1048576\n", 1 << 20),
        ("memory.max", "max\n", MACHINE),
        ("memory.max", f"{MACHINE * 4}\n", MACHINE),
        ("memory/memory.limit_in_bytes", "2097152\n", 2 << 20),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", MACHINE),
        ("nothing", "", MACHINE),
    ],
)
def test_the_memory_limit_is_the_containers_or_the_machines(
    tmp_path: Path, file: str, text: str, limit: int
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert usage.memory_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, CPUS),
        ({"cpu.max": "100000000 100000\n"}, CPUS),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, CPUS),
        ({}, CPUS),
    ],
)
def test_the_cpu_limit_is_the_containers_or_the_machines(
    tmp_path: Path, files: dict[str, str], limit: float
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usage.cpu_limit(tmp_path) == limit


def test_shares_are_of_the_bounds_and_cpu_since_the_last_look() -> None:
    wall, cpu = [0.0], [0.0]
    meter = usage.UsageMeter(clock=lambda: wall[0], cpu_clock=lambda: cpu[0])
    assert meter.look()["cpu_share"] == 0.0, "no time has passed"
    wall[0], cpu[0] = 2.0, 1.0
    look = meter.look()
    assert look["cpu_share"] == pytest.approx(0.5 / usage.cpu_limit())
    assert look["memory_share"] == pytest.approx(
        usage.resident_bytes() / usage.memory_limit(), rel=0.2
    )
    wall[0] = 4.0
    assert meter.look()["cpu_share"] == 0.0


def test_the_bounds_are_shown_beside_what_is_used() -> None:
    registry = prometheus_client.CollectorRegistry()
    usage.expose(registry)
    used = registry.get_sample_value("process_resident_memory_bytes")
    limit = registry.get_sample_value("embermesh_process_memory_limit_bytes")
    cpus = registry.get_sample_value("embermesh_process_cpus")
    assert used and limit and cpus
    assert used < limit and math.isfinite(limit) and 0 < cpus <= CPUS
