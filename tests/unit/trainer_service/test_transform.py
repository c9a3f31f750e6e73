"""Transform against a slow reference, and that the type of a column doesn't change its keys."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.features import Features
from services.kit.errors import InvalidInput
from tests.xxh64 import xxh64
from trainer_service.transform import MISSING_KEY, Transform


def features(dense=None, sparse=None) -> Features:
    return Features.model_validate({"label": "y", "dense": dense or {}, "sparse": sparse or {}})


def batch(**columns) -> pa.RecordBatch:
    arrays = [v if isinstance(v, pa.Array) else pa.array(v) for v in columns.values()]
    if "y" not in columns:
        columns = {"y": None, **columns}
        arrays = [pa.array([0] * len(arrays[0])), *arrays]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def bags(rows, feature_count: int) -> list[list[list[int]]]:
    """[feature][sample] -> keys."""
    n = len(rows.labels)
    cuts = rows.offsets
    assert len(cuts) == feature_count * n + 1
    assert cuts[0] == 0
    assert cuts[-1] == len(rows.keys)
    flat = [rows.keys[a:b].tolist() for a, b in itertools.pairwise(cuts)]
    return [flat[f * n : (f + 1) * n] for f in range(feature_count)]


def keys_of(column, **spec) -> list[list[int]]:
    return bags(Transform(features(sparse={"c": spec})).apply(batch(c=column)), 1)[0]


def h(text: str) -> int:
    return xxh64(text.encode())


# ---- columns that are taken as they are --------------------------------------------------------

FLOATS = st.one_of(st.none(), st.floats(width=32), st.floats(-3, 3, width=32))
IDS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))


def same_columns(xs, zs, ids, *, whole: bool) -> pa.RecordBatch:
    """The values as the types that are taken as they are, or as texts of them."""
    floats, integers = (pa.float32(), pa.int64()) if whole else (pa.string(), pa.string())
    a, b = (pa.array(each, pa.int64()).cast(integers) for each in zip(*ids, strict=True))
    x, z = (pa.array(each, pa.float32()).cast(floats) for each in (xs, zs))
    return batch(x=x, z=z, a=a, b=b)


@given(st.lists(st.tuples(FLOATS, FLOATS, st.tuples(IDS, IDS)), min_size=1, max_size=20))
def test_what_is_taken_as_it_is_gives_what_its_text_gives(rows) -> None:
    """Missing values, infinities and NaN among them."""
    dense = {"x": {"missing": 1.5}, "z": {}}
    transform = Transform(features(dense, {"a": {"encode": "id"}, "b": {"encode": "id"}}))
    parts = list(zip(*rows, strict=True))
    whole, text = (transform.apply(same_columns(*parts, whole=w)) for w in (True, False))
    np.testing.assert_array_equal(whole.dense, text.dense)
    np.testing.assert_array_equal(whole.labels, text.labels)
    np.testing.assert_array_equal(whole.good, text.good)
    assert bags(whole, 2) == bags(text, 2)
    assert [row for row, _ in whole.reasons] == [row for row, _ in text.reasons]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_ids_of_sliced_columns_are_those_of_the_slice(kind) -> None:
    rows = batch(a=pa.array([1, 2, 3, 4], kind), b=pa.array([5, 6, 7, 8], kind)).slice(1, 2)
    sparse = {"a": {"encode": "id"}, "b": {"encode": "id"}}
    assert bags(Transform(features(sparse=sparse)).apply(rows), 2) == [[[2], [3]], [[6], [7]]]


def test_no_rows_are_no_rows() -> None:
    rows = batch(a=pa.array([1], pa.int64()), x=pa.array([1], pa.float32())).slice(1)
    done = Transform(features({"x": {}}, {"a": {"encode": "id"}})).apply(rows)
    assert done.dense.shape == (0, 1)
    assert done.offsets.tolist() == [0]


# ---- a slow reference --------------------------------------------------------------------------

VALUES = st.one_of(
    st.sampled_from(["", "a", "7", "-1", "x|y", "||", "x||7"]), st.text("ab1|", max_size=6)
)


def reference(feature, row: dict[str, str]) -> list[int]:
    if feature.cross:
        texts = [row[c] for c in feature.cross]
        if feature.missing == "skip" and not all(texts):
            return []
        return [xxh64(b"".join(h(t).to_bytes(8, "little") for t in texts))]
    text = row[feature.column]
    tokens = (
        [t for t in text.split(feature.separator) if t]
        if feature.separator
        else [text] * bool(text)
    )
    if not tokens:
        return [MISSING_KEY] if feature.missing == "own" else []
    return [h(t) for t in tokens]


SPECS = {
    "plain": {"column": "c1"},
    "skip": {"column": "c1", "missing": "skip"},
    "many": {"column": "c2", "separator": "|"},
    "many_skip": {"column": "c2", "separator": "|", "missing": "skip"},
    "cross": {"cross": ["c1", "c2"]},
    "cross_skip": {"cross": ["c2", "c1"], "missing": "skip"},
}


@given(
    st.lists(st.tuples(VALUES, VALUES, st.sampled_from("01")), max_size=12),
    st.lists(st.sampled_from(sorted(SPECS)), min_size=1, unique=True),
    st.sampled_from(
        [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    ),
    st.integers(0, 3),
)
def test_keys_equal_the_reference(rows, names, kind, cut):
    spec = features(sparse={name: SPECS[name] for name in names})
    c1, c2, y = ([row[i] for row in rows] for i in range(3))
    data = batch(y=pa.array(y, pa.string()), c1=pa.array(c1).cast(kind), c2=pa.array(c2).cast(kind))
    got = Transform(spec).apply(data.slice(cut))  # slices must read their own window
    expected = [
        [reference(spec.sparse[name], {"c1": a, "c2": b}) for a, b, _ in rows[cut:]]
        for name in names
    ]
    assert bags(got, len(names)) == expected
    assert got.labels.tolist() == [float(v) for v in y[cut:]]
    assert got.keys.dtype == np.uint64
    assert got.offsets.dtype == np.int32


# ---- one value, one key ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["3", "-12", None]),
        pa.array([b"3", b"-12", b""]),
        pa.array([3, -12, None], pa.int8()),
        pa.array([3, -12, None], pa.int64()),
        pa.array([3.0, -12.0, None], pa.float64()),
        pa.array([3.0, -12.0, math.nan], pa.float32()),
        pa.array(["3", "-12", None]).dictionary_encode(),
        pa.array([3, -12, None], pa.decimal128(5, 0)),
    ],
    ids=lambda column: str(column.type),
)
def test_every_type_gives_the_same_keys(column):
    assert keys_of(column) == [[h("3")], [h("-12")], [MISSING_KEY]]
    assert keys_of(column, encode="id") == [[3], [2**64 - 12], [MISSING_KEY]]
    assert keys_of(column, missing="skip") == [[h("3")], [h("-12")], []]
    assert keys_of(column, bucketize=[-12, 0, 3]) == [[3], [1], [4]]
    assert keys_of(column, bucketize=[0], missing="skip") == [[1], [0], []]


def test_fractions_and_booleans_have_a_text():
    assert keys_of(pa.array([0.1, 1e-5], pa.float64())) == [[h("0.1")], [h("1e-05")]]
    assert keys_of(pa.array([0.1], pa.float32())) == [[h("0.1")]]
    assert keys_of(pa.array([True, False, None])) == [[h("true")], [h("false")], [MISSING_KEY]]


def test_a_column_of_nulls_is_missing_everywhere():
    assert keys_of(pa.nulls(2)) == [[MISSING_KEY]] * 2
    assert keys_of(pa.nulls(2), missing="skip") == [[], []]


def test_float32_meets_a_boundary_as_its_text_does():
    assert keys_of(pa.array([0.7], pa.float32()), bucketize=[0.7]) == [[1]]
    assert keys_of(pa.array(["0.7"]), bucketize=[0.7]) == [[1]]


def test_large_numbers_keep_their_bucket():
    assert keys_of(pa.array([20240101, 20240102]), bucketize=[20240101.5]) == [[0], [1]]


def test_lists_are_like_separated_texts():
    lists = pa.array([["a", "b"], [], None, [None, "c", ""]])
    text = pa.array(["a|b", "", None, "|c|"])
    for missing in ("own", "skip"):
        assert keys_of(lists, missing=missing) == keys_of(text, missing=missing, separator="|")
    assert keys_of(pa.array([[1, 2], [3]]), encode="id") == [[1, 2], [3]]


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.none()), max_size=10))
def test_ids_of_ints_and_texts_agree(values):
    texts = pa.array([None if v is None else str(v) for v in values], pa.string())
    expected = [[MISSING_KEY if v is None else v % 2**64] for v in values]
    assert keys_of(pa.array(values, pa.int64()), encode="id") == expected
    assert keys_of(texts, encode="id") == expected


def test_every_64_bit_id_is_legal():
    assert keys_of(pa.array([0, 2**64 - 1], pa.uint64()), encode="id") == [[0], [2**64 - 1]]
    assert keys_of(pa.array(["-9223372036854775808"]), encode="id") == [[2**63]]


# ---- dense -------------------------------------------------------------------------------------


def test_dense_applies_missing_clip_log_in_this_order():
    spec = features(
        dense={"x": {"missing": 50, "clip": [-10, 10], "log": True}, "z": {"missing": -1}}
    )
    rows = Transform(spec).apply(batch(x=["", "3", "-20"], z=[None, 2.5, 7.0]))
    expected = [[math.log(11), -1], [math.log(4), 2.5], [-math.log(11), 7]]
    np.testing.assert_allclose(rows.dense, expected, rtol=1e-6)
    assert rows.dense.dtype == np.float32


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, -3], pa.int32()),
        pa.array([1, None, -3], pa.float64()),
        pa.array([1, math.nan, -3], pa.float32()),
        pa.array(["1", "", " -3 "]),
        pa.array(["+1", "NaN", "-3.0"]),
        pa.array([1, None, -3], pa.decimal128(4, 1)),
    ],
    ids=lambda column: str(column.type),
)
def test_dense_takes_every_type(column):
    rows = Transform(features(dense={"x": {"missing": 9}})).apply(batch(x=column))
    assert rows.dense.tolist() == [[1], [9], [-3]]


# ---- bad rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels", [["1", "2", "0"], [1, -1, 0], [1.0, 0.5, 0.0], ["1", "", "0"], [1, None, 0]]
)
def test_a_label_that_is_not_0_or_1_makes_a_bad_row(labels):
    spec = features(dense={"x": {}}, sparse={"c": {"separator": "|"}})
    data = batch(y=labels, x=[1, 2, 3], c=["a", "b|c", ""])
    rows = Transform(spec).apply(data)
    assert rows.good.tolist() == [True, False, True]
    assert rows.labels.tolist() == [1, 0]
    assert rows.dense.tolist() == [[1], [3]]
    assert bags(rows, 1) == [[[h("a")], [MISSING_KEY]]]
    ((index, reason),) = rows.reasons
    assert index == 1
    assert reason.startswith("the label, column 'y': ")
    assert reason.endswith("is not 0 or 1")


@pytest.mark.parametrize(
    ("dense", "sparse", "value", "complaint"),
    [
        ({"x": {}}, {}, "abc", "feature 'x', column 'x': 'abc' is not a number"),
        ({"x": {}}, {}, "inf", "is not a number"),
        ({"x": {}}, {}, "1e39", "is beyond the range of float32"),
        (
            {},
            {"k": {"column": "x", "encode": "id"}},
            "1.5",
            "feature 'k', column 'x': '1.5' is not a 64-bit integer",
        ),
        ({}, {"k": {"column": "x", "bucketize": [1]}}, "?", "is not a number"),
        (
            {},
            {"k": {"column": "x", "encode": "id", "separator": "|"}},
            "1|b",
            "is not a 64-bit integer",
        ),
    ],
)
def test_a_value_that_cannot_be_read_makes_a_bad_row(dense, sparse, value, complaint):
    rows = Transform(features(dense, sparse)).apply(batch(x=["1", value, "2"]))
    assert rows.good.tolist() == [True, False, True]
    assert rows.reasons[0][0] == 1
    assert complaint in rows.reasons[0][1]
    assert len(rows.labels) == 2


def test_clip_keeps_a_large_value():
    rows = Transform(features(dense={"x": {"clip": [0, 5]}})).apply(batch(x=["1e39"]))
    assert rows.dense.tolist() == [[5]]


def test_only_the_first_bad_rows_are_explained_and_long_values_are_cut():
    rows = Transform(features(dense={"x": {}})).apply(batch(x=["y" * 500] * 20))
    assert not rows.good.any()
    assert len(rows.reasons) == 5
    assert all(len(reason) < 200 for _, reason in rows.reasons)
    assert rows.dense.shape == (0, 1)


def test_no_rows():
    spec = features({"x": {}}, {"c": {}, "m": {"column": "c", "separator": "|"}})
    rows = Transform(spec).apply(
        batch(y=pa.array([], pa.int8()), x=pa.array([], pa.string()), c=pa.array([], pa.string()))
    )
    assert rows.dense.shape == (0, 1)
    assert rows.offsets.tolist() == [0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"dense": {"x": {}}}, "feature 'x' needs column 'x'; the data has: y, a"),
        ({"sparse": {"f": {"column": "gone"}}}, "feature 'f' needs column 'gone'"),
        ({"sparse": {"f": {"cross": ["a", "b"]}}}, "feature 'f' needs column 'b'"),
    ],
)
def test_a_missing_column_is_named(spec, message):
    with pytest.raises(InvalidInput, match=message):
        Transform(features(**spec)).apply(batch(a=["1"]))


def test_a_nested_column_is_refused():
    with pytest.raises(InvalidInput, match="feature 'c', column 'c': values of type struct"):
        keys_of(pa.array([{"a": 1}]))
