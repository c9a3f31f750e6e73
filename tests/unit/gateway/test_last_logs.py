"""What of a log is kept: how much of it, and what is masked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.last_logs import BYTES, LINES, shortened


@given(st.text(max_size=400), st.integers(1, 300))
def test_what_is_kept_is_a_bounded_end(text: str, times: int) -> None:
    whole = (text + "\n") * times
    kept = shortened(whole)
    assert len(kept.encode()) <= BYTES
    assert len(kept.splitlines()) <= LINES
    assert whole.endswith(kept) or "…" in kept


def test_a_letter_cut_in_two_is_left_out() -> None:
    kept = shortened("é" * BYTES + "x")
    assert kept.endswith("éx") and len(kept.encode()) == BYTES - 1


@pytest.mark.parametrize(
    ("line", "masked"),
    [
        ("no Redis at redis://:s3cret@redis:6379/0", "no Redis at redis://…@redis:6379/0"),
        ("https://me:s3cret@host/x and more", "https://…@host/x and more"),
        ("Authorization: Bearer s3cret.x.y", "Authorization: Bearer …"),
        ("key AKIAIOSFODNN7EXAMPLE is wrong", "key … is wrong"),
        ("AWS_SECRET_ACCESS_KEY=s3cret next", "AWS_SECRET_ACCESS_KEY=… next"),
        ('{"password": "s3cret", "rank": 1}', '{"password": "…", "rank": 1}'),
        ("api-key: s3cret", "api-key: …"),
    ],
)
def test_credentials_are_masked(line: str, masked: str) -> None:
    assert shortened(f"{line}\n") == f"{masked}\n"


@pytest.mark.parametrize(
    "line",
    [
        "file://checkpoints/000001 and s3://bucket/a@b are no credentials",
        '{"ts": 1.5, "level": "error", "job": "tokens-a1", "message": "key 17: no row"}',
        "a token is expired; the secret is out",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert shortened(line) == line
