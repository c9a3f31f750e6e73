"""Rows of a checkpoint -> a Parquet file: what `embermesh export-rows` does.

One record per row: `key` (uint64), `weights` (a list of the table's dim floats) and, when asked
for, `state` (the optimizer's floats, laid out as in docs/formats.md). pandas, Polars, DuckDB and
Spark read it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ps_service.rows import CheckpointRows, Rows
from services.api.manifest import FILE_NAME
from services.kit.errors import Unavailable
from services.kit.storage import Storage, join

_GROUP_ROWS = 100_000  # rows of a Parquet row group, at least


@dataclass(frozen=True)
class Exported:
    """What was written."""

    file: str
    table: str
    rows: int
    dim: int


def export_rows(checkpoint: str, table: str, target: Path, *, with_state: bool = False) -> Exported:
    """Writes all rows of a table of `checkpoint`: a folder or manifest.json, as path or URI.

    Rows come partition by partition, keys ascending within each. Raises NotFound (checkpoint,
    table), Damaged (checkpoint) or Unavailable (target); no file is left behind then.
    """
    stored = CheckpointRows(Storage(), _manifest_uri(checkpoint))
    spec = stored.table(table)
    state_floats = spec.native().state_floats if with_state else 0
    fields = [pa.field("key", pa.uint64(), False), _vectors("weights", spec.dim)]
    if with_state:
        fields.append(_vectors("state", state_floats))
    schema = pa.schema(fields, metadata={"table": table, "optimizer": spec.optimizer})
    partial = target.with_name(f".{target.name}.partial")
    count = 0
    try:
        with pq.ParquetWriter(partial, schema) as file:
            waiting: list[Rows] = []
            for rows in stored.read(table):
                waiting.append(rows)
                count += len(rows.keys)
                if sum(len(r.keys) for r in waiting) >= _GROUP_ROWS:
                    file.write_table(_table(waiting, schema))
                    waiting = []
            if waiting:
                file.write_table(_table(waiting, schema))
        partial.replace(target)
    except OSError as error:
        raise Unavailable(f"can't write {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return Exported(str(target), table, count, spec.dim)


def _manifest_uri(checkpoint: str) -> str:
    uri = checkpoint if "://" in checkpoint else f"file://{Path(checkpoint).absolute()}"
    return uri if uri.endswith(f"/{FILE_NAME}") else join(uri, FILE_NAME)


def _vectors(name: str, floats: int) -> pa.Field:
    return pa.field(name, pa.list_(pa.float32(), floats), False)


def _table(parts: list[Rows], schema: pa.Schema) -> pa.Table:
    columns: list[pa.Array] = [pa.array(np.concatenate([p.keys for p in parts]))]
    for name, arrays in (
        ("weights", [p.weights for p in parts]),
        ("state", [p.state for p in parts]),
    ):
        if name in schema.names:
            columns.append(_fixed(np.concatenate(arrays)))
    return pa.Table.from_arrays(columns, schema=schema)


def _fixed(rows: NDArray[np.float32]) -> pa.Array:
    if rows.shape[1] == 0:  # an optimizer without state
        return pa.array([[]] * len(rows), pa.list_(pa.float32(), 0))
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
