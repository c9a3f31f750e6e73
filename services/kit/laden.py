"""Messages with large arrays beside them, and how such a pair is one protobuf message on the wire.

protobuf for Python copies a bytes field when it is set, again when its message is serialized, and
as often on the other side. Here the array is put behind the serialized rest, once, as the field
that it is, and found in what has come without parsing it. What is on the wire is what protobuf
itself would write and read, but for the order of fields. Knows no message by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from google.protobuf.message import DecodeError, Message

_ALIGNED = 4  # bytes; arrays begin at multiples of it in a message, so that floats can be read
_LENGTHS = {1: 8, 5: 4}  # bytes of a value by wire type
_VARINT, _DELIMITED = 0, 2
_MORE = 0x80  # another byte of the varint follows

# Numbers of the fields that lead to an array: of the bytes field itself, or of a repeated message
# and the bytes field in it, one message for each array. Empty: there are no arrays.
Place = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Laden:
    """A message whose large arrays are beside it."""

    message: Message
    arrays: Sequence[memoryview]


@dataclasses.dataclass(frozen=True)
class Method:
    """A verb with arrays beside its request or its reply."""

    path: str  # as gRPC has it: /package.Service/Verb
    request: type[Message]
    takes: Place  # of the request's array
    reply: type[Message]
    gives: Place  # of the reply's arrays

    def read_request(self, data: bytes) -> Laden:
        """As `read`."""
        return read(data, self.request, self.takes)

    def write_request(self, request: Laden | Message) -> bytes:
        """As `write`."""
        return write(request, self.takes)

    def read_reply(self, data: bytes) -> Laden:
        """As `read`."""
        return read(data, self.reply, self.gives)

    def write_reply(self, reply: Laden | Message) -> bytes:
        """As `write`."""
        return write(reply, self.gives)


def write(given: Laden | Message, place: Place) -> bytes:
    """The bytes of the message with its arrays in their fields."""
    if isinstance(given, Message):
        return given.SerializeToString()
    parts: list[bytes | memoryview] = [given.message.SerializeToString()]
    size = len(parts[0])
    for array in given.arrays:
        head = _head(place, array.nbytes, size)
        parts += [head, array]
        size += len(head) + array.nbytes
    return b"".join(parts)


def read(data: bytes, kind: type[Message], place: Place) -> Laden:
    """The message without its arrays, which are views of `data`. A bytes field that is not there
    is an empty array. Raises DecodeError.
    """
    if not place:
        return Laden(kind.FromString(data), [])
    view, rest, arrays, kept = memoryview(data), [], [], 0
    for field in _fields(view, 0, len(view)):
        if field.number == place[0] and field.type == _DELIMITED:
            rest.append(view[kept : field.start])
            kept = field.end
            arrays.append(_inner(view, field, place[1:]))
    rest.append(view[kept:])
    if len(place) == 1:  # the last one counts, as in protobuf
        arrays = arrays[-1:] or [memoryview(b"")]
    return Laden(kind.FromString(b"".join(rest)), arrays)


class _Field(NamedTuple):
    """Where a field lies."""

    number: int
    type: int
    start: int  # of its tag
    begin: int  # of its value
    end: int


def _inner(view: memoryview, field: _Field, place: Place) -> memoryview:
    """The array in a field: its value, or that of the last field of this number in it."""
    found = view[field.begin : field.end]
    if place:
        found = memoryview(b"")
        for inner in _fields(view, field.begin, field.end):
            if inner.number == place[0] and inner.type == _DELIMITED:
                found = view[inner.begin : inner.end]
    return found


def _fields(view: memoryview, at: int, end: int) -> Iterator[_Field]:
    """The fields between `at` and `end`. Raises DecodeError where there is none."""
    while at < end:
        start = at
        tag, at = _read_varint(view, at, end)
        begin, kind = at, tag & 7
        if kind == _VARINT:
            _, at = _read_varint(view, at, end)
        elif kind == _DELIMITED:
            size, begin = _read_varint(view, at, end)
            at = begin + size
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            raise DecodeError(f"byte {start}: wire type {kind} is not supported")
        if at > end:
            raise DecodeError(f"byte {start}: the field ends at {at}, its message at {end}")
        yield _Field(tag >> 3, kind, start, begin, at)


def _read_varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = view[at]
        at += 1
        value |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return value, at
    raise DecodeError(f"byte {at}: a number does not end")


def _head(place: Place, size: int, at: int) -> bytes:
    """What stands before an array of `size` bytes whose fields begin at byte `at`. Its tag takes up
    to three bytes more than it needs, which every parser reads alike, so that the array is aligned.
    """
    for spare in range(_ALIGNED):
        head = _tag(place[-1], spare) + _varint(size)
        for number in reversed(place[:-1]):
            head = _tag(number) + _varint(len(head) + size) + head
        if (at + len(head)) % _ALIGNED == 0:
            break
    return head


def _tag(number: int, spare: int = 0) -> bytes:
    return _varint(number << 3 | _DELIMITED, spare)


def _varint(value: int, spare: int = 0) -> bytes:
    """`value` in as few bytes as it needs and `spare` more."""
    out = bytearray()
    while value >= _MORE:
        out.append(value & (_MORE - 1) | _MORE)
        value >>= 7
    out.append(value)
    for _ in range(spare):
        out[-1] |= _MORE
        out.append(0)
    return bytes(out)
