"""Claiming source partitions: what a trainer asks all servers before its first step, and how their
answers are joined. docs/exactly-once.md has the protocol.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from ps_service.client.dense import DenseSide
from ps_service.client.sparse import SparseClient
from ps_service.ranges import Place, place_of, position_from_proto
from services.api.manifest import PositionEntry
from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class Claimed:
    """What all servers say about one source partition."""

    position: PositionEntry  # the least advanced server's: here reading goes on
    cuts: tuple[Place, ...] = ()  # beyond it, where other servers are, ascending: batches end there
    samples: int = 0  # rows before `position`, trained in this generation


@dataclasses.dataclass(frozen=True)
class Claim:
    """The outcome of a claim."""

    step: int  # the trainer's first step is the one after this
    partitions: Mapping[str, Claimed]

    @property
    def samples(self) -> int:
        """Rows of these partitions that are trained already in this generation."""
        return sum(claimed.samples for claimed in self.partitions.values())

    @property
    def positions(self) -> list[PositionEntry]:
        """Where reading goes on."""
        return [claimed.position for claimed in self.partitions.values()]

    @property
    def ahead(self) -> dict[str, Place]:
        """How far the most advanced server is, of partitions on which the servers differ."""
        return {name: c.cuts[-1] for name, c in self.partitions.items() if c.cuts}


def claim(sparse: SparseClient, dense: DenseSide, starts: Sequence[PositionEntry]) -> Claim:
    """Takes over the partitions of `starts`, which say where to begin what nobody has begun.

    The dense blocks come first: they agree on the first step, and no later one is taken without
    this trainer. Raises Fenced's Conflict when a later incarnation has claimed them.
    """
    blocks = dense.claim(starts, step=0)
    step = max(reply.step for reply in blocks)
    if any(reply.step < step for reply in blocks):  # the others may be between two blocks
        blocks = dense.claim(starts, step=step)
    replies = [*blocks, *sparse.claim(starts, step=step)]
    return Claim(step, joined(replies))


def joined(replies: Sequence[ps_pb2.ClaimReply]) -> dict[str, Claimed]:
    """Every partition's answers of all servers as one; they list the same partitions in order."""
    partitions = {}
    for answers in zip(*(reply.applied for reply in replies), strict=True):
        entries = [position_from_proto(answer.next) for answer in answers]
        least = min(range(len(entries)), key=lambda i: place_of(entries[i]))
        entry = entries[least].model_copy(update={"end": min(e.end for e in entries)})
        cuts = {place_of(e) for e in entries} - {place_of(entry)}
        partitions[entry.partition] = Claimed(entry, tuple(sorted(cuts)), answers[least].samples)
    return partitions
