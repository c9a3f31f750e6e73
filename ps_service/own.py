"""What a trainer hands to the servers in its own process: messages of the wire with their arrays
beside them, so that nothing is packed, copied and unpacked again between the two.

Arrays are as a plan of this process made them, and are not checked as those of the wire are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.wire import ps_pb2


@dataclasses.dataclass(frozen=True)
class RowRead:
    """A pull whose keys are beside the message."""

    request: ps_pb2.SparsePullRequest
    counts: NDArray[np.uint32]  # (T,)
    keys: NDArray[np.uint64]


@dataclasses.dataclass(frozen=True)
class RowPush:
    """A push whose keys and gradients are beside the message."""

    request: ps_pb2.SparsePushRequest
    counts: NDArray[np.uint32]  # (T,)
    keys: NDArray[np.uint64]
    grads: NDArray[np.float32]
    then: Sequence[RowRead]


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a pull reads, as SparsePullReply has it."""

    values: bytes | memoryview  # within a process a view of the array, nothing copied


@dataclasses.dataclass(frozen=True)
class RowsPushed:
    """What a push led to, as SparsePushReply has it."""

    applied: int
    missing: int
    duplicate: bool
    then: Sequence[Rows]


@dataclasses.dataclass(frozen=True)
class BlockPush:
    """A dense push whose gradient is beside the message."""

    request: ps_pb2.DensePushRequest
    grads: NDArray[np.float32]


WithArrays: TypeAlias = RowRead | RowPush | BlockPush


class Stepped(Protocol):
    """What a dense push led to, as DenseValuesReply has it."""

    @property
    def values(self) -> bytes: ...
    @property
    def version(self) -> int: ...
    @property
    def pause(self) -> bool: ...


class OwnShard(Protocol):
    """The verbs of a sparse shard that a trainer calls, and those that take arrays as they are."""

    @property
    def pushes_wait(self) -> bool:
        """Whether a push waits for those of other trainers."""

    def pull_rows(self, read: RowRead) -> Rows:
        """Pull."""

    def push_rows(self, push: RowPush) -> RowsPushed:
        """Push."""

    def Configure(self, request: Any, context: Any) -> Any: ...
    def Claim(self, request: Any, context: Any) -> Any: ...
    def Pull(self, request: Any, context: Any) -> Any: ...
    def Push(self, request: Any, context: Any) -> Any: ...
    def Leave(self, request: Any, context: Any) -> Any: ...
    def Removed(self, request: Any, context: Any) -> Any: ...


class OwnBlock(Protocol):
    """The verbs of a dense block that a trainer calls, and the one that takes arrays."""

    @property
    def pushes_wait(self) -> bool:
        """Whether a push waits for those of other trainers."""

    def push_floats(self, push: BlockPush) -> Stepped:
        """Push."""

    def Configure(self, request: Any, context: Any) -> Any: ...
    def Claim(self, request: Any, context: Any) -> Any: ...
    def Pull(self, request: Any, context: Any) -> Any: ...
    def Push(self, request: Any, context: Any) -> Any: ...
    def Merge(self, request: Any, context: Any) -> Any: ...
    def Leave(self, request: Any, context: Any) -> Any: ...
    def Stats(self, request: Any, context: Any) -> Any: ...
