"""The user's face of the platform: `Client` for programs and notebooks, the `embermesh` command for
shells.

Importing this package is cheap; names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embermesh.client import Client
    from services.api.spec import JobSpec

__all__ = ["Client", "JobSpec"]

_HOMES = {"Client": "embermesh.client", "JobSpec": "services.api.spec"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
