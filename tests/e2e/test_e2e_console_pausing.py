"""The console in a real browser, before a real gateway: a job is paused, scaled and resumed from
its page, and the gateway itself goes away for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.fixtures.browser import Browser
from tests.fixtures.contrast import CONTRAST
from tests.fixtures.ports import find_free_port
from tests.integration.gateway_harness import Harness, running_gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
NO_CHECKPOINT = "there is no checkpoint yet"
TILE_OF = (
    "((name) => [...document.querySelectorAll('.tile')]"
    ".find((tile) => tile.children[0].textContent === name).children[1].textContent)"
)


def off(browser: Browser) -> dict[str, str]:
    """The job's buttons that can't be pressed now, and why."""
    found = browser.run(
        "return [...document.querySelectorAll('.actions button:disabled')]"
        ".map((b) => [b.textContent, b.title])"
    )
    return dict(found)


def page(harness: Harness, job: str) -> str:
    """Address of the job's page."""
    return f"{str(harness.http.base_url).rstrip('/')}/#/jobs/{job}"


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


def test_a_job_is_paused_scaled_and_resumed_from_the_page(
    harness: Harness, browser: Browser
) -> None:
    job, other = harness.submit(), harness.submit(name="other")
    for each in (job, other):
        harness.wait(each, "running")
    browser.open(page(harness, job))
    browser.shows(".state", "running")
    assert off(browser) == {"Resume…": "the job is not paused", "Restore…": NO_CHECKPOINT}
    browser.press_button("Pause…")
    browser.shows("dialog h2", f"Pause {job}?")
    browser.press_button("Pause the job")
    browser.shows(".notice", f"pause of {job} was asked for")
    browser.shows(".state .badge-paused", "paused")
    browser.shows("#announcer", f"{job} is paused, attempt 1")
    browser.shows(".events .kind", "paused")
    assert off(browser) == {
        "Checkpoint": "only a running job takes checkpoints",
        "Pause…": "the job is paused already",
    }
    assert not browser.run(f"return /\\d/.test({TILE_OF}('Samples/s'))")
    browser.press_button("Scale…")
    names = browser.run("return [...document.querySelectorAll('dialog input')].map((e) => e.name)")
    assert names == ["trainers", "sparse_ps", "dense_ps"]
    bounds = browser.run("return [...document.querySelectorAll('dialog input')].map((e) => e.max)")
    assert bounds == ["1024", "1024", "64"]
    browser.shows("dialog p", "It resumes with these numbers")
    browser.type("dialog input[name=sparse_ps]", "3")
    browser.press("Enter")
    browser.until(f"return {TILE_OF}('Processes') === '2 + 3 + 1'")
    browser.open(str(harness.http.base_url))
    browser.choose("#state", "paused")
    browser.shows(".hint", "1 of 2 jobs looked at match")
    browser.click(f"a[href='#/jobs/{job}']")
    browser.press_button("Resume…")
    browser.press("Tab")
    browser.press("Enter")  # by the keyboard: from Back, which has the focus, to Resume
    browser.shows("#announcer", "is running, attempt 2")
    members = harness.view(job).members
    assert [m.role for m in members].count("sparse-ps") == 3
    assert harness.events(job).count("resume") == 1


def test_the_page_says_when_the_gateway_is_away_and_goes_on_when_it_is_back(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path, browser: Browser
) -> None:
    port = find_free_port()
    banner = "return !document.querySelector('.banner').hidden"
    with running_gateway(redis_url, tmp_path, listen=port) as harness:
        job = harness.submit()
        harness.wait(job, "running")
        browser.open(page(harness, job))
        browser.shows(".state", "running")
        assert not browser.run(banner)
    browser.until(banner, seconds=30)
    browser.shows(".banner", "The gateway does not answer; what you see may be old.")
    assert browser.run(CONTRAST) == []
    with running_gateway(redis_url, tmp_path, listen=port) as harness:
        browser.until(f"{banner} === false", seconds=30)
        harness.wait(job, "running", timeout=30)
        browser.shows(".state", "running")
        harness.http.post(f"/v1/jobs/{job}:cancel").raise_for_status()
        browser.shows(".state", "cancelled", seconds=30)
    browser.complaints()  # a gateway that is away is one
