"""Files to record batches: formats, headers, packing, bad lines, broken bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.kit.errors import Damaged, InvalidInput, NotFound
from tests.data import shared_data
from trainer_service.decode import BadLine, RowReader, find, open_rows
from trainer_service.decode_text import CRITEO_COLUMNS


def read(reader: RowReader, start: int = 0) -> tuple[list[dict], list[BadLine]]:
    bad: list[BadLine] = []
    rows: list[dict] = []
    for block in reader.blocks(start, bad.append):
        assert block.rows is None or block.rows.num_rows == block.count
        rows += block.rows.to_pylist() if block.rows is not None else [{}] * block.count
    return rows, bad


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return f"file://{path}"


def criteo_line(label: int, first: str = "5") -> str:
    return "\t".join([str(label), first, *[""] * 12, *["68fd1e64"] * 26])


def test_criteo_without_header(tmp_path):
    url = write(tmp_path / "train.txt", criteo_line(1) + "\n" + criteo_line(0, "") + "\n")
    reader = open_rows(url, "criteo-tsv", ["label", "I1", "C26"])
    assert reader.columns() == list(CRITEO_COLUMNS)
    rows, _ = read(reader)
    assert rows == [
        {"label": b"1", "I1": b"5", "C26": b"68fd1e64"},
        {"label": b"0", "I1": b"", "C26": b"68fd1e64"},
    ]
    assert reader.count() == 2


def test_criteo_with_header_may_have_more_columns(tmp_path):
    header = "\t".join([*CRITEO_COLUMNS, "_src"])
    url = write(tmp_path / "a.tsv", f"{header}\n{criteo_line(1)}\tx\n")
    rows, bad = read(open_rows(url, "criteo-tsv", ["_src", "label"]))
    assert rows == [{"_src": b"x", "label": b"1"}]
    assert not bad


def test_csv_quotes_and_tsv_does_not(tmp_path):
    text = 'a,b\n"x,1","say ""hi""\nthere"\n'
    assert read(open_rows(write(tmp_path / "q.csv", text), "auto", ["a", "b"]))[0] == [
        {"a": b"x,1", "b": b'say "hi"\nthere'}
    ]
    rows, _ = read(open_rows(write(tmp_path / "q.tsv", 'a\tb\n"x\ty"\n'), "auto", ["a", "b"]))
    assert rows == [{"a": b'"x', "b": b'y"'}]


def test_header_with_quotes_bom_and_crlf(tmp_path):
    url = write(tmp_path / "h.csv", b'\xef\xbb\xbf"la,bel",x\r\n1,2\r\n')
    assert read(open_rows(url, "csv", ["la,bel", "x"]))[0] == [{"la,bel": b"1", "x": b"2"}]


def test_bytes_that_are_not_utf8_are_values(tmp_path):
    url = write(tmp_path / "latin.csv", b"label,city\n1,K\xf6ln\n")
    assert read(open_rows(url, "csv", ["city"]))[0] == [{"city": b"K\xf6ln"}]


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)]
)
def test_packed_text(tmp_path, suffix, pack):
    url = write(tmp_path / f"a.csv.{suffix}", pack(b"a\n1\n2\n"))
    assert read(open_rows(url, "auto", ["a"]))[0] == [{"a": b"1"}, {"a": b"2"}]


def test_malformed_lines_are_reported_and_have_no_row_number(tmp_path):
    url = write(tmp_path / "a.csv", "a,b\n1,2\n3\n4,5,6\n7,8\n")
    reader = open_rows(url, "csv", ["a"])
    rows, bad = read(reader)
    assert rows == [{"a": b"1"}, {"a": b"7"}]
    assert [(b.reason, b.text) for b in bad] == [
        ("1 fields instead of 2", "3"),
        ("3 fields instead of 2", "4,5,6"),
    ]
    assert bad[0].file == url
    assert reader.count() == 2


def test_header_only_has_no_rows_and_an_empty_file_is_an_error(tmp_path):
    reader = open_rows(write(tmp_path / "h.csv", "a,b\n"), "csv", ["a"])
    assert read(reader) == ([], [])
    assert reader.count() == 0
    with pytest.raises(InvalidInput, match=r"empty\.csv is empty"):
        open_rows(write(tmp_path / "empty.csv", ""), "csv", ["a"]).columns()


def test_a_large_file_comes_in_blocks(tmp_path):
    url = write(tmp_path / "big.csv", "a\n" + "x" * 99 + "\n" + "y\n" * 2_000_000)
    blocks = list(open_rows(url, "csv", ["a"]).blocks(0, lambda line: None))
    assert len(blocks) > 2
    assert sum(b.count for b in blocks) == 2_000_001
    assert max(b.rows.nbytes for b in blocks if b.rows is not None) < 8 << 20


@pytest.mark.parametrize("columns", [["zz"], ["a", "zz"]])
def test_a_column_that_is_not_there_is_named(tmp_path, columns):
    csv = open_rows(write(tmp_path / "a.csv", "a,b\n1,2\n"), "csv", columns)
    with pytest.raises(
        InvalidInput, match=r"a\.csv: column 'zz' is there not; the header has: a, b"
    ):
        read(csv)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    parquet = open_rows(f"file://{tmp_path}/a.parquet", "auto", columns)
    with pytest.raises(InvalidInput, match="column 'zz' is not there; it has: a"):
        read(parquet)


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    url = write(tmp_path / "a.csv", "a,a\n1,2\n")
    with pytest.raises(InvalidInput, match="column 'a' is there twice"):
        read(open_rows(url, "csv", ["a"]))


# ---- Parquet -----------------------------------------------------------------------------------


def test_parquet_keeps_types_and_skips_row_groups(tmp_path):
    table = pa.table({"a": list(range(100)), "b": ["x"] * 100})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    reader = open_rows(f"file://{tmp_path}/a.parquet", "auto", ["a"])
    assert reader.cheap
    assert reader.count() == 100
    blocks = list(reader.blocks(65, lambda line: None))
    assert [(b.first, b.count, b.rows is None) for b in blocks] == [
        (0, 30, True),
        (30, 30, True),
        (60, 40, False),  # decoded across the groups' border
    ]
    assert blocks[2].rows is not None
    assert blocks[2].rows.schema == pa.schema([("a", pa.int64())])
    assert blocks[2].rows.column(0).to_pylist() == list(range(60, 100))


@pytest.mark.parametrize("group", [1_000, 30_000, 70_000])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_row_groups_of_any_size_come_in_order(tmp_path, scheme, group):
    url = f"{scheme}://{tmp_path}/a.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(pa.table({"a": np.arange(150_000)}), file, row_group_size=group)
    blocks = list(open_rows(url, "auto", ["a"]).blocks(71_000, lambda line: None))
    passed = 71_000 // group * group
    assert sum(block.count for block in blocks if block.rows is None) == passed
    values = np.concatenate([b.rows.column(0).to_numpy() for b in blocks if b.rows is not None])
    np.testing.assert_array_equal(values, np.arange(passed, 150_000))
    assert [b.first for b in blocks] == [0, *np.cumsum([b.count for b in blocks])[:-1]]


def test_a_parquet_file_is_never_in_memory_as_a_whole(tmp_path):
    table = pa.table({"a": np.random.default_rng(1).integers(0, 2**62, 2_000_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000)
    size, before = table.nbytes, pa.total_allocated_bytes()
    most = 0
    for _ in open_rows(f"file://{tmp_path}/a.parquet", "auto", ["a"]).blocks(0, lambda line: None):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < size / 4


def test_files_of_a_glob_are_one_sequence_in_order_of_their_names(tmp_path):
    for i, name in enumerate(["b.parquet", "a.parquet", "c.parquet"]):
        pq.write_table(pa.table({"a": [10 * i, 10 * i + 1]}), tmp_path / name)
    reader = open_rows(f"file://{tmp_path}/*.parquet", "auto", ["a"])
    assert [row["a"] for row in read(reader)[0]] == [10, 11, 0, 1, 20, 21]
    assert [b.first for b in reader.blocks(3, lambda line: None)] == [0, 2, 4]
    assert [b.rows is None for b in reader.blocks(4, lambda line: None)] == [True, True, False]


# ---- broken and missing files ------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no gzip at all"])
def test_a_corrupt_gzip_is_damaged_by_name(tmp_path, damage):
    path = tmp_path / "clicks.csv.gz"
    body = "".join(f"{i * 7919 % 1000},{i * 104729 % 999}\n" for i in range(300_000))
    url = write(path, gzip.compress(("a,b\n" + body).encode(), 1))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-2000])
    elif damage == "flipped":
        flip(path, path.stat().st_size - 6)  # inside the checksum
    else:
        path.write_bytes(b"a,b\n1,2\n")
    with pytest.raises(Damaged, match=r"clicks\.csv\.gz is damaged"):
        read(open_rows(url, "auto", ["a"]))


@pytest.mark.parametrize("damage", ["truncated", "no parquet", "flipped page"])
def test_a_corrupt_parquet_is_damaged_by_name(tmp_path, damage):
    path = tmp_path / "clicks.parquet"
    table = pa.table({"a": [str(i * 7919) for i in range(5000)]})
    pq.write_table(table, path, write_page_checksum=True, compression="zstd", use_dictionary=False)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "flipped page":
        flip(path, 5000)
    else:
        path.write_bytes(b"PAR1 nothing else of it PAR1")
    with pytest.raises(Damaged, match=r"clicks\.parquet is damaged"):
        read(open_rows(f"file://{path}", "auto", ["a"]))


def test_a_line_longer_than_a_block_is_damaged_and_no_endless_read(tmp_path):
    url = write(tmp_path / "a.csv", "a\n" + "1\n" + "x" * (5 << 20))
    with pytest.raises(Damaged, match=r"a\.csv"):
        read(open_rows(url, "csv", ["a"]))


def test_no_match_names_the_url(tmp_path):
    with pytest.raises(NotFound, match=r"no file matches 'file://.*\*\.gz'"):
        open_rows(f"file://{tmp_path}/*.gz", "csv", None)
    with pytest.raises(NotFound, match=r"gone\.csv"):
        open_rows(f"file://{tmp_path}/gone.csv", "csv", None)


def test_a_folder_and_an_unknown_suffix_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="is a folder"):
        open_rows(f"file://{tmp_path}", "csv", None)
    with pytest.raises(InvalidInput, match="set criteo-tsv, tsv, csv or parquet"):
        open_rows(write(tmp_path / "a.dat", "a\n"), "auto", None)


def test_relative_paths_start_at_the_working_folder(tmp_path, monkeypatch):
    write(tmp_path / "clicks.csv", "a\n1\n")
    monkeypatch.chdir(tmp_path)
    assert read(open_rows("file://clicks.csv", "auto", ["a"]))[0] == [{"a": b"1"}]
    assert [f.path for f in find("file://cl*.csv")] == [str(tmp_path / "clicks.csv")]


def test_brackets_in_a_name_are_taken_literally_first(tmp_path):
    url = write(tmp_path / "part[1].csv", "a\n1\n")
    assert len(find(url)) == 1


# ---- real files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data_format", "rows"),
    [("deepctr_criteo_200.csv", "csv", 200), ("deepctr_avazu_sample.txt", "csv", 100)],
)
def test_files_found_in_the_wild(name, data_format, rows):
    reader = open_rows(f"file://{shared_data('tiny_format_samples', name)}", data_format, None)
    found, bad = read(reader)
    assert len(found) == rows
    assert not bad
    assert "label" in reader.columns() or "click" in reader.columns()


def test_the_criteo_sample():
    reader = open_rows(f"file://{shared_data('criteo', 'data.tsv.gz')}", "criteo-tsv", ["label"])
    assert reader.count() == 161_646
