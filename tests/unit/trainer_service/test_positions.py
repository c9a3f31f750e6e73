"""Positions: what a checkpoint records and how it comes back."""

from __future__ import annotations

from services.api.manifest import Manifest, PositionEntry
from trainer_service.positions import Positions, from_manifest


def entry(partition: str, major: int, minor: int = 0, end: int = 0) -> PositionEntry:
    return PositionEntry(partition=partition, major=major, minor=minor, end=end)


def test_untouched_partitions_keep_their_start() -> None:
    positions = Positions([entry("clicks-1", 7, end=90), entry("clicks-0", 3, end=50)])
    positions.advance(entry("clicks-1", 9, 2, end=90))
    positions.advance(entry("clicks-1", 12, end=90))
    assert positions.entries() == (entry("clicks-0", 3, end=50), entry("clicks-1", 12, end=90))


def test_it_is_settled_when_every_place_that_some_server_had_reached_is_passed() -> None:
    start = [entry("clicks-0", 3), entry("clicks-1", 7)]
    assert Positions(start).settled
    positions = Positions(start, ahead={"clicks-1": (9, 2)})
    for place, settled in ((entry("clicks-0", 50), False), (entry("clicks-1", 9, 1), False)):
        positions.advance(place)
        assert positions.settled == settled
    positions.advance(entry("clicks-1", 9, 2))
    assert positions.settled


def test_entries_are_a_copy() -> None:
    positions = Positions([entry("lane-00", 0)])
    before = positions.entries()
    positions.advance(entry("lane-00", 0, 60))
    assert before == (entry("lane-00", 0),)


def test_a_manifest_gives_them_back_by_partition() -> None:
    recorded = (entry("lane-00", 1, 60), entry("lane-01", 0, 121))
    manifest = Manifest(
        job="j",
        id="000001",
        generation=1,
        step=5,
        samples=10,
        created=0.0,
        partitions=8,
        spec={},
        sparse=(),
        dense=(),
        positions=recorded,
    )
    assert Positions(from_manifest(manifest).values()).entries() == recorded
