"""Where the tests' real click data lies: `shared/data` beside the checkout, never in it."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"


def shared_data(*parts: str) -> Path:
    """The file or folder `parts` of the shared data; skips the calling test where it is missing."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared data missing: {Path(*parts)} (expected in ../shared/data)")
    return path
