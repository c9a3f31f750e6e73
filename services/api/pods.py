"""The JobSpec's `resources.pods` section: what each process gets where processes are pods."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from services.api.base import Strict

_MEMORY = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([KMGT]i?)?B?")
_UNITS = {"": 1, **{unit: 1000**power for power, unit in enumerate("KMGT", start=1)}}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)}


def _bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _MEMORY.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write it like 512Mi, 4Gi or 1500000000")
    return int(float(match[1]) * _UNITS[match[2] or ""])


Memory = Annotated[int, BeforeValidator(_bytes)]
"""Bytes; the text forms 512Mi, 4Gi, 2G are read too."""


class PodSize(Strict):
    """What one process gets."""

    cpu: float | None = Field(
        default=None,
        ge=0.001,
        le=1024,
        description="Cores it is sure to get, e.g. 1.5; it may use idle ones beyond.",
    )
    memory: Memory | None = Field(
        default=None,
        ge=1 << 20,
        le=1 << 44,
        description="Bytes, or text like 512Mi, 4Gi: memory it is sure to get, and is killed for "
        "exceeding.",
    )


class PodSizes(Strict):
    """What each process gets where processes are pods (target kubernetes), by role."""

    trainer: PodSize | None = Field(default=None, description="Each trainer.")
    sparse_ps: PodSize | None = Field(default=None, description="Each sparse-PS.")
    dense_ps: PodSize | None = Field(default=None, description="Each dense-PS.")
