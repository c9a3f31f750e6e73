"""Base of every model of the user's contract: unknown fields are refused, values stay as parsed."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, None: 1.0}


class Strict(BaseModel):
    """Immutable; an unknown field is an error, and so is an infinite number or NaN."""

    # JSON has no infinity, and a spec travels as JSON.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write it like 500ms, 60s, 5m, 2h or 1d")
    return float(match[1]) * _UNIT_SECONDS[match[2]]


Duration = Annotated[float, BeforeValidator(_seconds)]
"""Seconds as a float; the text forms 500ms, 60s, 5m, 2h and 1d are read too."""
