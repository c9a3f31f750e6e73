"""KStepClient: a trainer's dense side in mode kstep. Steps are local; every k of them the trainers'
parameters and second moments are averaged by the dense-PS.

The rule is in docs/training-modes.md, the arithmetic of a step in `_native.LocalAdam`. A pause and
the end of the data are merges too, which carry the first moment: what the dense-PS hold then is
everything a restart needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_service import _native, codec, halves
from ps_service.client.dense import DenseClient, DenseStep
from ps_service.ranges import BatchRange
from ps_service.tables import NO_OPTIONS, UpdateOptions
from services.api.manifest import PositionEntry
from services.api.optimizers import KSTEP_OPTIMIZERS
from services.kit.errors import Conflict
from services.wire import ps_pb2

Floats = NDArray[np.float32]
Part = TypeVar("Part")

_NOTHING: Floats = np.zeros(0, np.float32)


class KStepClient:
    """The same interface as DenseClient, over one. Not thread-safe."""

    def __init__(self, client: DenseClient, k: int) -> None:
        """Merges every `k` steps, sooner at first: see `period`."""
        self._client, self._k = client, k
        self._adam: _native.LocalAdam | None = None
        self._places: list[slice] = []  # of each block in the flat array
        self._round = 0  # merges so far
        self._version = 0  # steps of block 0 at the last merge
        self._age = 0  # steps since then
        self._samples = 0  # rows of these

    def configure(
        self,
        optimizer: str,
        params: Mapping[str, float],
        initial: Floats,
        options: UpdateOptions = NO_OPTIONS,
    ) -> Floats:
        """See DenseClient. Raises Conflict for an optimizer other than adam and adamw."""
        self._client.configure(optimizer, params, initial, options)
        if optimizer not in KSTEP_OPTIMIZERS:
            raise Conflict(
                f"mode kstep averages second moments, which {optimizer} has not; the dense "
                f"optimizer must be one of {', '.join(KSTEP_OPTIMIZERS)}"
            )
        self._adam = _native.LocalAdam(
            len(initial),
            optimizer=optimizer,
            optimizer_params=dict(params),
            options=options.native(),
        )
        self._places = self._client.places(initial, "initial")
        request = ps_pb2.DensePullRequest(caller=self._client.caller(0), moments=True)
        replies = self._client.ask_all(lambda stub: stub.Pull, request)
        values = self._floats("values", [r.values for r in replies])
        momentum = self._floats("momentum", [r.momentum for r in replies])
        self._version = replies[0].version
        self._adam.restart(
            values, self._halves("roots", [r.roots for r in replies]), momentum, step=self._version
        )
        return values

    def push(
        self,
        grads: Floats,
        *,
        step: int,
        samples: int,
        pause: bool,
        rows: BatchRange | None = None,  # noqa: ARG002 - a merge is known by its round
    ) -> DenseStep:
        """Steps locally, and merges where the period ends; `pause` is answered there only."""
        adam = self._configured()
        if samples > 0:
            adam.apply(grads)
        self._age, self._samples = self._age + 1, self._samples + samples
        agreed = self._age >= period(self._k, self._version) and self._merge(step, pause=pause)
        return DenseStep(adam.values(), self._version, agreed)

    def pull(self) -> Floats:
        """Values (n,) of the last merge."""
        return self._client.pull()

    def claim(self, starts: Sequence[PositionEntry], *, step: int) -> list[ps_pb2.ClaimReply]:
        """See DenseClient; `step` is a number of merges here."""
        return self._client.claim(starts, step=step)

    def leave(self, step: int) -> None:
        """Gives the others what this trainer has not merged yet, then leaves. Waits for their next
        merge.
        """
        self._merge(step, leaving=True)
        self._client.leave(step)

    def trainers(self) -> int:
        """See DenseClient."""
        return self._client.trainers()

    def close(self) -> None:
        """See DenseClient."""
        self._client.close()

    def _merge(self, step: int, *, pause: bool = False, leaving: bool = False) -> bool:
        """Whether all trainers pause here."""
        adam = self._configured()
        change, roots, momentum = adam.change(), adam.roots(), adam.momentum()
        requests = enumerate(
            ps_pb2.DenseMergeRequest(
                caller=self._client.caller(step),
                round=self._round + 1,
                steps=adam.steps,
                samples=self._samples,
                change=halves.pack(change[place]),
                roots=halves.pack(roots[place]),
                momentum=codec.pack_floats(momentum[place]) if pause or leaving else b"",
                pause=pause,
                leaving=leaving,
            )
            for place in self._places
        )
        replies = self._client.ask(lambda stub: stub.Merge, requests)
        agreed, self._version = bool(replies[0].pause), replies[0].version
        adam.merge(
            self._halves("change", [r.change for r in replies]),
            self._halves("roots", [r.roots for r in replies]),
            self._floats("momentum", [r.momentum for r in replies]) if agreed else _NOTHING,
            step=self._version,
        )
        self._round += 1
        self._age = self._samples = 0
        return agreed

    def _floats(self, field: str, parts: Sequence[bytes]) -> Floats:
        """The flat array (n,) from each block's part."""
        return self._join(field, parts, codec.unpack_floats)

    def _halves(self, field: str, parts: Sequence[ps_pb2.Halves]) -> Floats:
        """The flat array (n,) from each block's part."""
        return self._join(field, parts, halves.unpack)

    def _join(
        self, field: str, parts: Sequence[Part], unpack: Callable[[Part, str, int], Floats]
    ) -> Floats:
        joined = np.empty(self._places[-1].stop, dtype=np.float32)
        for place, part, name in zip(self._places, parts, self._client.names, strict=True):
            where = f"{name}: {field} of the reply"
            joined[place] = unpack(part, where, place.stop - place.start)
        return joined

    def _configured(self) -> _native.LocalAdam:
        if self._adam is None:
            raise Conflict("this client is not configured: call configure first")
        return self._adam


def period(k: int, version: int) -> int:
    """Steps to the next merge when `version` steps are merged: k, but no more than the second
    moment has seen, so that it never stands still longer than it took to make it. From the start
    the merges come after steps 1, 2, 4, 8, … until they are k apart.
    """
    return min(k, max(1, version))
