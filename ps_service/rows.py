"""The rows of a checkpoint for people and programs outside of training: partition by partition, as
numpy arrays.

Reads what the servers wrote, deltas included, with every check that a restore makes. Memory holds
one partition. Knows nothing of file formats other than our own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ps_service import _native
from ps_service.server import snapshot
from ps_service.tables import TableSpec
from services.api import manifest as manifests
from services.kit.errors import Damaged, NotFound
from services.kit.storage import Storage


@dataclasses.dataclass(frozen=True)
class Rows:
    """Some rows of one table."""

    keys: NDArray[np.uint64]  # (n,), ascending
    weights: NDArray[np.float32]  # (n, dim)
    state: NDArray[np.float32]  # (n, floats of optimizer state)


class CheckpointRows:
    """The embedding tables of one checkpoint.

    Opening it reads the manifest, those it builds upon, and headers of files. Raises NotFound, or
    Damaged that names the file.
    """

    def __init__(self, storage: Storage, manifest_uri: str) -> None:
        self._uri = manifest_uri
        chain = manifests.read_chain(storage, manifest_uri)
        self._partitions = chain[0][1].partitions
        self._levels = [
            list(snapshot.open_sparse(storage, uri, manifest)) for uri, manifest in chain
        ]
        self.tables = snapshot.tables_of(self._levels[-1][0])
        for level in self._levels:
            for file in level:
                snapshot.check_tables(file, self.tables)

    def table(self, name: str) -> TableSpec:
        """The table of that name. Raises NotFound that names those there are."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(t.name for t in self.tables)
        raise NotFound(f"{self._uri} has no table {name!r}, only {known}")

    def read(self, name: str) -> Iterator[Rows]:
        """All rows of a table, those of one partition at a time; empty partitions are left out.

        Raises NotFound for an unknown table, and Damaged that names the file.
        """
        number = self.tables.index(self.table(name))
        shard = _native.SparseShard(
            [t.native() for t in self.tables], partitions=self._partitions, seed=0
        )
        for partition in sorted(
            {i for level in self._levels for f in level for i in f.ids if i < snapshot.LIFECYCLE_ID}
        ):
            for level in self._levels:
                holders = [file for file in level if partition in file.ids]
                if len(holders) > 1:
                    raise Damaged(
                        f"partition {partition} is in {holders[0].uri} and {holders[1].uri}"
                    )
                for file in holders:
                    for _, block in file.blocks([partition]):
                        snapshot.load_block(shard, partition, block, file)
            rows = Rows(*shard.export_rows(number))
            if len(rows.keys):
                yield rows
            shard.clear()
