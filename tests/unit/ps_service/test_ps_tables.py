"""TableSpec and the optimizers and initializers it may name."""

from __future__ import annotations

import pytest

from ps_service import _native
from ps_service.tables import TableSpec, UpdateOptions, dense_optimizer, table_spec
from services.api.optimizers import InitializerSpec, OptimizerSpec
from services.kit.errors import InvalidInput
from services.wire import ps_pb2

ADAGRAD = OptimizerSpec(name="adagrad", params={"lr": 0.05})


@pytest.mark.parametrize("optimizer", sorted(_native.OPTIMIZERS))
@pytest.mark.parametrize("initializer", sorted(_native.INITIALIZERS))
def test_defaults_are_filled_in_for_every_kind(optimizer: str, initializer: str) -> None:
    spec = table_spec("C1", 8, OptimizerSpec(name=optimizer), InitializerSpec(name=initializer))
    assert (spec.options, spec.weights) == (UpdateOptions(), "fp32")
    assert spec.optimizer_params == _native.OPTIMIZERS[optimizer]
    assert spec.initializer_params == _native.INITIALIZERS[initializer]
    wire = spec.to_proto().SerializeToString()
    assert TableSpec.from_proto(ps_pb2.Table.FromString(wire)) == spec


def test_given_parameters_win_over_defaults() -> None:
    spec = table_spec("C1", 8, ADAGRAD, None)
    assert spec.optimizer_params == {**_native.OPTIMIZERS["adagrad"], "lr": 0.05}
    assert (spec.initializer, spec.initializer_params) == ("uniform", {"low": -0.01, "high": 0.01})
    native = spec.native()
    assert (native.name, native.dim, native.optimizer) == ("C1", 8, "adagrad")


@pytest.mark.parametrize(
    ("dim", "optimizer", "initializer", "message"),
    [
        (
            8,
            OptimizerSpec(name="lion"),
            None,
            "'C1': unknown optimizer 'lion'; known: adagrad, adam",
        ),
        (
            8,
            OptimizerSpec(name="sgd", params={"beta": 1}),
            None,
            "'sgd' has no parameter 'beta'; known: lr",
        ),
        (8, ADAGRAD, InitializerSpec(name="ones"), "unknown initializer 'ones'; known: constant"),
        (
            8,
            ADAGRAD,
            InitializerSpec(name="zeros", params={"a": 1}),
            "no parameter 'a'; known: none",
        ),
        (8, OptimizerSpec(name="adam", params={"beta1": 2}), None, "'C1'.*beta1"),
        (0, ADAGRAD, None, "'C1'.*dim"),
        (5000, ADAGRAD, None, "'C1'.*dim.*5000"),
    ],
)
def test_bad_tables_are_refused_by_name(dim, optimizer, initializer, message) -> None:
    with pytest.raises(InvalidInput, match=message):
        table_spec("C1", dim, optimizer, initializer)


def test_dense_optimizer() -> None:
    name, params, options = dense_optimizer(OptimizerSpec(name="adam", params={"lr": 0.5}))
    assert (name, params) == ("adam", {**_native.OPTIMIZERS["adam"], "lr": 0.5})
    assert options == UpdateOptions()
    with pytest.raises(InvalidInput, match="dense: unknown optimizer 'lion'"):
        dense_optimizer(OptimizerSpec(name="lion"))
    with pytest.raises(InvalidInput, match=r"dense.*beta2"):
        dense_optimizer(OptimizerSpec(name="adam", params={"beta2": -3}))
