"""The frame of the end-to-end drivers: the last line tells the truth, clean-up always happens."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tools.stages import Report, StageFailed, main, run, until


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    line: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return line


def test_a_run_that_went_well(capsys: pytest.CaptureFixture[str]) -> None:
    def body(report: Report) -> None:
        with report.stage("one"):
            report.facts["seen"] = 3

    assert main(body, lambda: None) == 0
    line = last_line(capsys)
    assert (line["ok"], line["seen"], list(line["stages"])) == (True, 3, ["one", "tear down"])  # type: ignore[call-overload]


@pytest.mark.parametrize("error", [StageFailed("no AUC"), KeyboardInterrupt()])
def test_a_failed_stage_is_named_and_everything_is_torn_down(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    torn: list[bool] = []

    def body(report: Report) -> None:
        with report.stage("one"):
            pass
        with report.stage("two"):
            raise error

    assert main(body, lambda: torn.append(True)) == 1
    line = last_line(capsys)
    assert torn and line["ok"] is False
    assert str(line["error"]).startswith(f"two: {type(error).__name__}")


def test_what_can_not_be_torn_down_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def tear_down() -> None:
        raise StageFailed("containers are left")

    assert main(lambda report: None, tear_down) == 1
    assert "containers are left" in str(last_line(capsys)["error"])


def test_waiting_ends() -> None:
    looks = iter([0, None, 7])
    assert until(lambda: next(looks), seconds=5, what="seven", pause=0) == 7
    with pytest.raises(StageFailed, match="in vain for rain"):
        until(lambda: False, seconds=0, what="rain", pause=0)


def test_a_failed_command_says_what_it_wrote() -> None:
    program = "import sys; print('half'); print('why', file=sys.stderr); sys.exit(3)"
    with pytest.raises(StageFailed, match=r"(?s)ended with 3:\nhalf\nwhy"):
        run([sys.executable, "-c", program], env=os.environ, seconds=60)
    with pytest.raises(StageFailed, match="took longer than 0 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ, seconds=0.2)
