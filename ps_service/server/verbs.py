"""Verbs that both parameter servers answer alike: trainers come and go, a snapshot is dropped.

What a step or a snapshot holds is not known here.
"""

from __future__ import annotations

import abc
from typing import Any, Protocol

import grpc

from ps_service.server.assignment import Assignment
from ps_service.server.pending import PendingSnapshot
from ps_service.server.ranges import RangeTable, starts_of
from services.wire import ps_pb2


class Steps(Protocol):
    """Keeps count of the trainers' steps."""

    def join(self, rank: int, step: int, incarnation: int) -> int:
        """Trainer `rank` takes part from `step` on, or a later one, which is returned."""

    def leave(self, rank: int, incarnation: int) -> int:
        """Trainer `rank` takes no step any more; returns how many still do."""

    def expel(self, rank: int, incarnation: int) -> None:
        """Every process of trainer `rank` before `incarnation` is dead."""


class SharedVerbs(abc.ABC):
    """The part of a servicer that knows trainers and snapshots by name only."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._pending: PendingSnapshot[Any] = PendingSnapshot()

    @property
    @abc.abstractmethod
    def _steps(self) -> Steps:
        """Who keeps count of the trainers' steps in this mode."""

    @abc.abstractmethod
    def _ranges_for(self, caller: ps_pb2.Caller) -> RangeTable:
        """What was applied of each source partition. Raises Conflict before Configure, and what
        `Assignment.admit` does.
        """

    def Leave(
        self, request: ps_pb2.LeaveRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.LeaveReply:
        """See ps.proto."""
        self._assignment.admit(request.caller)
        caller = request.caller
        return ps_pb2.LeaveReply(remaining=self._steps.leave(caller.rank, caller.incarnation))

    def Claim(
        self, request: ps_pb2.ClaimRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.ClaimReply:
        """See ps.proto."""
        ranges, caller = self._ranges_for(request.caller), request.caller
        first = self._steps.join(caller.rank, caller.step + 1, caller.incarnation)
        applied = ranges.claim(starts_of(request), caller.incarnation)
        return ps_pb2.ClaimReply(applied=applied, step=first - 1)

    def DropSnapshot(
        self, request: ps_pb2.SnapshotRequest, _context: grpc.ServicerContext
    ) -> ps_pb2.DropSnapshotReply:
        """See ps.proto."""
        self._assignment.admit(request.caller)
        self._pending.drop(request.uri)
        return ps_pb2.DropSnapshotReply()

    def expel(self, rank: int, incarnation: int) -> None:
        """Every process of trainer `rank` before `incarnation` is dead."""
        self._steps.expel(rank, incarnation)
