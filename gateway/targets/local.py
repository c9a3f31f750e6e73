"""Target `local`: every process is a subprocess of this machine (Linux) in a session of its own.

Files, below `{state_dir}/jobs/{job}/`:
  fence                            highest leader token seen; locked during every action on the job
  {generation}/{role}-{rank}.pid   `/proc/<pid>/stat` line and boot id, written by the process
  {generation}/{role}-{rank}.exit  its exit code, once its parent has seen it end
  {generation}/{role}-{rank}.log   stdout and stderr

A process that replaces one has `{role}-{rank}.{incarnation}` in place of `{role}-{rank}`.

Processes outlive the gateway. Their identity is the pid *with* its start time, so a later gateway
finds its predecessor's processes again, and a pid that the system has given to somebody else is
never signalled. The process writes its pid file itself, exclusively, before it becomes Python: a
gateway that dies between fork and bookkeeping leaves no unknown process behind, and of two starts
the second ends at once.

Children run in the gateway's working directory, so relative paths in a JobSpec are relative to
that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gateway.config import GatewayConfig
from gateway.targets import Process, ProcessSpec
from services.kit import config
from services.kit.discovery import Role
from services.kit.errors import Conflict, NotFound, Unavailable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LAUNCH = f'set -C; {{ cat /proc/$$/stat {_BOOT_ID} > "$0"; }} 2>/dev/null || exit 1; exec "$@"'
_LAST_WORDS = 5  # lines
_TAIL_BYTES = 1 << 20  # of a log are searched for its last lines
_Key = tuple[str, int, str]  # job, generation, name as in the files


@dataclasses.dataclass(frozen=True)
class _Identity:
    """One process, distinguishable from every other that had or will have its pid."""

    pid: int
    start: str  # clock ticks since boot
    boot: str

    def alive(self) -> bool:
        """Whether that very process exists and is no zombie."""
        if self.boot != _boot_id():
            return False
        try:
            fields = _stat_fields(Path(f"/proc/{self.pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return False
        return fields[0] not in "ZX" and fields[19] == self.start

    @classmethod
    def parse(cls, text: str) -> _Identity:
        """From a pid file."""
        stat, boot = text.splitlines()
        return cls(int(stat.split(" ", 1)[0]), _stat_fields(stat)[19], boot)


class LocalTarget:
    """Starts, observes and stops subprocesses. Thread-safe."""

    def __init__(
        self, state_dir: Path, base_env: Mapping[str, str], python: str = sys.executable
    ) -> None:
        self._jobs = state_dir.absolute() / "jobs"
        self._base_env, self._python = dict(base_env), python
        self._children: dict[_Key, subprocess.Popen[bytes]] = {}
        self._asked: set[_Key] = set()  # got their SIGTERM from this gateway
        self._lock = threading.Lock()  # guards the two above; a Popen is polled under it

    def observe(self, job: str, generation: int) -> list[Process]:
        """See Target; reaps children that ended."""
        with self._lock:
            found = [self._look(job, generation, name) for name in self._names(job, generation)]
        newest = {(p.role, p.rank): p for p in sorted(found, key=lambda p: p.incarnation)}
        return list(newest.values())

    def start(self, processes: Sequence[ProcessSpec], fence: int) -> None:
        """See Target. Raises Unavailable when the machine can't start one."""
        for spec in processes:
            with self._fenced(spec.job, fence), self._lock:
                name = _name(spec.role, spec.rank, spec.incarnation)
                names = self._names(spec.job, spec.generation)
                if name in names:
                    continue
                for other in names:
                    self._end_earlier(spec, other)
                stem = self._stem(spec.job, spec.generation, name)
                stem.parent.mkdir(parents=True, exist_ok=True)
                self._children[spec.job, spec.generation, name] = self._spawn(spec, stem)

    def stop(self, job: str, generation: int, *, kill: bool, fence: int) -> None:
        """See Target; SIGTERM is sent once by each gateway, SIGKILL as often as asked."""
        with self._fenced(job, fence), self._lock:
            for name in self._names(job, generation):
                key = (job, generation, name)
                if not self._look(job, generation, name).alive:
                    self._asked.discard(key)
                elif kill or key not in self._asked:
                    self._signal(key, signal.SIGKILL if kill else signal.SIGTERM)

    def logs(self, job: str, generation: int, role: Role, rank: int, tail: int) -> str:
        """See Target."""
        folder = self._jobs / job / str(generation)
        names = [p.stem for p in folder.glob("*.log") if _parts(p.stem)[:2] == (role, rank)]
        name = max(names, key=lambda name: _parts(name)[2], default=_name(role, rank, 0))
        try:
            return _tail(folder / f"{name}.log", tail)
        except FileNotFoundError:
            raise NotFound(
                f"{role} {rank} of job {job}, generation {generation}, has no log"
            ) from None

    def _spawn(self, spec: ProcessSpec, stem: Path) -> subprocess.Popen[bytes]:
        command = [self._python, "-m", spec.module, *spec.arguments]
        try:
            with stem.with_name(f"{stem.name}.log").open("ab") as log:
                return subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, f"{stem}.pid", *command],
                    env={**self._base_env, **spec.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise Unavailable(f"can't start {spec.role} {spec.rank}: {error}") from error

    def _look(self, job: str, generation: int, name: str) -> Process:
        stem, key = self._stem(job, generation, name), (job, generation, name)
        identity, child = _read(stem), self._children.get(key)
        if child is not None and identity is not None and identity.pid != child.pid:
            if child.poll() is not None:  # our start came second and ended at once
                del self._children[key]
            child = None
        if child is not None:
            code = child.poll()
            alive = code is None
        else:
            code = _exit_code(stem)
            # Without an identity the process is between creating and filling its pid file.
            alive = code is None and (identity is None or identity.alive())
        if not alive and self._children.pop(key, None) is not None and code is not None:
            stem.with_name(f"{name}.exit").write_text(str(code))
        role, rank, incarnation = _parts(name)
        words = "" if alive else _last_words(stem)
        return Process(role, rank, alive, code, words, incarnation)

    def _end_earlier(self, spec: ProcessSpec, name: str) -> None:
        """Kills the process `name` if `spec` replaces it."""
        role, rank, incarnation = _parts(name)
        earlier = (role, rank) == (spec.role, spec.rank) and incarnation < spec.incarnation
        if earlier and self._look(spec.job, spec.generation, name).alive:
            self._signal((spec.job, spec.generation, name), signal.SIGKILL)

    def _signal(self, key: _Key, number: signal.Signals) -> None:
        child, identity = self._children.get(key), _read(self._stem(*key))
        pid = identity.pid if identity is not None else child.pid if child is not None else None
        if pid is not None:
            self._asked.add(key)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)

    def _names(self, job: str, generation: int) -> list[str]:
        """Names of all processes of the generation that were ever started."""
        written = {path.stem for path in (self._jobs / job / str(generation)).glob("*.pid")}
        own = {name for j, g, name in self._children if (j, g) == (job, generation)}
        return sorted(written | own)

    def _stem(self, job: str, generation: int, name: str) -> Path:
        return self._jobs / job / str(generation) / name

    @contextlib.contextmanager
    def _fenced(self, job: str, fence: int) -> Iterator[None]:
        """Excludes every other gateway on this machine; refuses one with an older token than the
        last.
        """
        folder = self._jobs / job
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / "fence").open("a+")
        except OSError as error:
            raise Unavailable(f"can't write to {folder}: {error}") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            highest = int(file.read() or 0)
            if fence < highest:
                raise Conflict(
                    f"job {job}: token {fence} is older than {highest}; another gateway leads"
                )
            if fence > highest:
                file.truncate(0)
                file.write(str(fence))
                file.flush()
            yield


def create(settings: GatewayConfig) -> LocalTarget:
    """The target as the gateway's settings describe it."""
    return LocalTarget(Path(settings.state_dir), config.inherited())


def _name(role: Role, rank: int, incarnation: int) -> str:
    return f"{role}-{rank}.{incarnation}" if incarnation else f"{role}-{rank}"


def _parts(name: str) -> tuple[Role, int, int]:
    """Inverse of `_name`."""
    role, place = name.rsplit("-", 1)
    rank, _, incarnation = place.partition(".")
    return Role(role), int(rank), int(incarnation or 0)


def _read(stem: Path) -> _Identity | None:
    """What the pid file says; None when it isn't (wholly) written yet."""
    try:
        text = stem.with_name(f"{stem.name}.pid").read_text()
    except FileNotFoundError:
        return None
    return _Identity.parse(text) if text.count("\n") >= 2 else None


def _exit_code(stem: Path) -> int | None:
    try:
        return int(stem.with_name(f"{stem.name}.exit").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _last_words(stem: Path) -> str:
    try:
        return _tail(stem.with_name(f"{stem.name}.log"), _LAST_WORDS)
    except FileNotFoundError:
        return ""


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _stat_fields(stat: str) -> list[str]:
    """Fields of /proc/<pid>/stat from `state` on; the name before it may hold spaces and
    parentheses.
    """
    return stat.rsplit(")", 1)[1].split()


def _tail(path: Path, lines: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return "".join(text.splitlines(keepends=True)[-lines:])
