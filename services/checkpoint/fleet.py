"""The processes of one generation as a checkpoint sees them: pause, begin, resume, write, by gRPC.

Every verb goes to all processes at the same time and has a deadline. Pause and snapshot are not
retried: a full disk must not hold the trainers up until the deadline, and a later checkpoint serves
as well. Knows nothing of schedules, manifests or storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from services.api.manifest import FileEntry
from services.api.resources import Resources
from services.kit import rpc, tracing
from services.kit.discovery import Member, Phase, Registry, Role, Run
from services.kit.errors import Conflict, DeadlineExceeded, EmbermeshError
from services.kit.storage import join
from services.kit.tls import Tls
from services.kit.tracing import Tracing
from services.wire import ps_pb2, ps_pb2_grpc, trainer_pb2, trainer_pb2_grpc

_STUBS: Mapping[Role, Callable[[grpc.Channel], Any]] = {
    Role.SPARSE_PS: ps_pb2_grpc.SparsePsStub,
    Role.DENSE_PS: ps_pb2_grpc.DensePsStub,
}


class NotRunning(Conflict):
    """A process of the generation is not there (yet); nothing has been asked of the others."""


class Fleet:
    """Channels to all members of `run`, by role and rank; a context manager that closes them."""

    def __init__(
        self,
        run: Run,
        members: Sequence[Member],
        stop: threading.Event,
        tls: Tls | None = None,
        traces: Tracing = tracing.OFF,
    ) -> None:
        """`stop` ends pause and snapshots early (Unavailable), but never resume."""
        self._run, self._stop = run, stop
        self._members = {role: [m for m in members if m.role == role] for role in Role}
        self._channels = {m.address: rpc.connect(m.address, tls, traces=traces) for m in members}

    def pause(self, token: str, hold_seconds: int, timeout: float) -> list[trainer_pb2.PauseReply]:
        """Stops all trainers at their common step; replies by rank. Raises the first failure."""
        request = trainer_pb2.PauseRequest(
            generation=self._run.generation, token=token, hold_seconds=hold_seconds
        )
        calls = [
            rpc.Call(self._trainer(m).Pause, request, _name(m)) for m in self._members[Role.TRAINER]
        ]
        return rpc.call_all(calls, timeout=timeout, stop=self._stop, retry=False)

    def begin_snapshots(
        self, folder: str, checkpoint: int, timeout: float, since: int | None = None
    ) -> list[tuple[str, Sequence[trainer_pb2.Position]]]:
        """Lets every parameter server fix what it will write into `folder` for this checkpoint:
        everything, or what changed since checkpoint `since`. Returns each one's name, and how far
        it has applied the source partitions.

        Raises the first failure; Conflict when the dense blocks are not at the same version, or
        when a shard does not know what changed.
        """
        replies = self._ask("BeginSnapshot", folder, checkpoint, timeout, since)
        dense = replies[len(self._members[Role.SPARSE_PS]) :]
        versions = sorted({reply.version for reply in dense})
        if len(versions) > 1:
            raise Conflict(f"the dense blocks are at versions {versions}: not one instant")
        names = [_name(member) for _, member in self._servers()]
        return [(name, reply.applied) for name, reply in zip(names, replies, strict=True)]

    def write_snapshots(
        self, folder: str, checkpoint: int, timeout: float
    ) -> tuple[tuple[FileEntry, ...], tuple[FileEntry, ...]]:
        """Lets every parameter server write what it has fixed; (sparse, dense) by rank.

        Raises the first failure.
        """
        replies = self._ask("Snapshot", folder, checkpoint, timeout)
        files = tuple(
            FileEntry(name=name, bytes=reply.bytes, crc32c=reply.crc32c, rows=tuple(reply.rows))
            for (name, _), reply in zip(self._servers(), replies, strict=True)
        )
        count = len(self._members[Role.SPARSE_PS])
        return files[:count], files[count:]

    def drop_snapshots(self, folder: str, checkpoint: int, timeout: float) -> None:
        """Tells every parameter server that nothing more will be written into `folder`.

        Asks all, whatever they say: one that does not hear it frees its memory later by itself.
        """
        rpc.call_each(self._calls("DropSnapshot", folder, checkpoint), timeout=timeout)

    def resume(self, token: str, timeout: float) -> None:
        """Lets all trainers go on. Raises DeadlineExceeded naming those that did not stand still.

        A trainer that does not answer counts as one that did not. Every trainer is asked, whatever
        the others say.
        """
        request = trainer_pb2.ResumeRequest(generation=self._run.generation, token=token)
        members = self._members[Role.TRAINER]
        calls = [rpc.Call(self._trainer(m).Resume, request, _name(m)) for m in members]
        replies = rpc.call_each(calls, timeout=timeout)
        moved = []
        for member, reply in zip(members, replies, strict=True):
            if isinstance(reply, EmbermeshError):
                moved.append(str(reply))
            elif not reply.held:
                moved.append(f"{_name(member)}: went on before all snapshots had begun")
        if moved:
            raise DeadlineExceeded("; ".join(moved))

    def _ask(
        self, verb: str, folder: str, checkpoint: int, timeout: float, since: int | None = None
    ) -> list[Any]:
        calls = self._calls(verb, folder, checkpoint, since)
        return rpc.call_all(calls, timeout=timeout, stop=self._stop, retry=False)

    def _calls(
        self, verb: str, folder: str, checkpoint: int, since: int | None = None
    ) -> list[rpc.Call[Any]]:
        caller = ps_pb2.Caller(generation=self._run.generation, epoch=self._run.epoch)
        calls = []
        for name, member in self._servers():
            request = ps_pb2.SnapshotRequest(
                caller=caller, uri=join(folder, name), id=checkpoint, since=since
            )
            stub = _STUBS[member.role](self._channels[member.address])
            calls.append(rpc.Call(getattr(stub, verb), request, _name(member)))
        return calls

    def _servers(self) -> list[tuple[str, Member]]:
        """The parameter servers, each with the name of its file."""
        return [
            (f"{stem}-{member.rank:03d}.emb", member)
            for role, stem in ((Role.SPARSE_PS, "sparse"), (Role.DENSE_PS, "dense"))
            for member in self._members[role]
        ]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            channel.close()

    def _trainer(self, member: Member) -> trainer_pb2_grpc.TrainerStub:
        return trainer_pb2_grpc.TrainerStub(self._channels[member.address])


def find_members(registry: Registry, run: Run, resources: Resources) -> list[Member]:
    """All processes the run must have, by role and rank. Raises NotRunning naming the missing."""
    wanted = {
        Role.SPARSE_PS: resources.sparse_ps,
        Role.DENSE_PS: resources.dense_ps,
        Role.TRAINER: resources.trainers,
    }
    serving = {
        (m.role, m.rank): m
        for m in registry.members(run.job, run.generation)
        if m.phase in (Phase.READY, Phase.DONE) and m.address
    }
    keys = [(role, rank) for role, count in wanted.items() for rank in range(count)]
    missing = [f"{role} {rank}" for role, rank in keys if (role, rank) not in serving]
    if missing:
        raise NotRunning(
            f"job {run.job}, generation {run.generation}: not ready: {', '.join(missing)}"
        )
    return [serving[key] for key in keys]


def _name(member: Member) -> str:
    return f"{member.role} {member.rank} at {member.address}"
