"""The table of applied ranges against a model that remembers every single row."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service.ranges import BatchRange, position_from_proto
from ps_service.server.barrier import Fenced
from ps_service.server.ranges import RangeTable, check_stored, stored_form
from services.api.manifest import PositionEntry
from services.kit.errors import Conflict, Damaged, InvalidInput
from services.wire import ps_pb2


def entry(partition: str, major: int, minor: int = 0, end: int = 0) -> PositionEntry:
    return PositionEntry(partition=partition, major=major, minor=minor, end=end)


def rows(first: int, last: int, partition: str = "p") -> BatchRange:
    return BatchRange(partition, (first, 0), (last, 0))


class Table:
    """A RangeTable that counts how often each row of partition p was applied."""

    def __init__(self, *restored: PositionEntry) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        outcomes = prometheus_client.Counter("ranges", "-", ["outcome"], registry=self.registry)
        self.table = RangeTable(outcomes, restored)
        self.applied: Counter[int] = Counter()

    def push(self, first: int, last: int, incarnation: int = 0) -> bool | None:
        def count() -> bool:
            self.applied.update(range(first, last))
            return True

        return self.table.apply(rows(first, last), incarnation, last - first, count)

    def outcome(self, name: str) -> float:
        return self.registry.get_sample_value("ranges_total", {"outcome": name}) or 0.0


@given(
    cuts=st.sets(st.integers(1, 60), min_size=1),
    order=st.lists(st.integers(0, 59), max_size=80),
)
def test_whatever_is_sent_again_every_row_is_applied_once_and_in_order(
    cuts: set[int], order: list[int]
) -> None:
    """Ranges between `cuts` are sent in any order, `order` naming them; none but the next one and
    those before it is taken.
    """
    table = Table(entry("p", 0))
    edges = [0, *sorted(cuts)]
    ranges = list(itertools.pairwise(edges))
    reached = 0
    for turn in order:
        first, last = ranges[turn % len(ranges)]
        if first > reached:
            with pytest.raises(Conflict, match="leaves out rows"):
                table.push(first, last)
        else:
            assert (table.push(first, last) is not None) == (first == reached)
            reached = max(reached, last)
    assert table.applied == Counter(range(reached))
    (position,) = table.table.positions()
    assert (position.major, position.minor) == (reached, 0)


@given(first=st.integers(0, 19), last=st.integers(21, 40))
def test_a_range_that_is_applied_in_part_is_refused(first: int, last: int) -> None:
    table = Table(entry("p", 20))
    with pytest.raises(Conflict, match="is applied in part"):
        table.push(first, last)
    assert not table.applied


def test_places_are_compared_in_lexicographic_order() -> None:
    table = Table(entry("p", 3, 40))
    edges = [((2, 90), (3, 10)), ((3, 40), (4, 0)), ((4, 0), (4, 16)), ((3, 40), (4, 0))]
    batches = [BatchRange("p", first, last) for first, last in edges]
    taken = [table.table.apply(batch, 0, 1, lambda: True) for batch in batches]
    assert taken == [None, True, True, None]
    assert (table.outcome("applied"), table.outcome("duplicate")) == (2, 2)


def test_a_range_counts_only_when_it_was_applied() -> None:
    table = Table(entry("p", 0))
    with pytest.raises(ZeroDivisionError):
        table.table.apply(rows(0, 5), 0, 5, lambda: 1 // 0)
    assert table.push(0, 5) and table.applied == Counter(range(5))


def test_a_claim_answers_how_far_the_rows_are_and_fences_who_had_them_before() -> None:
    table = Table()
    (first,) = table.table.claim([entry("p", 7, end=100)], incarnation=0)
    assert (position_from_proto(first.next), first.samples) == (entry("p", 7, end=100), 0)
    table.push(7, 19)
    (second,) = table.table.claim([entry("p", 0, end=300)], incarnation=2)
    assert (position_from_proto(second.next), second.samples) == (entry("p", 19, end=100), 12)
    for late in (rows(7, 19), rows(19, 30)):
        with pytest.raises(Fenced, match="belongs to incarnation 2, 1 calls"):
            table.table.apply(late, 1, 1, lambda: True)
        with pytest.raises(Fenced):
            table.table.check(late, 1)
    with pytest.raises(Fenced):
        table.table.claim([entry("p", 0)], incarnation=1)
    assert table.push(19, 30, incarnation=2)


def test_a_claim_waits_for_the_range_that_is_being_applied() -> None:
    table, applying, go_on = Table(entry("p", 0)), threading.Event(), threading.Event()

    def slow() -> bool:
        applying.set()
        return go_on.wait(5)

    with ThreadPoolExecutor(2) as pool:
        push = pool.submit(table.table.apply, rows(0, 4), 0, 4, slow)
        assert applying.wait(5)
        claim = pool.submit(table.table.claim, [entry("p", 0)], 1)
        assert not claim.done()
        go_on.set()
        assert push.result(5)
        assert claim.result(5)[0].next.major == 4


def test_the_table_has_one_entry_per_partition_however_much_is_applied() -> None:
    table = Table(entry("q", 3))
    for first in range(500):
        table.push(first, first + 1)
    assert table.table.positions() == [entry("p", 500), entry("q", 3)]


def test_a_file_whose_table_differs_from_its_manifest_is_damaged() -> None:
    positions = [entry("p", 5, 2), entry("q", 1)]
    stored = stored_form(positions)
    check_stored("f.emb", stored, positions)
    check_stored("f.emb", (), positions)  # of a version that recorded none
    with pytest.raises(Damaged, match=r"f\.emb holds p up to \(5, 2\), its manifest"):
        check_stored("f.emb", stored, [entry("p", 5, 3), entry("q", 1)])
    with pytest.raises(Damaged, match="holds q"):
        check_stored("f.emb", stored, positions[:1])


@pytest.mark.parametrize(
    "message",
    [
        ps_pb2.BatchRange(first_major=1, last_major=2),
        ps_pb2.BatchRange(partition="p", first_major=2, last_major=2),
        ps_pb2.BatchRange(partition="p", first_major=2, last_major=1, last_minor=9),
    ],
)
def test_a_range_that_is_none_is_refused(message: ps_pb2.BatchRange) -> None:
    with pytest.raises(InvalidInput, match="range of partition"):
        BatchRange.from_proto(message)
