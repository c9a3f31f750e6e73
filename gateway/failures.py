"""Why a generation failed, from what its processes said last and how they ended. Pure."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping, Sequence

from gateway.targets import Process
from services.kit.discovery import Member, Phase, Role
from services.kit.lifecycle import EXIT_PERMANENT

_WORDS_SHOWN = 2_000  # characters of a dead process's log
_BLAME = {
    Role.SPARSE_PS: 0,
    Role.DENSE_PS: 1,
    Role.TRAINER: 2,
}  # trainers fail because servers are gone, not vice versa


@dataclasses.dataclass(frozen=True)
class Failure:
    """`permanent`: the cause is in the input, so a restart can't cure it."""

    text: str
    permanent: bool = False
    trainer: int | None = None  # its rank, if it is a trainer's alone
    place: tuple[Role, int] | None = None  # whose it is, if it is one process's


def failures_of(
    processes: Sequence[Process],
    members: Sequence[Member],
    silent: Mapping[tuple[Role, int], float],
    silence: float,
) -> list[Failure]:
    """All failures, the one to blame first: permanent ones, then those of servers."""
    leases = {(m.role, m.rank): m for m in members}
    found: list[tuple[bool, int, int, Failure]] = []

    def blame(role: Role, rank: int, text: str, permanent: bool) -> None:
        trainer = rank if role == Role.TRAINER else None
        failure = Failure(f"{role} {rank}: {text}", permanent, trainer, (role, rank))
        found.append((not permanent, _BLAME[role], rank, failure))

    for member in members:
        if member.phase == Phase.FAILED:
            blame(member.role, member.rank, member.error or "failed", member.permanent)
    for process in processes:
        lease = leases.get((process.role, process.rank))
        if not process.alive and (lease is None or lease.phase != Phase.FAILED):
            blame(process.role, process.rank, _ending(process), process.exit_code == EXIT_PERMANENT)
    for (role, rank), seconds in silent.items():
        if seconds > silence:
            blame(role, rank, f"has not renewed its lease for {seconds:.0f} s", False)
    return [item[3] for item in sorted(found, key=lambda item: item[:3])]


def _ending(process: Process) -> str:
    code = process.exit_code
    if code is None:
        how = "ended with an unknown exit code"
    elif code < 0:
        how = f"killed by {_signal_name(-code)}"
    else:
        how = f"ended with exit code {code}"
    words = process.last_words.strip()[-_WORDS_SHOWN:]
    return f"{how}; its log ends:\n{words}" if words else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
