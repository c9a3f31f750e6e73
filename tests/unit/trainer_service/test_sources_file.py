"""The file source: every row exactly once, for any number of trainers, over any stop."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.manifest import PositionEntry
from services.api.spec import JobSpec, validate
from services.kit.errors import Damaged, InvalidInput, NotFound
from tests.data import shared_data
from trainer_service.batch import Batch
from trainer_service.sources import EndOfData, Source, open_holdout, open_training

Key = tuple[int, int]  # epoch, id of the row


def job(source: str, *, batch_size: int = 4, epochs: int = 1, **data) -> JobSpec:
    return validate(
        {
            "name": "t",
            "model": {"name": "lr"},
            "data": {"source": source, "format": "auto", **data},
            "features": {"label": "y", "sparse": {"id": {"encode": "id"}}},
            "training": {"batch_size": batch_size, "epochs": epochs},
        }
    )


def write_csv(path: Path, rows: int) -> str:
    path.write_text("y,id\n" + "".join(f"{i % 2},{i}\n" for i in range(rows)))
    return f"file://{path}"


def drain(source: Source, limit: int = 10**9) -> list[int]:
    """Row ids in the order they come, at most `limit` batches."""
    ids: list[int] = []
    try:
        for _ in range(limit):
            batch = source.next_batch(1.0)
            assert batch is not None
            assert batch.samples
            ids += batch.keys.tolist()
    except EndOfData:
        pass
    return ids


def take(source: Source, timeout: float = 0.0) -> Batch:
    batch = source.next_batch(timeout)
    assert batch is not None
    return batch


def holdout_of(spec: JobSpec) -> Source:
    holdout = open_holdout(spec)
    assert holdout is not None
    return holdout


def trainers(spec: JobSpec, count: int, resume=None) -> list[Source]:
    return [open_training(spec, rank=r, trainers=count, resume=resume) for r in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 241, 1000])
def test_the_union_of_all_trainers_is_every_row_once_per_epoch(tmp_path, count, rows):
    spec = job(write_csv(tmp_path / "a.csv", rows), epochs=2)
    shares = [drain(source) for source in trainers(spec, count)]
    assert sorted(i for share in shares for i in share) == sorted([*range(rows)] * 2)
    for share in shares:  # file order inside an epoch: the ids fall at most once
        assert sum(a > b for a, b in itertools.pairwise(share)) <= 1


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 500),
    st.sampled_from([1, 3, 4]),
    st.integers(1, 3),
    st.tuples(*[st.sampled_from([1, 2, 3, 5, 7])] * 3),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_resume_with_another_trainer_count_gives_exactly_the_rest(
    tmp_path_factory, rows, batch_size, epochs, counts, rng, parquet
):
    folder = tmp_path_factory.mktemp("resume")
    url = write_csv(folder / "a.csv", rows)
    if parquet:
        table = pa.table({"y": [0] * rows, "id": list(range(rows))})
        pq.write_table(table, folder / "a.parquet", row_group_size=37)
        url = f"file://{folder}/a.parquet"
    spec = job(url, batch_size=batch_size, epochs=epochs)
    positions: dict[str, PositionEntry] | None = None
    seen: list[int] = []
    for count in counts:
        sources = trainers(spec, count, positions)
        for source in sources:
            seen += drain(source, rng.randint(0, 60))
        positions = {p.partition: p for source in sources for p in source.positions()}
        assert len(positions) == 60
    for source in trainers(spec, 2, positions):
        seen += drain(source)
    assert sorted(seen) == sorted([*range(rows)] * epochs)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 400), st.sampled_from([1, 2, 3]), st.integers(0, 200), st.booleans())
def test_a_successor_hands_out_the_same_ranges(tmp_path_factory, rows, epochs, taken, counted):
    """Whether or not it knows how long the file is, and whatever rows are bad."""
    path = tmp_path_factory.mktemp("ranges") / "a.csv"
    lines = [f"{'?' if i % 5 == 3 else i % 2},{i}\n" for i in range(rows)]
    path.write_text("y,id\n" + "".join(lines))
    last = {"holdout": {"last": 0.1}} if counted else {}
    spec = job(f"file://{path}", batch_size=2, epochs=epochs, max_bad_rows=10**6, **last)

    def ranges(resume=None):
        source = open_training(spec, rank=0, trainers=2, resume=resume)
        found = []
        try:
            while True:
                found.append(take(source))
        except EndOfData:
            return found

    whole = ranges()
    ends: dict[str, PositionEntry] = {}
    for batch in whole:
        name = batch.next.partition
        lane = int(name[-2:])
        start = ends.get(name, PositionEntry(partition=name, major=0, minor=lane))
        assert batch.first == (start.major, start.minor), "ranges of a lane lie end to end"
        ends[name] = batch.next
    resume = {batch.next.partition: batch.next for batch in whole[:taken]}
    rest = [(b.rows, b.keys.tolist()) for b in ranges(resume)]
    assert rest == [(b.rows, b.keys.tolist()) for b in whole[taken:]]


def test_next_is_the_position_after_the_batch(tmp_path):
    spec = job(write_csv(tmp_path / "a.csv", 1000), batch_size=10, epochs=2)
    source = open_training(spec, rank=1, trainers=2)
    batches = [take(source) for _ in range(31)]
    assert [b.next.partition for b in batches[:2]] == ["lane-01", "lane-03"]
    first, later = batches[0].next, batches[30].next
    assert (first.major, first.minor, first.end) == (0, 61, 0)
    assert later.partition == "lane-01"
    assert later.minor == 121 or later.major == 1
    assert later in source.positions()


def test_a_finished_job_resumes_to_nothing(tmp_path):
    spec = job(write_csv(tmp_path / "a.csv", 30), epochs=2)
    source = open_training(spec, rank=0, trainers=1)
    seen = drain(source)
    assert len(seen) == 60
    positions = {p.partition: p for p in source.positions()}
    for count in (1, 3):
        assert all(drain(s) == [] for s in trainers(spec, count, positions))


def test_positions_of_another_source_are_refused(tmp_path):
    entry = PositionEntry(partition="clicks-0", major=7, minor=0)
    with pytest.raises(InvalidInput, match="'clicks-0' doesn't belong to this source"):
        open_training(
            job(write_csv(tmp_path / "a.csv", 3)), rank=0, trainers=1, resume={"clicks-0": entry}
        )


def test_more_trainers_than_lanes(tmp_path):
    spec = job(write_csv(tmp_path / "a.csv", 300), batch_size=1)
    shares = [drain(s) for s in trainers(spec, 64)]
    assert sorted(i for share in shares for i in share) == list(range(300))
    assert shares[63] == []


# ---- holdout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 10, 99, 1000])
@pytest.mark.parametrize("last", [0.1, 0.2, 0.5, 0.9])
def test_holdout_last_splits_without_overlap(tmp_path, rows, last):
    spec = job(write_csv(tmp_path / "a.csv", rows), holdout={"last": last}, epochs=2)
    train = [i for s in trainers(spec, 3) for i in drain(s)]
    holdout = holdout_of(spec)
    held = drain(holdout)
    border = round((1 - last) * rows - 0.4999999)  # floor, blind to rounding errors
    assert sorted(train) == sorted([*range(border)] * 2)
    assert held == list(range(border, rows))
    assert holdout.total_samples == rows - border


def test_holdout_of_its_own_file(tmp_path):
    spec = job(
        write_csv(tmp_path / "a.csv", 9), holdout={"source": write_csv(tmp_path / "b.csv", 5)}
    )
    assert drain(holdout_of(spec)) == list(range(5))
    assert len(drain(open_training(spec, rank=0, trainers=1))) == 9
    assert open_holdout(job(write_csv(tmp_path / "a.csv", 9))) is None


def test_total_samples_is_known_where_counting_is_done_anyway(tmp_path):
    url = write_csv(tmp_path / "a.csv", 10)
    assert (
        open_training(job(url, holdout={"last": 0.2}, epochs=3), rank=0, trainers=2).total_samples
        == 24
    )
    pq.write_table(pa.table({"y": [0] * 7, "id": [1] * 7}), tmp_path / "a.parquet")
    assert open_training(job(f"file://{tmp_path}/a.parquet"), rank=0, trainers=1).total_samples == 7
    text = open_training(job(url, epochs=2), rank=0, trainers=1)
    assert text.total_samples is None
    drain(text)
    assert text.total_samples == 20


# ---- bad rows ----------------------------------------------------------------------------------

# A wrong label, a line too long, a wrong id, a line too short; well are the ids 0, 3 and 6.
BAD = "y,id\n1,0\n7,1\n0,2,extra\n0,3\n1,x\n0\n1,6\n"


def test_bad_rows_are_counted_once_and_skipped(tmp_path, caplog):
    (tmp_path / "bad.csv").write_text(BAD)
    spec = job(f"file://{tmp_path}/bad.csv", max_bad_rows=4, epochs=3, batch_size=2)
    sources = trainers(spec, 3)
    with caplog.at_level("WARNING"):
        seen = [i for source in sources for i in drain(source)]
    assert sorted(seen) == sorted([0, 3, 6] * 3)
    assert sum(source.bad_rows for source in sources) == 4
    assert "3 fields instead of 2: 0,2,extra" in caplog.text
    assert "row 1 of file://" in caplog.text
    assert "the label, column 'y': '7' is not 0 or 1" in caplog.text


@pytest.mark.parametrize("limit", [0, 3])
def test_too_many_bad_rows_end_the_job_with_count_limit_and_sample(tmp_path, limit):
    (tmp_path / "bad.csv").write_text(BAD)
    source = open_training(
        job(f"file://{tmp_path}/bad.csv", max_bad_rows=limit), rank=0, trainers=1
    )
    message = rf"bad rows, data.max_bad_rows allows {limit}; the last one: .*bad\.csv"
    for _ in range(2):  # the failure stays: it must not look like the end of the data
        with pytest.raises(InvalidInput, match=message):
            drain(source)


def test_a_stripe_of_bad_rows_only_gives_no_batch(tmp_path):
    (tmp_path / "bad.csv").write_text("y,id\n9,0\n9,1\n1,2\n0,3\n")
    spec = job(f"file://{tmp_path}/bad.csv", max_bad_rows=2, batch_size=2)
    assert drain(open_training(spec, rank=0, trainers=1)) == [2, 3]


def test_missing_files_and_columns_are_named_at_once(tmp_path):
    with pytest.raises(NotFound, match=r"gone\.csv"):
        open_training(job(f"file://{tmp_path}/gone.csv"), rank=0, trainers=1)
    (tmp_path / "a.csv").write_text("y,uid\n1,2\n")
    with pytest.raises(InvalidInput, match="feature 'id' needs column 'id'; the data has: y, uid"):
        open_training(job(f"file://{tmp_path}/a.csv"), rank=0, trainers=1)


def test_a_gzip_that_breaks_off_gives_its_first_rows_and_then_the_error(tmp_path):
    rng = random.Random(7)
    body = "y,id\n" + "".join(f"{i % 2},{rng.getrandbits(40)}\n" for i in range(400_000))
    packed = gzip.compress(body.encode(), 1)
    (tmp_path / "a.csv.gz").write_bytes(packed[: len(packed) * 9 // 10])
    source = open_training(job(f"file://{tmp_path}/a.csv.gz", batch_size=1000), rank=0, trainers=1)
    assert take(source).samples == 1000
    for _ in range(2):
        with pytest.raises(Damaged, match=r"a\.csv\.gz is damaged"):
            drain(source)


def test_close_ends_the_source_and_may_be_repeated(tmp_path):
    source = open_training(job(write_csv(tmp_path / "a.csv", 100)), rank=0, trainers=1)
    source.next_batch(0)
    source.close()
    source.close()
    assert source.lag() is None


def test_the_criteo_sample():
    spec = validate(
        {
            "name": "criteo",
            "model": {"name": "lr"},
            "data": {
                "source": f"file://{shared_data('criteo', 'data.tsv.gz')}",
                "format": "criteo-tsv",
            },
            "features": {"dense": {"I1..I13": {"log": True}}, "sparse": {"C1..C26": {}}},
            "training": {"batch_size": 4096},
        }
    )
    source = open_training(spec, rank=0, trainers=1)
    rows = clicks = 0
    with pytest.raises(EndOfData):
        while True:
            batch = take(source)
            rows += batch.samples
            clicks += int(batch.labels.sum())
    assert rows == source.total_samples == 161_646
    assert round(clicks / rows, 3) == 0.257
    assert source.bad_rows == 0
