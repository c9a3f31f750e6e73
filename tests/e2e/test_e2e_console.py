"""The console before a real cluster: from the list to a job that trains, its curves, a checkpoint,
a scaling, its end, and a restore, all from the page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embermesh.client import Client
from services.api.views import JobState
from tests.fixtures.browser import Browser

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]
_PATIENCE = 150.0  # seconds for processes to start on a busy machine


def test_a_job_is_led_from_the_page_alone(
    client: Client, browser: Browser, synthetic_job: Callable[..., dict[str, Any]]
) -> None:
    job = client.submit(synthetic_job(rows=100_000_000)).id
    browser.open(f"{client.url}/")
    browser.click(f"a[href='#/jobs/{job}']")
    browser.shows(".state", "running", seconds=_PATIENCE)

    # Two curves of at least three points, and the newest point is another one a moment later. A
    # chart without values has no line, so its curve is looked for within it: AUC comes after loss.
    curve = (
        "const line = document.querySelectorAll('.chart')[arguments[0]].querySelector('polyline');"
        "return line && line.getAttribute('points').split(' ').length >= 3 && line.outerHTML"
    )
    first = [browser.until(curve, place, seconds=_PATIENCE) for place in (0, 1)]
    browser.until(f"{{ {curve} }}".replace("outerHTML", f"outerHTML !== {first[1]!r}"), 1)
    assert "now 0." in browser.run("return document.querySelectorAll('.chart svg')[1].ariaLabel")

    browser.press_button("Checkpoint")
    browser.shows(".notice", "checkpoint 000001 is complete", seconds=_PATIENCE)
    browser.press_button("Checkpoints")
    browser.shows("#panel-checkpoints td", "000001")
    browser.press_button("Logs")
    browser.shows(".line", "source partitions from step 1 on")

    browser.press_button("Events")
    browser.press_button("Scale…")
    browser.type("dialog input", "1")
    browser.press_button("Scale")
    browser.shows(".events .kind", "scaling", seconds=_PATIENCE)
    browser.shows(".tile dd", "1 + 2 + 1", seconds=_PATIENCE)
    browser.shows("#announcer", "is running, attempt 2", seconds=_PATIENCE)
    assert client.get(job).spec["resources"]["trainers"] == 1

    browser.press_button("Pause…")
    browser.press_button("Pause the job")
    browser.shows(".state", "paused", seconds=_PATIENCE)
    browser.press_button("Resume…")
    browser.press_button("Resume the job")
    browser.shows("#announcer", "is running, attempt 3", seconds=_PATIENCE)
    assert client.get(job).restarts == 0

    browser.press_button("Cancel…")
    browser.press_button("Cancel the job")
    browser.shows(".state", "cancelled", seconds=_PATIENCE)
    assert client.get(job).state == JobState.CANCELLED

    # A job that is over goes on from the page, too, and the page with it.
    browser.press_button("Checkpoints")
    browser.press_button("Restore from 000001…")
    browser.press_button("Restore")
    browser.shows(".state", "ing", seconds=_PATIENCE)  # pending, starting or running
    assert client.get(job).restarts == 0
    client.cancel(job)
    browser.shows(".state", "cancelled", seconds=_PATIENCE)
    # A process that is being started has no log yet.
    assert all("/logs?" in line and "404" in line for line in browser.complaints())
