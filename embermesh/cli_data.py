"""Commands that move data and need no gateway: `embermesh produce` and `embermesh export-rows`."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from embermesh import render
from embermesh.output import AsJson, out, print_json
from services.kit import errors


class MessageFormat(str, enum.Enum):
    """What one Kafka message holds."""

    JSON = "json"
    ARROW = "arrow"


def produce(
    source: Annotated[str, typer.Argument(metavar="FILE", help="File, glob, or s3:// URI.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="kafka://HOST:PORT/TOPIC")],
    message: Annotated[
        MessageFormat, typer.Option("--format", help="One JSON row, or many Arrow rows a message.")
    ] = MessageFormat.JSON,
    file_format: Annotated[
        str, typer.Option(help="auto, criteo-tsv, tsv, csv or parquet.")
    ] = "auto",
    rows_per_message: Annotated[int, typer.Option(min=1, help="With --format arrow.")] = 256,
    create: Annotated[
        int | None, typer.Option(min=1, help="Create the topic with so many partitions.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many rows.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of files to a Kafka topic, in file order."""
    from embermesh import produce as producing  # brings pyarrow and kafka-python, half a second

    servers, name = split_topic(topic)
    with Console(stderr=True).status(f"writing to {name}") as status:
        done = producing.produce(
            source if "://" in source else f"file://{source}",
            servers,
            name,
            message_format=str(message.value),
            data_format=file_format,
            rows_per_message=rows_per_message,
            create_partitions=create,
            limit=limit,
            progress=lambda rows: status.update(f"writing to {name}: {render.count(rows)} rows"),
        )
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    bad = f", {done.bad_lines} malformed lines left out" if done.bad_lines else ""
    out().print(f"{done.rows} rows in {done.messages} messages{bad}, {done.seconds:.1f} s")


def export_rows(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="Folder or manifest of a checkpoint.")
    ],
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Parquet file to write.")],
    table: Annotated[str, typer.Option(help="Which embedding table, e.g. C1.")],
    state: Annotated[bool, typer.Option("--state", help="The optimizer's state too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the rows of an embedding table to a Parquet file, for pandas, DuckDB and others."""
    from embermesh import export  # brings pyarrow, half a second

    done = export.export_rows(checkpoint, table, target, with_state=state)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    out().print(f"{done.rows} rows of {done.dim} weights in {done.file}", soft_wrap=True)


def split_topic(uri: str) -> tuple[str, str]:
    """kafka://HOST:PORT/TOPIC -> (HOST:PORT, TOPIC). Raises InvalidInput."""
    parts = urlsplit(uri)
    name = parts.path.strip("/")
    if parts.scheme != "kafka" or not parts.netloc or not name or "/" in name:
        raise errors.InvalidInput(f"topic {uri!r}: write it like kafka://127.0.0.1:9092/clicks")
    return parts.netloc, name
