"""What a trainer finds when it takes up its work: how far its source partitions are, after which
step it goes on, and the dense parameters of that moment.

A job's first trainers find nothing done; one that replaces a dead trainer finds what that one left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ps_service.client.claim import Claim, Claimed, claim
from ps_service.client.dense import DenseSide
from ps_service.client.sparse import SparseClient
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict

log = logging.getLogger(__name__)


class Takeover:
    """One claim; its outcome stays readable."""

    def __init__(self, sparse: SparseClient, dense: DenseSide) -> None:
        """Both clients are configured."""
        self._sparse, self._dense = sparse, dense
        self._result: Claim | None = None
        self._parameters: npt.NDArray[np.float32] | None = None

    def claim(self, starts: Sequence[PositionEntry]) -> Mapping[str, Claimed]:
        """See `sources.Claimer`. From here on the other trainers' barriers wait for this one."""
        result = self._result = claim(self._sparse, self._dense, starts)
        self._parameters = self._dense.pull()
        log.info(
            "%d source partitions from step %d on, %d rows of them trained, %d to settle",
            len(result.partitions),
            result.step + 1,
            result.samples,
            len(result.ahead),
        )
        return result.partitions

    @property
    def result(self) -> Claim:
        """The outcome. Raises Conflict before `claim`."""
        if self._result is None:
            raise Conflict("no source partition has been claimed yet")
        return self._result

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        """The dense parameters of the first step (n,). Raises Conflict before `claim`."""
        if self._parameters is None:
            raise Conflict("no source partition has been claimed yet")
        return self._parameters
