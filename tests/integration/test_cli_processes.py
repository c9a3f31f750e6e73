"""Background processes: recognised again by more than their number, stopped by force if need be."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from embermesh.processes import ProcessId, port_is_free, spawn, tail, wait_until
from services.kit import errors


def test_output_goes_to_the_log_and_the_end_is_seen(tmp_path: Path) -> None:
    log = tmp_path / "new" / "a.log"
    code = "import os, sys; print(os.environ, flush=True); print('bad', file=sys.stderr)"
    process = spawn([sys.executable, "-c", code], {"COLOR": "blue"}, log)
    assert wait_until(lambda: not process.alive(), 20)
    assert "blue" in tail(log)
    assert tail(log, lines=1) == "bad"


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
    code += "time.sleep(60)"
    process = spawn([sys.executable, "-c", code], {}, tmp_path / "log")
    assert wait_until(lambda: tail(tmp_path / "log") == "up", 20)
    process.stop(grace=0.2)
    assert not process.alive()
    process.stop(grace=0.2)  # again: nothing to do


def test_somebody_elses_process_is_never_taken_for_ours(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log")
    try:
        assert process.alive()
        assert process == ProcessId.of(process.pid)
        assert not process.model_copy(update={"boot": "0000"}).alive()
        mine = process.model_copy(update={"pid": os.getpid()})
        assert not mine.alive()
        mine.stop(grace=1)  # would end this test
    finally:
        os.kill(process.pid, signal.SIGKILL)
    assert wait_until(lambda: not process.alive(), 10)


def test_a_pid_file_names_the_same_process() -> None:
    stat = Path("/proc/self/stat").read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert ProcessId.from_text(stat + boot) == ProcessId.of(os.getpid())


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="no-such-program"):
        spawn(["no-such-program"], {}, tmp_path / "log")


def test_a_taken_port_is_seen(free_port: int) -> None:
    assert port_is_free(free_port)
    with socket.create_server(("127.0.0.1", free_port)):
        assert not port_is_free(free_port)
