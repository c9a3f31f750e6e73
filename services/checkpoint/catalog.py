"""The checkpoints of one job as they lie in storage: names, listing, retention.

A checkpoint is a folder `{to}/{job}/{id}`; it is complete when its manifest is there. Knows nothing
of processes: storage is the only truth, so a restarted service goes on where the last one stopped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from services.api import manifest as manifests
from services.api.manifest import Manifest
from services.kit.discovery import Checkpoint
from services.kit.errors import Damaged, InvalidInput, NotFound
from services.kit.storage import Storage, join

log = logging.getLogger(__name__)

_ID = re.compile(r"[0-9]{6,18}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


class Catalog:
    """Checkpoints below `{to}/{job}`. Raises InvalidInput for a job id that is no plain name."""

    def __init__(self, storage: Storage, to: str, job: str) -> None:
        if not _JOB.fullmatch(job):
            raise InvalidInput(f"job: {job!r} is not a job id")
        self._storage, self._root = storage, join(to, job)

    def folder(self, checkpoint_id: str) -> str:
        """URI of the folder of `checkpoint_id`."""
        return join(self._root, checkpoint_id)

    def next_id(self) -> str:
        """An id above every folder's, complete or not, so that no old file is ever written over."""
        return f"{max((int(name) for name in self._ids()), default=0) + 1:06d}"

    def complete(self) -> list[Checkpoint]:
        """Complete checkpoints, oldest first; one with a damaged manifest is left out, logged."""
        return [summary(manifest, uri) for uri, manifest in self._manifests()]

    def base_for_delta(self, deltas: int) -> str:
        """Id of the newest complete checkpoint, if fewer than `deltas` deltas lead up to it; else
        empty.
        """
        if deltas == 0:
            return ""
        bases = {manifest.id: manifest.base for _, manifest in self._manifests()}
        newest = max(bases, key=int, default="")
        chain = _closure([newest], bases) if newest else set()
        return newest if 0 < len(chain) <= deltas and chain <= set(bases) else ""

    def missing(self, checkpoint_id: str, names: list[str]) -> list[str]:
        """Those of `names` that this process does not see in the checkpoint's folder."""
        seen = set(self._storage.list(self.folder(checkpoint_id)))
        return [name for name in names if name not in seen]

    def discard(self, checkpoint_id: str) -> None:
        """Removes a folder. The manifest goes first: what is half removed is not complete."""
        self._storage.delete(join(self.folder(checkpoint_id), manifests.FILE_NAME))
        self._storage.delete(self.folder(checkpoint_id))

    def retain(self, keep: int, in_use: str) -> list[str]:
        """Keeps the newest `keep` complete checkpoints; returns the ids of the removed folders.

        Stays: the checkpoint of manifest URI `in_use`, whatever its age; what a kept delta builds
        upon; a damaged one, for a person to look at; a folder without manifest that is newer than
        the newest complete one, since it may be in the making.
        """
        bases = {manifest.id: manifest.base for _, manifest in self._manifests()}
        complete = sorted(bases, key=int)
        if not complete:
            return []
        kept = complete[-keep:]
        if in_use:
            kept += [i for i in complete if self._is(i, in_use)]
        surplus = set(complete) - _closure(kept, bases)
        newest = int(complete[-1])
        surplus.update(i for i in self._ids() if int(i) < newest and self._abandoned(i))
        for checkpoint_id in sorted(surplus):
            self.discard(checkpoint_id)
        return sorted(surplus)

    def _manifests(self) -> list[tuple[str, Manifest]]:
        found = []
        for checkpoint_id in self._ids():
            uri = join(self.folder(checkpoint_id), manifests.FILE_NAME)
            try:
                found.append((uri, manifests.read(self._storage, uri)))
            except NotFound:
                continue
            except Damaged as error:
                log.warning("%s", error)
        return found

    def _ids(self) -> list[str]:
        names = self._storage.list(self._root)
        return sorted((name for name in names if _ID.fullmatch(name)), key=int)

    def _abandoned(self, checkpoint_id: str) -> bool:
        return not self._storage.exists(join(self.folder(checkpoint_id), manifests.FILE_NAME))

    def _is(self, checkpoint_id: str, uri: str) -> bool:
        mine = join(self.folder(checkpoint_id), manifests.FILE_NAME)
        return self._storage.absolute(mine) == self._storage.absolute(uri)


def _closure(ids: list[str], bases: Mapping[str, str]) -> set[str]:
    """`ids` and all that they build upon."""
    found: set[str] = set()
    for checkpoint_id in ids:
        while checkpoint_id and checkpoint_id not in found:
            found.add(checkpoint_id)
            checkpoint_id = bases.get(checkpoint_id, "")
    return found


def summary(manifest: Manifest, uri: str) -> Checkpoint:
    """What others need to know of the checkpoint whose manifest lies at `uri`."""
    return Checkpoint(
        id=manifest.id,
        uri=uri,
        created=manifest.created,
        samples=manifest.samples,
        rows=manifest.total_rows,
        bytes=manifest.total_bytes,
    )
