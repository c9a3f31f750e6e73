"""Laden messages on the wire are protobuf's: what one writes the other reads."""

from __future__ import annotations

import contextlib
import random

import pytest
from google.protobuf.message import DecodeError, Message

from services.kit import laden
from services.kit.laden import Laden, Place
from services.wire import ps_pb2

SIZES = [0, 1, 3, 4, 127, 128, 16_383, 16_384, 300_000]
CALLER = ps_pb2.Caller(generation=3, epoch=2**63, rank=7, step=300, incarnation=1)


def push(number: int) -> ps_pb2.SparsePushRequest:
    """A request whose parts have sizes of all kinds."""
    rng = random.Random(number)
    pull = ps_pb2.SparsePullRequest(caller=CALLER, counts=[1, 2], keys=rng.randbytes(number * 7))
    return ps_pb2.SparsePushRequest(
        caller=CALLER,
        counts=[rng.randrange(2**32) for _ in range(number)],
        keys=rng.randbytes(number * 3),
        shows=rng.randbytes(number),
        range=ps_pb2.BatchRange(partition="p" * number, last_major=-number),
        then=[pull] * (number % 3),
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("number", range(5))
def test_a_bytes_field_is_read_by_either_side(number: int, size: int) -> None:
    data = random.Random(size).randbytes(size)
    message = push(number)
    whole = ps_pb2.SparsePushRequest()
    whole.CopyFrom(message)
    whole.grads = data
    written = laden.write(Laden(message, [memoryview(data)]), (5,))
    assert ps_pb2.SparsePushRequest.FromString(written) == whole
    assert (len(written) - size) % 4 == 0, "floats can be read there"
    for wire in (written, whole.SerializeToString(), laden.write(whole, (5,))):
        found = laden.read(wire, ps_pb2.SparsePushRequest, (5,))
        assert found.message == message
        assert [bytes(a) for a in found.arrays] == [data]


@pytest.mark.parametrize("sizes", [[], [0], [5, 0, 300_000], [127, 128, 16_380]])
def test_arrays_in_repeated_messages_are_read_by_either_side(sizes: list[int]) -> None:
    arrays = [random.Random(size).randbytes(size) for size in sizes]
    message = ps_pb2.SparsePushReply(applied=300, missing=1)
    then = [ps_pb2.SparsePullReply(values=a) for a in arrays]
    whole = ps_pb2.SparsePushReply(applied=300, missing=1, then=then)
    written = laden.write(Laden(message, [memoryview(a) for a in arrays]), (40, 1))
    assert ps_pb2.SparsePushReply.FromString(written) == whole
    for wire in (written, whole.SerializeToString()):
        found = laden.read(wire, ps_pb2.SparsePushReply, (40, 1))
        assert found.message == message
        assert [bytes(a) for a in found.arrays] == arrays


def test_the_last_of_repeated_fields_counts_and_unknown_ones_pass() -> None:
    first, last = (ps_pb2.DensePushRequest(grads=g, samples=9) for g in (b"abc", b"de"))
    other = ps_pb2.DenseMergeRequest(roots=ps_pb2.Halves(exponent=-3), leaving=True)  # 6 and 9
    wire = b"".join(m.SerializeToString() for m in (first, other, last))
    found = laden.read(wire, ps_pb2.DensePushRequest, (3,))
    reference = ps_pb2.DensePushRequest.FromString(wire)
    assert bytes(found.arrays[0]) == reference.grads == b"de"
    reference.ClearField("grads")
    assert found.message == reference


@pytest.mark.parametrize(
    "wire",
    [b"\x1a", b"\x1a\x05abc", b"\xff" * 11, b"\x1b", b"\x09abc", b"\x1a\xff\xff\xff\xff\x7f"],
    ids=["no length", "too short", "endless number", "group", "cut fixed64", "too long"],
)
def test_what_is_no_message_is_refused(wire: bytes) -> None:
    for place in ((3,), (3, 1), ()):
        with pytest.raises(DecodeError):
            laden.read(wire, ps_pb2.DensePushRequest, place)


@pytest.mark.parametrize(
    ("kind", "place"),
    [(ps_pb2.SparsePushRequest, (5,)), (ps_pb2.SparsePushReply, (40, 1))],
)
def test_random_bytes_are_read_or_refused(kind: type[Message], place: Place) -> None:
    rng, read = random.Random(3), 0
    whole = laden.write(push(4), ())
    for _ in range(2_000):
        wire = bytearray(whole if rng.random() < 0.5 else rng.randbytes(rng.randrange(40)))
        for _ in range(rng.randrange(4)):
            if wire:
                wire[rng.randrange(len(wire))] = rng.randrange(256)
        with contextlib.suppress(DecodeError):  # nothing else
            found = laden.read(bytes(wire), kind, place)
            read += 1
            assert laden.read(laden.write(found, place), kind, place) == found
    assert 100 < read < 2_000
