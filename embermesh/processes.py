"""Background processes that outlive the command which starts them: spawn, recognise again, stop.

A process is known by its id and its start time, so that a number which the system has given to
somebody else since is never mistaken for ours. Knows nothing of what the processes do. Linux only
(/proc).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel

from services.kit.errors import InvalidInput, Unavailable

LOOPBACK = "127.0.0.1"
_STATE, _TICKS = 0, 19  # fields of /proc/PID/stat after the program's name


class ProcessId(BaseModel, frozen=True):
    """One process for its whole life, and no other that has its number at another time."""

    pid: int
    started: int  # clock ticks since boot
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The running process with that number; never alive when it has ended already."""
        return cls(pid=pid, started=_start_time(pid) or -1, boot=_boot_id())

    @classmethod
    def from_text(cls, text: str) -> ProcessId:
        """From the line of the process's /proc/PID/stat and the boot id on the next."""
        stat, boot = text.splitlines()
        return cls(pid=int(stat.split(" ", 1)[0]), started=int(_fields(stat)[_TICKS]), boot=boot)

    def alive(self) -> bool:
        """Whether exactly this process still runs; an ended one of ours is reaped."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return _start_time(self.pid) == self.started and self.boot == _boot_id()

    def stop(self, grace: float) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds; returns when it is gone."""
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
            if not self.alive():
                return
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if wait_until(lambda: not self.alive(), patience):
                return
        raise Unavailable(f"process {self.pid} doesn't end, not even by SIGKILL")


def spawn(command: Sequence[str], env: Mapping[str, str], log: Path) -> ProcessId:
    """Starts `command` in a session of its own, in our working folder; its output is appended to
    `log`.

    Raises InvalidInput when the program isn't there.
    """
    program = shutil.which(command[0])
    if program is None:
        raise InvalidInput(f"program {command[0]!r} is not there or not executable")
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(program, list(command), dict(env), file_actions=actions, setsid=True)
    return ProcessId.of(pid)


def wait_until(true: Callable[[], bool], timeout: float, *, every: float = 0.05) -> bool:
    """Asks `true()` until it says so or `timeout` seconds have passed; returns its last answer."""
    deadline, idle = time.monotonic() + timeout, threading.Event()
    while not true():
        if time.monotonic() >= deadline:
            return False
        idle.wait(every)
    return True


def free_port(host: str = LOOPBACK) -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on host:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log; empty when there is none."""
    with suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = _fields(stat)
    return None if fields[_STATE] in "ZX" else int(fields[_TICKS])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _fields(stat: str) -> list[str]:
    # The program's name before them may hold spaces and brackets.
    return stat.rpartition(")")[2].split()
