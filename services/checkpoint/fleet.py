"""The processes of one generation as a checkpoint sees them: pause, snapshot, resume, by gRPC.

Every verb goes to all processes at the same time and has a deadline. Pause and snapshot are not
retried: a full disk must not hold the trainers up until the deadline, and a later checkpoint serves
as well. Knows nothing of schedules, manifests or storage.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType

from services.api.manifest import FileEntry
from services.api.spec import Resources
from services.kit import rpc
from services.kit.discovery import Member, Phase, Registry, Role, Run
from services.kit.errors import Conflict, DeadlineExceeded, EmbermeshError
from services.kit.storage import join
from services.wire import ps_pb2, ps_pb2_grpc, trainer_pb2, trainer_pb2_grpc


class NotRunning(Conflict):
    """A process of the generation is not there (yet); nothing has been asked of the others."""


class Fleet:
    """Channels to all members of `run`, by role and rank; a context manager that closes them."""

    def __init__(self, run: Run, members: Sequence[Member], stop: threading.Event) -> None:
        """`stop` ends pause and snapshot early (Unavailable), but never resume."""
        self._run, self._stop = run, stop
        self._members = {role: [m for m in members if m.role == role] for role in Role}
        self._channels = {m.address: rpc.connect(m.address) for m in members}

    def pause(self, token: str, hold_seconds: int, timeout: float) -> list[trainer_pb2.PauseReply]:
        """Stops all trainers at their common step; replies by rank. Raises the first failure."""
        request = trainer_pb2.PauseRequest(
            generation=self._run.generation, token=token, hold_seconds=hold_seconds
        )
        calls = [
            rpc.Call(self._trainer(m).Pause, request, _name(m)) for m in self._members[Role.TRAINER]
        ]
        return rpc.call_all(calls, timeout=timeout, stop=self._stop, retry=False)

    def snapshot(
        self, folder: str, timeout: float
    ) -> tuple[tuple[FileEntry, ...], tuple[FileEntry, ...]]:
        """Lets every parameter server write its file into `folder`; (sparse, dense) by rank.

        Raises the first failure; Conflict when the dense blocks are not at the same version.
        """
        caller = ps_pb2.Caller(generation=self._run.generation, epoch=self._run.epoch)
        calls = []
        names = []
        for role, stem in ((Role.SPARSE_PS, "sparse"), (Role.DENSE_PS, "dense")):
            for member in self._members[role]:
                names.append(f"{stem}-{member.rank:03d}.emb")
                request = ps_pb2.SnapshotRequest(caller=caller, uri=join(folder, names[-1]))
                channel = self._channels[member.address]
                snapshot = (
                    ps_pb2_grpc.SparsePsStub(channel).Snapshot
                    if role is Role.SPARSE_PS
                    else ps_pb2_grpc.DensePsStub(channel).Snapshot
                )
                calls.append(rpc.Call(snapshot, request, _name(member)))
        replies = rpc.call_all(calls, timeout=timeout, stop=self._stop, retry=False)
        count = len(self._members[Role.SPARSE_PS])
        versions = sorted({reply.version for reply in replies[count:]})
        if len(versions) > 1:
            raise Conflict(f"the dense blocks are at versions {versions}: not one instant")
        files = tuple(
            FileEntry(name=name, bytes=reply.bytes, crc32c=reply.crc32c, rows=tuple(reply.rows))
            for name, reply in zip(names, replies, strict=True)
        )
        return files[:count], files[count:]

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
                moved.append(f"{_name(member)}: went on before the snapshots were done")
        if moved:
            raise DeadlineExceeded("; ".join(moved))

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
