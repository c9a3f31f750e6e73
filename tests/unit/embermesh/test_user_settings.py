"""Settings of the user's programs beside those of the services."""

from __future__ import annotations

from pathlib import Path

import pytest

from embermesh import settings
from services.kit import errors


def test_the_services_variables_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EMBERMESH_GATEWAY_PORT", "EMBERMESH_MEMBER_RANK", "EMBERMESH_CHECKPOINT_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("EMBERMESH_URL", "http://elsewhere:1")
    assert settings.load().url == "http://elsewhere:1"


def test_a_misspelt_variable_is_named() -> None:
    with pytest.raises(errors.InvalidInput, match="EMBERMESH_ULR"):
        settings.load({"EMBERMESH_ULR": "http://elsewhere:1"})


def test_the_state_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings.load({}).state_path == tmp_path / ".embermesh"
