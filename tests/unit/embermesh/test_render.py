"""What people read: numbers, tables, progress."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from embermesh import render, watch
from services.api.views import CheckpointView, JobView


def job(state: str = "running", **fields: Any) -> JobView:
    progress = {"samples": 250_000, "total_samples": 1_000_000, "samples_per_second": 12_345.6}
    base: dict[str, Any] = {
        "id": "tiny-abc234",
        "name": "tiny",
        "state": state,
        "created": time.time() - 90,
        "updated": time.time(),
        "spec": {},
        "progress": {**progress, "loss": 0.45678, "auc": 0.71234},
    }
    return JobView.model_validate({**base, **fields})


def text_of(*what: Any) -> str:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(*what)
    out: str = console.file.getvalue()  # type: ignore[attr-defined]
    return out


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes_have_a_unit(octets: int, text: str) -> None:
    assert render.size(octets) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5s"), (90, "2m"), (7200, "2h"), (200_000, "2d")]
)
def test_ages_are_in_their_biggest_unit(seconds: int, text: str) -> None:
    assert render.age(time.time() - seconds) == text


def test_a_clock_that_runs_ahead_gives_no_negative_age() -> None:
    assert render.age(time.time() + 60) == "0s"


def test_a_progress_line_has_samples_speed_loss_and_auc() -> None:
    assert render.progress_line(job()) == (
        "tiny-abc234 running, 250,000 of 1,000,000 samples, 12,346/s, loss 0.4568, AUC 0.7123"
    )


def test_the_jobs_table_shows_results_of_jobs_that_are_over() -> None:
    result = {"auc": 0.7654, "logloss": 0.41, "bayes_auc": 0.79, "samples": 1000}
    text = text_of(render.jobs_table([job("succeeded", result=result), job("failed")]))
    first, second = text.splitlines()[1:]
    assert "succeeded" in first
    assert "0.7654" in first
    assert "12,346" not in text  # nothing is trained any more
    assert "failed" in second


def test_text_of_users_is_not_taken_for_markup() -> None:
    console = Console(file=io.StringIO(), width=200)
    render.job_details(console, job("failed", error="features.sparse[C1]: [bold]odd[/bold]"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "features.sparse[C1]: [bold]odd[/bold]" in text


def test_details_list_every_process_with_its_metrics() -> None:
    member = {
        "role": "sparse-ps",
        "rank": 1,
        "phase": "ready",
        "address": "127.0.0.1:1",
        "metrics_address": "127.0.0.1:2",
        "status": {"rows": 77},
    }
    console = Console(file=io.StringIO(), width=200)
    render.job_details(console, job(members=[member]))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "sparse-ps-1" in text
    assert "http://127.0.0.1:2/metrics" in text
    assert "rows 77" in text


def test_checkpoints_show_size_and_manifest() -> None:
    shown = CheckpointView(id="000003", uri="file:///c/manifest.json", created=0.0, bytes=2048)
    text = text_of(render.checkpoints_table([shown]))
    assert "000003" in text
    assert "2.0 KiB" in text
    assert "file:///c/manifest.json" in text


class Looks:
    """A client whose job goes through the given views."""

    def __init__(self, views: list[JobView]) -> None:
        self._views = views

    def wait(self, job: str, timeout: float | None, on_update: Any) -> JobView:
        for view in self._views:
            on_update(view)
        return self._views[-1]


@pytest.mark.parametrize("terminal", [False, True])
def test_watching_shows_progress_and_returns_the_end(terminal: bool) -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=terminal)
    seen: list[str] = []
    looks: Any = Looks([job("starting"), job(), job(), job("succeeded")])
    last = watch.watch(looks, "tiny", console, on_update=lambda v: seen.append(str(v.state)))
    assert str(last.state) == "succeeded"
    assert seen == ["starting", "running", "running", "succeeded"]
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert "loss 0.4568" in text
    if not terminal:  # a line per change of state, not one per look
        assert [line.split(",")[0] for line in text.splitlines()] == [
            "tiny-abc234 starting",
            "tiny-abc234 running",
            "tiny-abc234 succeeded",
        ]
