"""Watching one job until it is over, or paused: a live bar on a terminal, a line now and then
elsewhere.

It only looks: ending the watch leaves the job alone.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from embermesh import render
from embermesh.client import Client
from services.api.views import JobView

LINE_SECONDS = 5.0  # between lines where no bar can be drawn


def watch(
    client: Client,
    job: str,
    console: Console,
    *,
    timeout: float | None = None,
    on_update: Callable[[JobView], None] | None = None,
    paused: bool = False,
) -> JobView:
    """Shows the job's progress on `console` until it is over, or with `paused` until the pause
    that was asked for has come about or has not; returns its last view. Raises like `Client.wait`.
    """
    display = _Bar(console) if console.is_terminal else _Lines(console)
    with display:

        def see(view: JobView) -> None:
            display.show(view)
            if on_update is not None:
                on_update(view)

        wait = client.wait_paused if paused else client.wait
        return wait(job, timeout, on_update=see)


class _Display(abc.ABC):
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None

    @abc.abstractmethod
    def show(self, view: JobView) -> None:
        """Draws what changed."""


class _Bar(_Display):
    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, facts="")

    def __enter__(self) -> None:
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, view: JobView) -> None:
        progress = view.progress
        facts = [f"{render.count(progress.samples_per_second)} samples/s"]
        facts += [
            f"{n} {render.number(v)}"
            for n, v in (("loss", progress.loss), ("AUC", progress.auc))
            if v is not None
        ]
        self._progress.update(
            self._task,
            description=f"{view.id} {render.state_text(view.state)}",
            total=progress.total_samples,
            completed=progress.samples,
            facts=" ".join(facts),
        )


class _Lines(_Display):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_state: object = None
        self._last_time = 0.0

    def show(self, view: JobView) -> None:
        now = time.monotonic()
        if view.state == self._last_state and now - self._last_time < LINE_SECONDS:
            return
        self._last_state, self._last_time = view.state, now
        self._console.print(
            render.progress_line(view), markup=False, highlight=False, soft_wrap=True
        )
