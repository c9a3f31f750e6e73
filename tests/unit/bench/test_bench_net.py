"""The network bench's arithmetic, and what it says when it can't run."""

from __future__ import annotations

import os

import pytest

from bench.net import hosts, run, wire
from services.api.spec import Training


def test_packets_leave_one_after_another_and_arrive_after_the_delay() -> None:
    line = wire.Line(delay=0.001, rate=1e6)
    assert line.arrival(5.0, 2_000) == pytest.approx(5.003)  # 2 ms on the line, 1 ms away
    assert line.arrival(5.0, 1_000) == pytest.approx(5.004)  # waits for the first
    assert line.arrival(9.0, 1_000) == pytest.approx(9.002)


def test_rates_are_of_the_time_between_the_first_and_the_last_look() -> None:
    looks = [run.Look(10.0, 20, 1_000), run.Look(11.0, 30, 9_000), run.Look(12.0, 60, 17_000)]
    assert run.rates(looks, trainers=2, batch_size=512) == {
        "step_ms": pytest.approx(50.0),
        "bytes_per_step": pytest.approx(200.0),
        "samples_per_second": pytest.approx(20 * 512 * 2),
    }


def test_too_short_a_job_has_no_rate() -> None:
    with pytest.raises(ValueError, match="give it more"):
        run.rates([run.Look(1.0, 5, 10), run.Look(2.0, 5, 10)], trainers=1, batch_size=1)


def test_the_modes_are_those_of_the_jobspec() -> None:
    assert {"sync", "hybrid"} <= set(run.modes())
    for mode in run.modes():
        assert Training.model_validate({"mode": mode}).mode == mode


@pytest.mark.parametrize(
    ("what", "reason"),
    [("root", "need root"), ("ip", "iproute2"), ("tun", "no TUN devices")],
)
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, what: str, reason: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if what == "root" else 0)
    monkeypatch.setattr("shutil.which", lambda _: None if what == "ip" else "/sbin/ip")
    monkeypatch.setattr(os, "access", lambda *_: what != "tun")
    with pytest.raises(hosts.Impossible, match=reason):
        hosts.require()
