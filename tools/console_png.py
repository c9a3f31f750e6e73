"""`make console-png`: runs a job on a cluster of its own and takes a picture of every page of the
console, in both colour schemes and at the width of a phone.

For looking at: a clipped figure, a wrapped button or a grey on grey is seen at once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from embermesh.client import Client
from embermesh.cluster import LocalCluster
from embermesh.processes import free_port
from gateway.access_config import AccessConfig
from services.kit.errors import Conflict
from tests.fixtures.browser import Browser, chromium
from tests.integration.gateway_harness import running_gateway

TRAINED_SECONDS = 25.0  # of curves
_START_SECONDS = 120.0
_PHONE = {"width": 380, "height": 740}


def main() -> int:
    """0, or an error that names what did not come."""
    parser = argparse.ArgumentParser(prog="python -m tools.console_png", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="embermesh-console-") as scratch:
        cluster = LocalCluster(Path(scratch) / "cluster")
        try:
            state = cluster.up(port=free_port())
            with Client(state.url) as client, chromium(Path(scratch) / "browser") as browser:
                _pictures(client, browser, Path(scratch), folder)
                # Another database of the same Redis: of a closed gateway only the door is seen.
                closed = state.redis_url.rsplit("/", 1)[0] + "/1"
                with running_gateway(closed, Path(scratch) / "closed", AccessConfig()) as harness:
                    _both(browser, f"{harness.http.base_url}/", "h1", folder / "door")
        finally:
            cluster.down()
    for path in sorted(folder.glob("*.png")):
        sys.stdout.write(f"{path}\n")
    return 0


def _pictures(client: Client, browser: Browser, scratch: Path, folder: Path) -> None:
    over = client.submit(_spec("ads-finished", scratch, rows=4_000))
    job = client.submit(_spec("ads-deepfm", scratch, rows=100_000_000))
    client.cancel(client.submit(_spec("ads-stopped", scratch, rows=1_000)).id)
    browser.open(f"{client.url}/#/jobs/{job.id}")
    browser.shows(".state", "running", seconds=_START_SECONDS)
    client.wait(over.id, _START_SECONDS)
    browser.until("return document.querySelector('polyline')", seconds=_START_SECONDS)
    for _ in range(2):
        try:
            client.checkpoint(job.id)
        except Conflict:  # a scheduled one is being taken
            continue
    threading.Event().wait(TRAINED_SECONDS)
    page = f"{client.url}/#/jobs/{job.id}"
    _both(browser, f"{client.url}/", "td a", folder / "jobs")
    _both(browser, page, "polyline", folder / "job", wait=TRAINED_SECONDS / 2)
    for tab in ("Logs", "Checkpoints", "Processes", "Spec"):
        browser.emulate()
        browser.press_button(tab)
        threading.Event().wait(1.0)
        _shots(browser, folder / tab.lower())
    for button in ("Pause…", "Scale…", "Restore…", "Cancel…"):
        browser.press_button(button)
        browser.shows("dialog h2", "ads-deepfm")
        _shots(browser, folder / button.lower().rstrip("…"), phone=False)
        browser.press("Escape")
    client.pause(job.id)
    client.wait_paused(job.id, _START_SECONDS)
    _both(browser, page, ".badge-paused", folder / "paused")
    _both(browser, f"{client.url}/", ".badge-paused", folder / "jobs-paused")
    client.cancel(job.id)


def _both(browser: Browser, page: str, sign: str, target: Path, wait: float = 0.0) -> None:
    browser.fresh()
    browser.open(page)
    browser.until(f"return document.querySelector({sign!r})", seconds=_START_SECONDS)
    threading.Event().wait(wait)
    _shots(browser, target)


def _shots(browser: Browser, target: Path, *, phone: bool = True) -> None:
    for scheme in ("light", "dark"):
        for suffix, screen in (("", {}), ("-phone", _PHONE))[: 1 + phone]:
            browser.emulate(scheme=scheme, **screen)
            browser.until("return new Promise((done) => setTimeout(() => done(true), 300))")
            browser.picture(target.with_name(f"{target.name}-{scheme}{suffix}.png"))
    browser.emulate()


def _spec(name: str, scratch: Path, *, rows: int) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"name": "deepfm", "hidden": [32, 16]},
        "data": {"source": f"synthetic://criteo?rows={rows}&holdout=1000"},
        "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"dim": 8, "encode": "id"}}},
        "training": {"mode": "hybrid", "batch_size": 256, "seed": 1},
        "resources": {"sparse_ps": 2, "dense_ps": 1, "trainers": 1},
        "checkpoint": {"to": f"file://{scratch / 'checkpoints'}", "keep": 3},
    }


if __name__ == "__main__":
    raise SystemExit(main())
