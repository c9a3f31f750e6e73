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


def _mixed(x: int) -> int:
    """The bijection of 64 bits that hashes are made of (`mix64` in hash.h)."""
    x ^= x >> 27
    x = x * 0x3C79AC492BA7B653 % 2**64
    x ^= x >> 33
    x = x * 0x1C69B3F74AC4AE35 % 2**64
    return x ^ x >> 27


def twin_of(key: int, table: int = 1) -> int:
    """The key of `table` whose 64-bit hash is that of `key` in table 0."""
    salt = [_mixed((t + 1) * 0x9E3779B97F4A7C15 % 2**64) for t in (0, table)]
    return key ^ salt[0] ^ salt[1]


def u32(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


def u64(values: Any) -> NDArray[np.uint64]:
    return np.array(values, np.uint64)


def floats(data: bytes) -> NDArray[np.float32]:
    return np.frombuffer(data, np.float32)


STATE = {
    "sgd": ["w"],
    "momentum": ["w", "m"],
    "adagrad": ["w", "a"],
    "rowwise_adagrad": ["w"],
    "adam": ["w", "m", "v"],
    "adamw": ["w", "m", "v"],
    "amsgrad": ["w", "m", "v", "u"],
    "ftrl": ["w", "n", "z"],
    "group_ftrl": ["w", "n", "z"],
}
"""Vectors of a row in the order they are kept."""


def vectors(optimizer: str, p: Mapping[str, float]) -> list[str]:
    """STATE, for rmsprop by its parameters."""
    if optimizer != "rmsprop":
        return STATE[optimizer]
    return ["w", "v", *(["m"] if p["momentum"] else []), *(["a"] if p["centered"] else [])]


def scalar(optimizer: str) -> str | None:
    """The one number that some rows end with."""
    if optimizer == "rowwise_adagrad":
        return "a"
    return "t" if optimizer.startswith("a") and optimizer != "adagrad" else None


def initial_state(optimizer: str, params: Mapping[str, float], weights: Array) -> dict[str, Array]:
    """State of a fresh row (or of rows), float64."""
    start = params.get("initial_accumulator", 0.0)
    state = {name: np.zeros(weights.shape) for name in vectors(optimizer, params)}
    state["t"] = np.zeros(())
    if optimizer == "rowwise_adagrad":
        state["a"] = np.full((), start)
    for name in ("n", "a") if optimizer != "rmsprop" else ():
        if name in state:
            state[name] = np.full(state[name].shape, start)
    state["w"] = weights.astype(np.float64)
    return state


def step(
    optimizer: str, p: Mapping[str, float], s: dict[str, Array], g: Array, rate: float = 1.0
) -> None:
    """One step of `optimizer` on the state `s` in place, in float64: as Keras defines it, where it
    does. `rate` multiplies the learning rate.
    """
    g = g.astype(np.float64)
    s["t"] = s["t"] + 1
    if optimizer.endswith("ftrl"):
        _ftrl(optimizer, p, s, g, rate)
    elif optimizer in ("adam", "adamw", "amsgrad"):
        _adam(optimizer, p, s, g, p["lr"] * rate)
    else:
        s["w"] = s["w"] - _descent(optimizer, p, s, g, p["lr"] * rate)


def _descent(
    optimizer: str, p: Mapping[str, float], s: dict[str, Array], g: Array, lr: float
) -> Array:
    if optimizer == "sgd":
        return lr * g
    if optimizer == "momentum":
        s["m"] = p["momentum"] * s["m"] - lr * g
        return lr * g - p["momentum"] * s["m"] if p["nesterov"] else -s["m"]
    if optimizer == "rmsprop":
        s["v"] = p["rho"] * s["v"] + (1 - p["rho"]) * g**2
        spread = s["v"]
        if p["centered"]:
            s["a"] = p["rho"] * s["a"] + (1 - p["rho"]) * g
            spread = s["v"] - s["a"] ** 2
        change = lr * g / np.sqrt(spread + p["epsilon"])
        if p["momentum"]:
            s["m"] = change = p["momentum"] * s["m"] + change
        return change
    s["a"] = s["a"] + (g**2 if optimizer == "adagrad" else np.mean(g**2))
    return lr * g / np.sqrt(s["a"] + p["epsilon"])


def _adam(optimizer: str, p: Mapping[str, float], s: dict[str, Array], g: Array, lr: float) -> None:
    if optimizer == "adamw":
        s["w"] = s["w"] * (1 - lr * p["weight_decay"])
    s["m"] = s["m"] + (1 - p["beta1"]) * (g - s["m"])
    s["v"] = s["v"] + (1 - p["beta2"]) * (g**2 - s["v"])
    second = s["v"]
    if optimizer == "amsgrad":
        s["u"] = second = np.maximum(s["u"], s["v"])
    alpha = lr * np.sqrt(1 - p["beta2"] ** s["t"]) / (1 - p["beta1"] ** s["t"])
    s["w"] = s["w"] - alpha * s["m"] / (np.sqrt(second) + p["epsilon"])


def _ftrl(
    optimizer: str, p: Mapping[str, float], s: dict[str, Array], g: Array, rate: float
) -> None:
    power = -p.get("lr_power", -0.5)
    after = s["n"] + g**2
    s["z"] = s["z"] + rate * g - (after**power - s["n"] ** power) / p["lr"] * s["w"]
    s["n"] = after
    slope = (after**power + p["beta"]) / p["lr"] + 2 * p["l2"]
    pulled = np.clip(s["z"], -p["l1"], p["l1"]) - s["z"]
    keep = 1.0
    if p.get("l21", 0.0) > 0:
        keep = max(0.0, 1 - np.sqrt(len(g)) * p["l21"] / np.linalg.norm(pulled))
    s["w"] = keep * pulled / slope
