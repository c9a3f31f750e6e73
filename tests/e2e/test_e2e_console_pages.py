"""The console in a real browser, before a real gateway whose jobs are scripted: who sees what, by
which means, and what hostile texts can do.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from embermesh.access import Access
from gateway.record import new_record
from services.api.access import AccessRole, Quota
from services.api.spec import validate
from services.api.views import JobState
from services.kit.discovery import Phase, Role
from tests.fixtures.browser import Browser
from tests.fixtures.contrast import CONTRAST
from tests.integration.gateway_closed import CLOSED, admin_of
from tests.integration.gateway_harness import Harness, running_gateway

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    with running_gateway(redis_url, tmp_path) as harness:
        yield harness


def url(harness: Harness, path: str = "/") -> str:
    return f"{str(harness.http.base_url).rstrip('/')}{path}"


def report(harness: Harness, job: str, auc: float) -> None:
    """The figures of a job that trains."""
    for rank in range(2):
        status = {
            "samples": int(1e5 * auc),
            "total_samples": 200_000,
            "samples_per_second": 1000.0,
            "step": 7,
            "loss": 1 - auc,
            "auc": auc,
        }
        harness.target.report(job, 1, Role.TRAINER, rank, Phase.READY, status=status)


def test_a_closed_gateway_asks_for_a_token_and_keeps_it_in_this_tab(
    redis_db: redis.Redis, redis_url: str, tmp_path: Path, browser: Browser
) -> None:
    with running_gateway(redis_url, tmp_path, CLOSED) as harness, admin_of(harness) as admin:
        viewer = Access(admin).create_token("v", AccessRole.VIEWER, tenant="ads").token
        operator = Access(admin).create_token("o", AccessRole.OPERATOR, tenant="ads").token
        job = admin.request("POST", "/v1/jobs?tenant=ads", json=harness.spec).json()["id"]
        browser.open(url(harness))
        browser.shows("h1", "Sign in")
        browser.type("input[name=token]", "emb_wrong")
        browser.press("Enter")
        browser.shows(".trouble", "the token is not valid")
        browser.type("input[name=token]", viewer)
        browser.press("Enter")
        browser.shows("#who", "viewer · ads")
        browser.click(f"a[href='#/jobs/{job}']")
        browser.shows(".state", "running")  # by a stream that carries the token
        browser.until("return document.querySelectorAll('.events li').length >= 3")
        reasons = browser.run(
            "const buttons = [...document.querySelectorAll('.actions button')];"
            "return buttons.map((b) => [b.disabled, b.title])"
        )
        assert reasons == [[True, "your role is viewer; this needs operator"]] * 6
        # Kept where it ends with the tab, and nowhere else.
        kept = browser.run(
            "return [JSON.stringify(sessionStorage), JSON.stringify(localStorage) + location.href +"
            " document.cookie + document.documentElement.outerHTML]"
        )
        assert viewer in kept[0]
        assert viewer not in kept[1]
        browser.run("location.reload()")
        browser.shows(".state", "running")
        browser.press_button("Sign out")
        browser.shows("h1", "Sign in")
        assert viewer not in browser.run("return JSON.stringify(sessionStorage)")
        browser.type("input[name=token]", operator)
        browser.press("Enter")
        browser.shows("#who", "operator · ads")
        browser.until("return document.querySelector('.actions button:enabled')")
        Access(admin).revoke_token(operator.split("_")[1])
        browser.open(url(harness, "/#/jobs"))
        browser.shows("h1", "Sign in")  # the list's next look is refused
        refusals = browser.complaints()
        assert refusals
        assert all("401" in line for line in refusals), refusals


def test_hostile_texts_stay_texts(harness: Harness, browser: Browser) -> None:
    evil = "<img src=x onerror=window.hacked=1>"
    record = new_record(validate({**harness.spec, "data": {"source": "synthetic://criteo"}}), 1.0)
    spec = {**record.spec, "data": {**record.spec["data"], "source": evil}}
    record = dataclasses.replace(
        record, id=evil, name=evil, spec=spec, error=evil, state=JobState.FAILED, generation=1
    )
    harness.gateway.store.create(record, "", b"")
    harness.gateway.registry.emit(evil, evil, evil)
    harness.target.logs = lambda *_: f'{{"level": "info", "message": "{evil}"}}\n{evil}\n'  # type: ignore[method-assign]
    browser.open(url(harness))
    browser.shows("td a", evil)
    browser.click("td a")
    browser.shows("h1", evil)
    browser.shows(".banner-bad", evil)
    browser.shows(".events .kind", evil)
    browser.press_button("Logs")
    browser.shows(".line", evil)
    browser.press_button("Spec")
    browser.shows("#panel-spec pre", evil)
    time.sleep(0.2)  # an image that can't be loaded would say so by now
    assert browser.run("return window.hacked ?? null") is None
    assert browser.run("return document.querySelectorAll('img, script').length") == 2  # our own


def test_the_keyboard_alone_is_enough(harness: Harness, browser: Browser) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    browser.open(url(harness))
    browser.shows("td a", job)
    path = []
    for _ in range(6):
        browser.press("Tab")
        path.append(browser.focus())
        outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", path
    assert path == ["Skip to the content", "Embermesh", "Theme", "Filter", "state", job]
    browser.press("Enter")
    browser.shows("h1", job)
    assert browser.focus() == job  # a new page begins at its heading
    browser.until("return document.querySelector('.actions button:enabled')")
    browser.press("Tab", "Tab")
    assert browser.focus() == "Pause…"
    browser.press("Tab")  # Resume… is off: the job is not paused
    assert browser.focus() == "Scale…"
    browser.press("Enter")
    assert browser.until("return document.activeElement.name") == "trainers"
    browser.press(*["Tab"] * 6)  # round the dialog, never behind it
    assert browser.run(
        "const e = document.activeElement;"
        "return e.closest('dialog') !== null || e === document.body"
    )
    browser.press("Escape")
    browser.until("return document.querySelector('dialog') === null")
    assert browser.focus() == "Scale…"
    browser.press("Tab", "Tab")  # Restore… is off: there is no checkpoint
    assert browser.focus() == "Events"
    browser.press("ArrowRight")
    assert browser.focus() == "Logs"
    browser.shows(".line", "lines of trainer 0")
    assert browser.run("return document.querySelectorAll('[role=tab][tabindex=\"0\"]').length") == 1
    unnamed = browser.run(
        "const parts = [...document.querySelectorAll('button, input, select, a')];"
        "const name = (e) => e.ariaLabel || e.labels?.length || e.textContent.trim();"
        "return parts.filter((e) => !name(e)).length"
    )
    assert unnamed == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable_in_both_schemes(
    harness: Harness, browser: Browser, scheme: str
) -> None:
    job, other, third = (harness.submit(name=name) for name in ("clicks", "other", "third"))
    for each in (job, third):
        harness.wait(each, "running")
    harness.http.post(f"/v1/jobs/{other}:cancel").raise_for_status()
    harness.http.post(f"/v1/jobs/{third}:pause").raise_for_status()
    harness.wait(third, "paused")
    report(harness, job, 0.7)
    opposite = {"light": "dark", "dark": "light"}[scheme]
    browser.emulate(scheme=opposite)
    browser.open(url(harness))
    browser.shows("td a", job)
    before = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.choose("#theme", scheme)  # against the system's wish
    assert browser.run("return getComputedStyle(document.body).backgroundColor") != before
    assert browser.run(CONTRAST) == []
    browser.open(url(harness, f"/#/jobs/{job}"))
    browser.run("location.reload()")  # the choice is kept
    browser.shows(".chart-value", "0.7000")
    browser.until("return document.querySelector('.actions button:enabled')")
    assert browser.run(CONTRAST) == []
    assert browser.run("return document.querySelector('.chart svg').ariaLabel").startswith(
        "Loss: now 0.3"
    )
    browser.press_button("Cancel…")
    browser.shows("dialog h2", f"Cancel {job}?")
    assert browser.run(CONTRAST) == []
    browser.press("Escape")
    browser.emulate(scheme=scheme, width=380, height=740)
    for path in (f"/#/jobs/{job}", "/#/jobs"):
        browser.open(url(harness, path))
        browser.until("return document.querySelector('.charts, td a')")
        assert browser.run("return document.documentElement.scrollWidth") <= 380
    browser.choose("#theme", "auto")


def test_the_list_is_filtered_and_turned_page_by_page(harness: Harness, browser: Browser) -> None:
    for number in range(120):
        spec = validate({**harness.spec, "name": "odd" if number % 40 == 7 else "plain"})
        record = new_record(spec, 1000.0 + number)
        state = JobState.FAILED if number % 2 else JobState.CANCELLED
        harness.gateway.store.create(dataclasses.replace(record, state=state), "", b"")
    rows = "return document.querySelectorAll('tbody tr').length"
    browser.open(url(harness))
    browser.until(f"{rows} === 50")
    first = browser.text("td a")
    browser.press_button("Older →")
    browser.shows(".hint", "page 2: 50 jobs")
    assert browser.focus() == "Jobs"
    browser.press_button("Older →")
    browser.shows(".hint", "page 3: 20 jobs")
    browser.press_button("← Newer")
    browser.press_button("← Newer")
    browser.until("return document.querySelector('td a')?.textContent === arguments[0]", first)
    browser.type("#filter", "ODD")
    browser.shows(".hint", "3 of 120 jobs looked at match")
    browser.choose("#state", "cancelled")
    browser.shows(".hint", "0 of 120 jobs looked at match")
    browser.choose("#state", "failed")
    browser.until(f"{rows} === 3")


def test_a_refusal_is_shown_in_the_gateways_words(harness: Harness, browser: Browser) -> None:
    job = harness.submit()
    harness.wait(job, "running")
    browser.open(url(harness, f"/#/jobs/{job}"))
    browser.press_button("Scale…")
    harness.gateway.tenancy.set_quota("default", Quota(trainers=2))
    browser.type("dialog input", "3")
    browser.press("Enter")
    browser.shows("dialog .trouble", "trainers")
    assert harness.view(job).spec["resources"]["trainers"] == 2
    browser.type("dialog input", "1")  # nothing else typed is lost, and the same dialog goes on
    browser.press("Enter")
    browser.shows(".notice", f"scale of {job} was asked for")
    again = harness.wait(job, "running", generation=2)
    assert again.spec["resources"]["trainers"] == 1
    browser.shows("#announcer", "is running, attempt 2")
    assert all("403" in line or "409" in line or "429" in line for line in browser.complaints())


def test_the_modules_do_what_they_say(harness: Harness, browser: Browser) -> None:
    """The pure ones, against values worked out by hand."""
    browser.open(url(harness))
    scale = browser.run(
        "const {ticks, tickWriter} = await import('/console/scale.js');"
        "const axis = ticks(71000, 96000, 3);"
        "return [axis.ticks, axis.ticks.map(tickWriter(axis)), ticks(0, 0, 3, 0).low,"
        " ticks(0.7131, 0.7412).ticks.length]"
    )
    assert scale == [
        [70000, 80000, 90000, 100000],
        ["70 k", "80 k", "90 k", "100 k"],
        0,
        pytest.approx(5, abs=1),
    ]
    points = browser.run(
        "const {History} = await import('/console/history.js'); const h = new History(100);"
        "for (let t = 0; t < 10000; t += 1) h.add(t, t % 2 ? {x: t} : {x: NaN});"
        "const p = h.of('x');"
        "return [p.length, p[0].time, p.at(-1).time, p.some((q) => q.value === null)]"
    )
    assert points[0] <= 100 and points[1] == 0 and points[2] > 9_700 and points[3]
    heard = browser.run(
        "const {messages} = await import('/console/sse.js'); const found = [];"
        "const parts = ['event: a\\nda', 'ta: 1\\ndata: 2\\n\\n: hi\\n\\nid: 7\\n',"
        " 'data:3\\n\\ndata: cut'];"
        "async function* chunks() { yield* parts; }"
        "for await (const m of messages(chunks())) found.push([m.event, m.data, m.id]);"
        "return found"
    )
    assert heard == [["a", "1\n2", ""], ["message", "3", "7"]]
    walked = browser.run(
        "const {find} = await import('/console/search.js');"
        "const all = Array.from({length: 1200}, (_, i) =>"
        " ({id: `${i}`, name: i % 10 ? 'a' : 'b', tenant: '', state: 's'}));"
        "const api = {jobs: async (n, c) => {"
        " const from = c ? Number(c) + 1 : 0; const jobs = all.slice(from, from + n);"
        " return {jobs, next: from + n < all.length ? jobs.at(-1).id : null}; }};"
        "const one = await find(api, {text: 'b', state: ''}, '');"
        "const two = await find(api, {text: 'b', state: 's'}, one.next);"
        "const rest = await find(api, {text: 'b', state: ''}, two.next);"
        "return [one, two, rest].map((p) => [p.jobs.length, p.jobs[0]?.id, p.next])"
    )
    assert walked == [[50, "0", "490"], [50, "500", "990"], [20, "1000", None]]
    words = browser.run(
        "const f = await import('/console/format.js');"
        "return [f.duration(3700), f.duration(59), f.duration(86400 * 3), f.brief(1234567),"
        " f.brief(9999), f.size(1536), f.percent(0.4567), f.count(null), f.fraction(undefined)]"
    )
    assert words == [
        *("1 h 1 m", "59 s", "3 d", "1.23 M", "9,999", "1.5 KiB", "45.7 %", "\u2013", "\u2013"),
    ]
