"""Column ranges: `I1..I13` stands for I1, I2, …, I13, wherever a JobSpec names columns."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(?P<prefix>.*?)(?P<first>[0-9]{1,9})\.\.(?P=prefix)(?P<last>[0-9]{1,9})")
_MAX_RANGE = 10_000


def expand(name: str) -> list[str]:
    """Names a range stands for; a plain name stands for itself.

    A first number with leading zeros keeps the width: `f01..f10` is f01, f02, …, f10. Raises
    ValueError for an empty name and for a malformed range.
    """
    if not name.strip():
        raise ValueError("a name must not be empty")
    if ".." not in name:
        return [name]
    match = _RANGE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a range; write it like C1..C26")
    first, last = int(match["first"]), int(match["last"])
    if last < first or last - first >= _MAX_RANGE:
        raise ValueError(f"range {name!r} must rise and hold at most {_MAX_RANGE} names")
    width = len(match["first"]) if match["first"].startswith("0") else 0
    return [f"{match['prefix']}{number:0{width}d}" for number in range(first, last + 1)]
