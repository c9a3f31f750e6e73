"""Target `local` with real processes: start, logs, adoption, escalation, pid reuse."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gateway.targets import Process, ProcessSpec
from gateway.targets.local import LocalTarget
from services.kit.discovery import Role
from services.kit.errors import Conflict, NotFound, Unavailable
from tests.integration.gateway_harness import ROOT, process_exists, wait_for

JOB = "a-aaaaaa"
MODULES = {
    "sleeper": "import signal\nprint('up', flush=True)\nsignal.pause()",
    "stubborn": "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\n"
    "while True: time.sleep(1)",
    "parent": "import subprocess, sys\nchild = subprocess.Popen(['sleep', '60'])\n"
    "print(child.pid, flush=True)\nchild.wait()",
    "talker": "import os, sys\nprint(sys.argv[1:], os.environ['MINE'], os.getcwd())\n"
    "print('oops', file=sys.stderr)\nsys.exit(3)",
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "modules").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "modules" / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(tmp_path / "modules"), "PATH": os.environ["PATH"]}


@pytest.fixture
def target(tmp_path: Path, env: dict[str, str]) -> Iterator[LocalTarget]:
    target = LocalTarget(tmp_path / "state", env)
    yield target
    for generation in (1, 2):
        target.stop(JOB, generation, kill=True, fence=1_000)
        wait_for(partial(ended, target, generation))


def ended(target: LocalTarget, generation: int) -> bool:
    return not any(p.alive for p in target.observe(JOB, generation))


def spec(module: str, rank: int = 0, generation: int = 1, *arguments: str) -> ProcessSpec:
    return ProcessSpec(JOB, generation, Role.TRAINER, rank, module, arguments, {"MINE": "set"})


def log(target: LocalTarget, rank: int = 0) -> str:
    try:
        return target.logs(JOB, 1, Role.TRAINER, rank, 100)
    except NotFound:
        return ""


def only(target: LocalTarget) -> Process:
    (process,) = target.observe(JOB, 1)
    return process


def pid_of(state: Path, rank: int = 0) -> int:
    path = state / "jobs" / JOB / "1" / f"trainer-{rank}.pid"
    wait_for(lambda: path.exists() and path.read_text().count("\n") == 2)
    return int(path.read_text().split()[0])


def test_a_process_gets_its_arguments_environment_and_log(target: LocalTarget) -> None:
    target.start([spec("talker", 0, 1, "one", "two")], fence=1)
    wait_for(lambda: not only(target).alive)
    ended = only(target)
    assert ended.exit_code == 3
    lines = f"['one', 'two'] set {Path.cwd()}"
    assert lines in ended.last_words and "oops" in ended.last_words
    assert target.logs(JOB, 1, Role.TRAINER, 0, tail=1) in (f"{lines}\n", "oops\n")
    assert only(target).exit_code == 3  # still known after it was reaped


def test_a_missing_log_is_named(target: LocalTarget) -> None:
    with pytest.raises(NotFound, match=f"trainer 4 of job {JOB}, generation 9, has no log"):
        target.logs(JOB, 9, Role.TRAINER, 4, 10)


def test_a_second_start_does_nothing(tmp_path: Path, target: LocalTarget) -> None:
    target.start([spec("sleeper")], fence=1)
    target.start([spec("sleeper")], fence=1)
    first = pid_of(tmp_path / "state")
    target.start([spec("sleeper"), spec("sleeper", rank=1)], fence=1)
    assert pid_of(tmp_path / "state") == first
    assert [p.rank for p in target.observe(JOB, 1)] == [0, 1]
    wait_for(lambda: log(target) == "up\n" and log(target, 1) == "up\n")


def test_two_gateways_that_start_the_same_process_start_one(
    tmp_path: Path, target: LocalTarget, env: dict[str, str]
) -> None:
    other = LocalTarget(tmp_path / "state", env)
    target.start([spec("sleeper")], fence=1)
    other.start([spec("sleeper")], fence=1)  # most likely before the first wrote its pid
    wait_for(lambda: log(target) == "up\n")
    wait_for(lambda: only(other).alive and only(target).alive)
    target.stop(JOB, 1, kill=False, fence=1)
    wait_for(lambda: not only(target).alive and not only(other).alive)
    assert log(target) == "up\n"


def test_sigterm_then_sigkill(target: LocalTarget) -> None:
    target.start([spec("sleeper"), spec("stubborn", rank=1)], fence=1)
    wait_for(lambda: log(target) == log(target, 1) == "up\n")
    target.stop(JOB, 1, kill=False, fence=1)
    wait_for(lambda: not target.observe(JOB, 1)[0].alive)
    sleeper, stubborn = target.observe(JOB, 1)
    assert (sleeper.exit_code, stubborn.alive) == (-signal.SIGTERM, True)
    target.stop(JOB, 1, kill=True, fence=1)
    wait_for(lambda: not target.observe(JOB, 1)[1].alive)
    assert target.observe(JOB, 1)[1].exit_code == -signal.SIGKILL


def test_a_stop_right_after_the_start_misses_nobody(target: LocalTarget) -> None:
    target.start([spec("sleeper")], fence=1)
    assert only(target).alive
    target.stop(JOB, 1, kill=False, fence=1)
    wait_for(lambda: not only(target).alive)


def test_what_a_process_started_ends_with_it(target: LocalTarget) -> None:
    target.start([spec("parent")], fence=1)
    wait_for(lambda: log(target).strip().isdigit())
    grandchild = int(log(target))
    assert process_exists(grandchild)
    target.stop(JOB, 1, kill=False, fence=1)
    wait_for(lambda: not process_exists(grandchild))


def test_a_later_gateway_adopts_the_processes_of_a_killed_one(
    tmp_path: Path, target: LocalTarget, env: dict[str, str]
) -> None:
    gateway = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys\n"
            "from pathlib import Path\n"
            "from gateway.targets import ProcessSpec\n"
            "from gateway.targets.local import LocalTarget\n"
            "from services.kit.discovery import Role\n"
            f"target = LocalTarget(Path(sys.argv[1]), {env!r})\n"
            f"target.start([ProcessSpec({JOB!r}, 1, Role.TRAINER, 0, 'sleeper', (), {{}})], 1)\n"
            "os.kill(os.getpid(), 9)",
            str(tmp_path / "state"),
        ],
        env={"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=30,
    )
    assert gateway.returncode == -signal.SIGKILL
    pid = pid_of(tmp_path / "state")
    wait_for(lambda: log(target) == "up\n")
    assert only(target) == Process(Role.TRAINER, 0, alive=True)
    target.start([spec("sleeper")], fence=2)
    assert pid_of(tmp_path / "state") == pid
    target.stop(JOB, 1, kill=False, fence=2)
    wait_for(lambda: not only(target).alive)
    assert not process_exists(pid)
    assert only(target).exit_code is None  # nobody was there to see it


@pytest.mark.parametrize("field", ["start", "boot"])
def test_a_pid_that_belongs_to_somebody_else_is_never_signalled(
    tmp_path: Path, target: LocalTarget, field: str
) -> None:
    innocent = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        stat = Path(f"/proc/{innocent.pid}/stat").read_text().strip()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        if field == "start":
            head, _, tail = stat.rpartition(")")
            fields = tail.split()
            fields[19] = str(int(fields[19]) - 1)
            stat = f"{head}) {' '.join(fields)}"
        else:
            boot = "another"
        folder = tmp_path / "state" / "jobs" / JOB / "1"
        folder.mkdir(parents=True)
        (folder / "trainer-0.pid").write_text(f"{stat}\n{boot}\n")
        assert not only(target).alive
        target.stop(JOB, 1, kill=True, fence=1)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_former_leader_neither_starts_nor_stops(target: LocalTarget) -> None:
    target.start([spec("sleeper")], fence=7)
    with pytest.raises(Conflict, match="token 6 is older than 7"):
        target.stop(JOB, 1, kill=True, fence=6)
    with pytest.raises(Conflict, match="another gateway leads"):
        target.start([spec("sleeper", rank=1)], fence=6)
    assert only(target).alive


def test_a_program_that_is_not_there_ends_with_its_reason(
    tmp_path: Path, env: dict[str, str]
) -> None:
    target = LocalTarget(tmp_path / "state", env, python="/no/such/python")
    target.start([spec("sleeper")], fence=1)
    wait_for(lambda: not only(target).alive)
    assert only(target).exit_code == 127
    assert "/no/such/python" in only(target).last_words


def test_a_state_dir_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = LocalTarget(tmp_path / "file", {})
    with pytest.raises(Unavailable, match=r"can't write to .*file/jobs"):
        target.start([spec("sleeper")], fence=1)


def test_a_replacement_ends_who_was_there_and_has_files_of_its_own(
    target: LocalTarget, tmp_path: Path, env: dict[str, str]
) -> None:
    first = spec("stubborn")
    target.start([first], fence=1)
    wait_for(lambda: "up" in log(target))
    pid = pid_of(tmp_path / "state")
    target.start([dataclasses.replace(first, module="talker", incarnation=2)], fence=1)
    wait_for(lambda: not process_exists(pid))
    wait_for(lambda: not only(target).alive)
    assert (only(target).incarnation, only(target).exit_code) == (2, 3)
    assert "oops" in log(target), "the newest one's"
    later = LocalTarget(tmp_path / "state", env)
    assert (only(later).incarnation, only(later).exit_code) == (2, 3), "found again by its files"
    target.start([first], fence=1)
    assert only(target).incarnation == 2, "nobody is started twice"
