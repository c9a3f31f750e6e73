"""docs/walkthrough.md names files and functions that exist."""

from __future__ import annotations

import re

from tests.data import ROOT
from trainer_service.loop import Loop
from trainer_service.pipeline import Servers
from trainer_service.positions import Positions
from trainer_service.step import TrainStep

TEXT = (ROOT / "docs" / "walkthrough.md").read_text()


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.(?:py|cc|h))`", TEXT)
    assert len(named) > 15
    assert [n for n in named if not (ROOT / n).is_file()] == []


def test_the_functions_it_names_are_there() -> None:
    for owner, name in (
        (Loop, "_take"),
        (Loop, "run"),
        (TrainStep, "take"),
        (Servers, "push"),
        (Positions, "advance"),
    ):
        assert f"`{owner.__name__}.{name}`" in TEXT
        assert callable(getattr(owner, name))
