"""The entry of a pod: waits for its grant, begins each incarnation once, becomes the member."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.kit import pod_entry
from services.kit.errors import InvalidInput
from services.kit.pod_entry import PodConfig


@pytest.fixture
def settings(tmp_path: Path) -> PodConfig:
    marks = tmp_path / "marks"
    marks.mkdir()
    grant = tmp_path / "incarnation"
    grant.touch()
    return PodConfig("em-clicks-1-trainer-12", str(grant), str(marks))


def grant(settings: PodConfig, text: str) -> None:
    Path(settings.grant).write_text(text)


def test_an_incarnation_begins_once(settings: PodConfig) -> None:
    assert pod_entry.granted(settings) is None
    grant(settings, "0\n")
    assert pod_entry.granted(settings) == 0
    assert pod_entry.granted(settings) is None  # the container was started again
    grant(settings, "3")
    assert pod_entry.granted(settings) == 3
    grant(settings, "0")
    assert pod_entry.granted(settings) is None


def test_a_grant_that_is_no_number_is_an_error(settings: PodConfig) -> None:
    grant(settings, "../1")
    with pytest.raises(InvalidInput, match=r"'../1', which is no incarnation"):
        pod_entry.granted(settings)


def test_the_rank_is_the_end_of_the_pods_name(settings: PodConfig) -> None:
    env = pod_entry.environment(settings, 2, {"HOME": "/tmp", "EMBERMESH_MEMBER_JOB": "a"})
    assert env == {
        "HOME": "/tmp",
        "EMBERMESH_MEMBER_JOB": "a",
        "EMBERMESH_MEMBER_RANK": "12",
        "EMBERMESH_MEMBER_INCARNATION": "2",
    }
    with pytest.raises(InvalidInput, match="EMBERMESH_POD_NAME='em-clicks' must end with -RANK"):
        pod_entry.environment(PodConfig("em-clicks", "", ""), 0, {})
