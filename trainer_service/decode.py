"""Files of rows -> Arrow record batches with the wanted columns.

Streamed: a file is never in memory as a whole. Knows file names and formats, not features'
transforms, stripes or trainers. The format modules are `decode_text` and `decode_parquet`; each
gives a `Codec`.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from services.kit.errors import Damaged, InvalidInput, NotFound, Unavailable

_SUFFIXES = {".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_CORRUPT = (pa.ArrowException, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)


@dataclass(frozen=True)
class File:
    """One file of a source; `name` is what messages call it."""

    fs: Any  # fsspec file system
    path: str
    name: str

    @contextmanager
    def open(self, packed: bool = True) -> Iterator[Any]:
        """The file's bytes, unpacked by its suffix unless `packed` is False.

        Arrow reads a local file that isn't packed itself: fewer copies, and other threads may run
        Python meanwhile. Turns what goes wrong inside the block into NotFound, Damaged or
        Unavailable that names the file.
        """
        try:
            with self._opened(packed) as stream:
                yield stream
        except FileNotFoundError:
            raise NotFound(f"{self.name} does not exist") from None
        except _CORRUPT as error:
            raise Damaged(f"{self.name} is damaged: {error}") from error
        except OSError as error:
            # Arrow reports broken Parquet as an OSError without a number; the system's errors have
            # one.
            if error.errno is None:
                raise Damaged(f"{self.name} is damaged: {error}") from error
            raise Unavailable(f"can't read {self.name}: {error}") from error

    def _opened(self, packed: bool) -> AbstractContextManager[Any]:
        if not packed and isinstance(self.fs, LocalFileSystem):
            local: AbstractContextManager[Any] = pa.OSFile(self.path)
            return local
        compression = _compression(self.path, "infer" if packed else None)
        stream: AbstractContextManager[Any] = fsspec.core.OpenFile(
            self.fs, self.path, "rb", compression
        )
        return stream


@dataclass(frozen=True)
class BadLine:
    """A line that doesn't have the columns it should; it is no row and has no row number."""

    file: str
    reason: str
    text: str


@dataclass(frozen=True)
class Block:
    """Consecutive rows of a source; `rows` is None where nobody wanted them."""

    first: int
    count: int
    rows: pa.RecordBatch | None


class Codec(Protocol):
    """One file format."""

    counts_cheaply: bool  # whether `count` needs no pass over the data

    def columns(self, file: File) -> list[str]:
        """Names of the file's columns, in order."""

    def count(self, file: File) -> int:
        """Rows of the file."""

    def blocks(
        self,
        file: File,
        columns: Sequence[str] | None,
        start: int,
        on_bad: Callable[[BadLine], None],
    ) -> Iterator[tuple[int, pa.RecordBatch | None]]:
        """All rows as (number, rows or None); only what lies before row `start` may be None."""


class RowReader:
    """Rows of one or more files as one sequence, numbered from 0; malformed lines don't count."""

    def __init__(self, files: Sequence[File], codec: Codec, columns: Sequence[str] | None) -> None:
        self._files = list(files)
        self._codec = codec
        self._columns = columns
        self.cheap = codec.counts_cheaply

    def columns(self) -> list[str]:
        """Columns of the first file."""
        return self._codec.columns(self._files[0])

    def count(self) -> int:
        """All rows; a pass over the data unless `cheap`."""
        return sum(self._codec.count(file) for file in self._files)

    def blocks(self, start: int, on_bad: Callable[[BadLine], None]) -> Iterator[Block]:
        """Blocks of all rows, in order; those wholly before row `start` may come without data."""
        first = 0
        for file in self._files:
            for count, rows in self._codec.blocks(file, self._columns, start - first, on_bad):
                yield Block(first, count, rows)
                first += count
                start = max(start, first)


def open_rows(url: str, data_format: str, columns: Sequence[str] | None) -> RowReader:
    """Reader of the files a URL or glob names. `columns` None reads all.

    Raises NotFound when no file matches, InvalidInput for an unknown format or a folder.
    """
    from trainer_service.decode_parquet import ParquetCodec
    from trainer_service.decode_text import TextCodec

    files = find(url)
    name = _format(data_format, files[0])
    codec: Codec = ParquetCodec() if name == "parquet" else TextCodec(name)
    return RowReader(files, codec, columns)


def find(url: str) -> list[File]:
    """Files of a URL or glob, sorted by path; `file://a/b` is relative to the process's folder."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidInput(f"data.source {url!r}: {error}") from error
    scheme = url.split("://", 1)[0]
    try:
        if fs.isdir(path):
            raise InvalidInput(
                f"data.source {url!r} is a folder; name its files, e.g. {url.rstrip('/')}/*.tsv.gz"
            )
        paths = [path] if fs.exists(path) else sorted(p for p in fs.glob(path) if not fs.isdir(p))
    except OSError as error:
        raise Unavailable(f"can't look for {url}: {error}") from error
    if not paths:
        raise NotFound(f"no file matches {url!r} (looked for {path})")
    return [File(fs, p, url if p == path else f"{scheme}://{p}") for p in paths]


def _format(given: str, file: File) -> str:
    if given not in ("auto", "json", "arrow"):
        return given
    name = file.path.lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    for suffix, data_format in _SUFFIXES.items():
        if name.endswith(suffix):
            return data_format
    raise InvalidInput(
        f"data.format: can't tell the format of {file.name} from its name; "
        "set criteo-tsv, tsv, csv or parquet"
    )


def _compression(path: str, wanted: str | None) -> str | None:
    name: str | None = fsspec.core.get_compression(path, wanted)
    return name
