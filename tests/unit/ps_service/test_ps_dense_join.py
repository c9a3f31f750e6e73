"""DenseBlock.join: any former blocks into any slice, optimizer state included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_service import _native

ROW_WISE = {"rowwise_adagrad", "group_ftrl"}  # not for dense parameters
SIZE = 23
RNG = np.random.default_rng(5)
GRADS = RNG.normal(size=(4, SIZE)).astype(np.float32)
VALUES = RNG.normal(size=SIZE).astype(np.float32)


def trained(start: int, end: int, optimizer: str) -> _native.DenseBlock:
    block = _native.DenseBlock(VALUES[start:end], optimizer=optimizer, optimizer_params={})
    for grad in GRADS:
        block.apply(grad[start:end])
    return block


def join(blocks, offset: int, size: int, optimizer: str, **params: float) -> _native.DenseBlock:
    return _native.DenseBlock.join(
        blocks, offset=offset, size=size, optimizer=optimizer, optimizer_params=params
    )


@given(
    st.sampled_from(sorted(_native.OPTIMIZERS.keys() - ROW_WISE)),
    st.lists(st.integers(0, SIZE), max_size=4),
    st.integers(0, SIZE),
    st.integers(0, SIZE),
)
def test_slice_of_joined_blocks_is_the_block_that_was_never_cut(optimizer, cuts, a, b) -> None:
    ends = [*sorted(cuts), SIZE]
    parts = [trained(s, e, optimizer).dump() for s, e in zip([0, *ends], ends, strict=False)]
    start, end = sorted((a, b))
    joined = join(parts, start, end - start, optimizer)
    assert joined.dump() == trained(start, end, optimizer).dump()


def test_parameters_come_from_the_caller() -> None:
    joined = join([trained(0, SIZE, "adam").dump()], 0, SIZE, "adam", lr=0.25)
    assert joined.optimizer_params == {**_native.OPTIMIZERS["adam"], "lr": 0.25}
    assert joined.step == 4


@pytest.mark.parametrize(
    ("blocks", "offset", "size", "optimizer", "message"),
    [
        (["adam"], 0, SIZE + 1, "adam", "there are 23 parameters, wanted 24 from 0"),
        (["adam"], SIZE + 1, 0, "adam", "there are 23 parameters, wanted 0 from 24"),
        ([], 0, 1, "adam", "there are 0 parameters"),
        (["sgd"], 0, SIZE, "adam", "optimizer is 'sgd', expected 'adam'"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(blocks, offset, size, optimizer, message) -> None:
    made = {
        "adam": trained(0, SIZE, "adam"),
        "sgd": trained(0, SIZE, "sgd"),
    }
    with pytest.raises(ValueError, match=message):
        join([made[b].dump() for b in blocks], offset, size, optimizer)


def test_damaged_block_is_refused() -> None:
    data = bytearray(trained(0, SIZE, "adam").dump())
    data[40] ^= 1
    with pytest.raises(ValueError, match="crc32c"):
        join([bytes(data)], 0, SIZE, "adam")
