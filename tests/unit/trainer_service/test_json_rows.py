"""The native way of flat JSON messages against the json module, which says what a message is."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_service import _native
from trainer_service.decode_message import BadMessage, JsonDecoder

COLUMNS = ["a", "b", "ä"]
FLAT = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
)
ROWS = st.fixed_dictionaries(dict.fromkeys(COLUMNS, FLAT), optional={"other": FLAT, "": FLAT})


def text(value: object) -> str | None:
    """What docs/formats.md says of a value."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def joined(decoder: JsonDecoder, messages: list[bytes]) -> pa.RecordBatch:
    return decoder.join([(decoder.parse(m), 0, 1) for m in messages])


@given(st.lists(ROWS, min_size=1, max_size=12), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_rows_are_the_texts_of_their_values(rows, ascii_only, indent) -> None:
    messages = [json.dumps(r, ensure_ascii=ascii_only, indent=indent).encode() for r in rows]
    batch = joined(JsonDecoder(COLUMNS), messages)
    batch.validate(full=True)
    assert batch.to_pylist() == [{c: text(row[c]) for c in COLUMNS} for row in rows]
    reader = _native.JsonRowReader(COLUMNS)
    for row, message in zip(rows, messages, strict=True):
        minus_zero = any(
            v == 0 and math.copysign(1, v) < 0 for v in row.values() if isinstance(v, float)
        )
        assert (reader.pack(message) is None) == minus_zero, "the native way is for all flat rows"


@given(st.data())
def test_any_bytes_are_what_the_json_module_says(data) -> None:
    """Damaged messages: the same texts, or the same refusal, with and without the native way."""
    message = bytearray(json.dumps(data.draw(ROWS), ensure_ascii=data.draw(st.booleans())).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(message) - 1))
        message[at] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from(b'"\\{}[]:,0-.eE+u '))
        )
    damaged = bytes(message[: data.draw(st.integers(0, len(message)))])
    decoder = JsonDecoder(COLUMNS)
    packed = _native.JsonRowReader(COLUMNS).pack(damaged)
    if packed is None:
        return  # the json module reads it
    values = decoder._values(damaged)
    assert joined(decoder, [damaged]).to_pylist() == [dict(zip(COLUMNS, values, strict=True))]


@pytest.mark.parametrize(
    "message",
    [
        b'{"a": [1], "b": 2, "\xc3\xa4": 3}',
        b'{"a": {}, "b": 2, "\xc3\xa4": 3}',
        b'{"a": NaN, "b": 2, "\xc3\xa4": 3}',
        b'{"a": 1e999, "b": 2, "\xc3\xa4": 3}',
        b'{"a": "\\ud800", "b": 2, "\xc3\xa4": 3}',
        b'{"a": "\\ud800\\u0041", "b": 2, "\xc3\xa4": 3}',
        b'{"a": 1, "b": 2}',
        b'{"a": 01, "b": 2, "\xc3\xa4": 3}',
        b'{"a": 1., "b": 2, "\xc3\xa4": 3}',
        b'{"a": "\x01", "b": 2, "\xc3\xa4": 3}',
        b'{"a": 1, "b": 2, "\xc3\xa4": 3,}',
        b'{"a": 1, "b": 2, "\xc3\xa4": 3} x',
        b'{"a": "\xed\xa0\x80", "b": 2, "\xc3\xa4": 3}',
        b'{"a": "\xc0\x80", "b": 2, "\xc3\xa4": 3}',
        b"{}",
        b"",
    ],
)
def test_what_is_not_common_is_left_to_the_json_module(message: bytes) -> None:
    assert _native.JsonRowReader(COLUMNS).pack(message) is None


def test_a_column_given_twice_has_its_last_value_and_batches_may_mix_both_ways() -> None:
    decoder = JsonDecoder(["a"])
    messages = [b'{"a": 1, "a": "x"}', b'{"a": ["p", 2]}', b'{"a": null}', b'{"a": 2.50}']
    values = [row["a"] for row in joined(decoder, messages).to_pylist()]
    assert values == [[b"x"], [b"p", b"2"], [None], [b"2.5"]]
    flat = [messages[0], b'{"a": -0.0}', messages[2]]
    assert [row["a"] for row in joined(decoder, flat).to_pylist()] == ["x", "-0", None]
    with pytest.raises(BadMessage, match="not JSON"):
        decoder.parse(b'{"a": "x')


def test_unpack_refuses_what_pack_did_not_make() -> None:
    reader = _native.JsonRowReader(["a"])
    for row in (b"", b"\x01\x00\x00\x00", b"\x00\x00\x00\x00x"):
        with pytest.raises(ValueError, match="rows: not packed rows"):
            reader.unpack([row])
