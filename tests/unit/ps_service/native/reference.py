"""What the native core must compute, in NumPy float64, and short-hands for its tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_service import _native

EXTREME_KEYS = (0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)

Array = NDArray[Any]


def table(name: str = "t", dim: int = 4, **changes: Any) -> _native.TableConfig:
    """A table with adagrad and uniform rows, unless changed."""
    fields: dict[str, Any] = {
        "name": name,
        "dim": dim,
        "optimizer": "adagrad",
        "optimizer_params": {"lr": 0.05},
        "initializer": "uniform",
        "initializer_params": {"low": -0.1, "high": 0.1},
    }
    return _native.TableConfig(**(fields | changes))


def u32(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def u64(values: Any) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def floats(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, np.float32)


def initial_state(optimizer: str, params: Mapping[str, float], weights: Array) -> dict[str, Array]:
    """State of a fresh row (or of rows), float64."""
    start = np.full(weights.shape, params.get("initial_accumulator", 0.0))
    names = {"sgd": [], "adagrad": ["a"], "adam": ["m", "v"], "ftrl": ["n", "z"]}[optimizer]
    state = {name: np.zeros(weights.shape) for name in names}
    state.update({name: start.copy() for name in ("a", "n") if name in state})
    state["w"] = weights.astype(np.float64)
    state["t"] = np.zeros(())
    return state


def step(optimizer: str, p: Mapping[str, float], s: dict[str, Array], g: Array) -> None:
    """One step of `optimizer` on the state `s` in place, as Keras defines it, in float64."""
    g = g.astype(np.float64)
    s["t"] = s["t"] + 1
    if optimizer == "sgd":
        s["w"] = s["w"] - p["lr"] * g
    elif optimizer == "adagrad":
        s["a"] = s["a"] + g**2
        s["w"] = s["w"] - p["lr"] * g / np.sqrt(s["a"] + p["epsilon"])
    elif optimizer == "adam":
        s["m"] = s["m"] + (1 - p["beta1"]) * (g - s["m"])
        s["v"] = s["v"] + (1 - p["beta2"]) * (g**2 - s["v"])
        alpha = p["lr"] * np.sqrt(1 - p["beta2"] ** s["t"]) / (1 - p["beta1"] ** s["t"])
        s["w"] = s["w"] - alpha * s["m"] / (np.sqrt(s["v"]) + p["epsilon"])
    else:
        power = -p["lr_power"]
        after = s["n"] + g**2
        s["z"] = s["z"] + g - (after**power - s["n"] ** power) / p["lr"] * s["w"]
        s["n"] = after
        rate = after**power / p["lr"] + 2 * p["l2"] + p["beta"] / p["lr"]
        s["w"] = (np.clip(s["z"], -p["l1"], p["l1"]) - s["z"]) / rate
