"""Settings of the user's programs: which gateway they talk to, and where a local cluster keeps its
files.

Other programs of the platform read variables with the same beginning; those are none of our
business here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from services.kit import config

DEFAULT_URL = "http://127.0.0.1:8080"
SERVICE_PREFIXES = ("EMBERMESH_GATEWAY_", "EMBERMESH_CHECKPOINT_", "EMBERMESH_MEMBER_")


@dataclasses.dataclass(frozen=True)
class UserSettings:
    """What `embermesh` commands read from the environment."""

    PREFIX: ClassVar[str] = "EMBERMESH_"
    url: str = ""  # of the gateway; empty = that of the local cluster, else DEFAULT_URL
    state_dir: str = ".embermesh"  # state and logs of the local cluster
    timeout: float = 30.0  # seconds a request to the gateway may take

    @property
    def state_path(self) -> Path:
        """The local cluster's folder, absolute."""
        return Path(self.state_dir).absolute()


def load(env: Mapping[str, str] | None = None) -> UserSettings:
    """Settings from `env` (the process environment by default). Raises InvalidInput for an unknown
    EMBERMESH_ variable.
    """
    present = config.inherited(SERVICE_PREFIXES) if env is None else env
    return config.load(UserSettings, present)
