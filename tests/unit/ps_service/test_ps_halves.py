"""Arrays as float16 with one exponent, against NumPy and the bound the module states."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.extra import numpy as hnp

from ps_service import halves
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

FINITE = st.floats(-(2.0**127), 2.0**127, width=32)


def there_and_back(values: np.ndarray) -> np.ndarray:
    packed = ps_pb2.Halves.FromString(halves.pack(values).SerializeToString())
    assert len(packed.values) == 2 * len(values)
    return halves.unpack(packed, "x", len(values))


@hypothesis.given(hnp.arrays(np.float32, st.integers(0, 40), elements=FINITE))
@hypothesis.settings(max_examples=200, deadline=None)
def test_error_is_within_the_stated_bound(values: np.ndarray) -> None:
    """2^-11 of the value, or 2^-39 of the largest; float32 itself ends at 2^-149."""
    back = there_and_back(values)
    exact = values.astype(np.float64)
    bound = np.maximum(np.abs(exact) * 2.0**-11, np.abs(exact).max(initial=0.0) * 2.0**-39)
    assert np.all(np.abs(back - exact) <= bound + 2.0**-140)


def test_a_power_of_two_changes_no_bit() -> None:
    values = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    for power in (-60, -7, 11, 90):
        scaled = values * np.float32(2.0**power)
        np.testing.assert_array_equal(
            there_and_back(scaled), there_and_back(values) * np.float32(2.0**power)
        )


def test_what_is_not_finite_shows() -> None:
    back = there_and_back(np.array([1e30, np.nan, -np.inf, 0], np.float32))
    assert np.isnan(back[1]) and back[2] == -np.inf and back[3] == 0


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (ps_pb2.Halves(values=b"123"), r"change has 3 bytes, expected 4 \(2 x float16\)"),
        (ps_pb2.Halves(values=b"1234", exponent=127), r"change: exponent 127 is not in ±126"),
        (ps_pb2.Halves(values=b"1234", exponent=-(2**31)), r"change: exponent -2147483648 is not"),
    ],
)
def test_malformed_messages_are_refused_by_field(message: ps_pb2.Halves, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        halves.unpack(message, "change", 2)
