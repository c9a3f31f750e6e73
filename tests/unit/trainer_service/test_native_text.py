"""The trainer's native functions against plain Python."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.xxh64 import xxh64
from trainer_service import _native

TEXTS = st.lists(st.binary(max_size=80), max_size=20)


def layout(texts: list[bytes], offset=np.int32) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, texts)]).astype(offset)
    return offsets, np.frombuffer(b"".join(texts), np.uint8)


def test_reference_meets_the_published_vectors():
    state, buffer = 2654435761, bytearray()
    for _ in range(222):
        buffer.append(state >> 56)
        state = state * 11400714785074694797 % 2**64
    data = bytes(buffer)
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(data[:1], 2654435761) == 0x5014607643A9B4C3
    assert xxh64(data[:14]) == 0x8282DCC4994E35C8
    assert xxh64(data) == 0xB641AE8CB691C174


@given(TEXTS, st.integers(0, 2**64 - 1), st.sampled_from([np.int32, np.int64]))
def test_hash_strings_is_xxh64(texts, seed, offset):
    hashes = _native.hash_strings(*layout(texts, offset), seed=seed)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [xxh64(text, seed) for text in texts]


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 3), max_size=10))
def test_hash_combine_hashes_the_bytes_in_order(rows):
    columns = [np.array([row[i] for row in rows], np.uint64) for i in range(3)]
    expected = [xxh64(b"".join(v.to_bytes(8, "little") for v in row)) for row in rows]
    assert _native.hash_combine(columns).tolist() == expected


@given(st.lists(st.floats(allow_infinity=False), max_size=20))
def test_float_text_reads_back_and_is_repr(values):
    offsets, data = _native.float_text(np.array(values, np.float64))
    texts = [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)]
    expected = ["" if math.isnan(v) else repr(v + 0.0).removesuffix(".0") for v in values]
    assert texts == ["0" if text == "-0" else text for text in expected]
    back, _ = _native.parse_floats(offsets, data)
    np.testing.assert_array_equal(back, values)


@given(st.lists(st.floats(width=32, allow_infinity=False, allow_nan=False), max_size=20))
def test_float_text_of_float32_is_short(values):
    array = np.array(values, np.float32)
    offsets, data = _native.float_text(array)
    texts = [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)]
    np.testing.assert_array_equal(np.array(texts or [], np.float32), array)
    for text, value in zip(texts, array, strict=True):
        if 1e-4 <= abs(value) < 2**24:
            plain = np.format_float_positional(value, unique=True, trim="-")
            assert text == plain


@given(st.lists(st.integers(-(2**63), 2**64 - 1), max_size=20))
def test_parse_ints_keeps_all_64_bits(values):
    keys, codes = _native.parse_ints(*layout([str(v).encode() for v in values]))
    assert keys.tolist() == [v % 2**64 for v in values]
    assert not codes.any()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 1),
        (" ", 1),
        ("nan", 1),
        ("x", 2),
        ("1_0", 2),
        ("inf", 2),
        ("1e999", 2),
        ("+1.5", 0),
        ("1e-999", 0),
    ],
)
def test_parse_floats_codes(text, code):
    values, codes = _native.parse_floats(*layout([text.encode()]))
    assert codes.tolist() == [code]
    assert np.isnan(values[0]) == (code != 0)


@given(st.lists(st.text("ab|é", max_size=8), max_size=10), st.sampled_from(["|", "é"]))
def test_split_drops_empty_tokens(texts, separator):
    rows, offsets, data = _native.split(*layout([t.encode() for t in texts]), separator.encode())
    tokens = [bytes(data[a:b]).decode() for a, b in itertools.pairwise(offsets)]
    got = [tokens[a:b] for a, b in itertools.pairwise(rows)]
    assert got == [[token for token in text.split(separator) if token] for text in texts]


def test_a_slice_of_offsets_need_not_start_at_zero():
    hashes = _native.hash_strings(np.array([2, 3], np.int32), np.frombuffer(b"xxa", np.uint8))
    assert hashes.tolist() == [xxh64(b"a")]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([], "n \\+ 1"),
        ([0, 3, 2], "never fall"),
        ([-1, 2], "never fall"),
        ([0, 9], "end at 9, data has 4"),
    ],
)
def test_offsets_outside_the_data_are_refused(offsets, message):
    with pytest.raises(ValueError, match=message):
        _native.hash_strings(np.array(offsets, np.int32), np.zeros(4, np.uint8))


def test_wrong_arguments_are_refused():
    offsets, data = layout([b"a"])
    with pytest.raises(ValueError, match="separator"):
        _native.split(offsets, data, b"")
    with pytest.raises(ValueError, match="at least one"):
        _native.hash_combine([])
    with pytest.raises(ValueError, match="lengths 1 and 2 differ"):
        _native.hash_combine([np.zeros(1, np.uint64), np.zeros(2, np.uint64)])
    with pytest.raises(TypeError):
        _native.hash_strings(offsets.astype(np.float32), data)  # type: ignore[arg-type]
