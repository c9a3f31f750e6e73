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
from services.kit.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:8080"
SERVICE_PREFIXES = (
    "EMBERMESH_ACCESS_",
    "EMBERMESH_CHECKPOINT_",
    "EMBERMESH_CLUSTER_",
    "EMBERMESH_GATEWAY_",
    "EMBERMESH_KUBERNETES_",
    "EMBERMESH_MEMBER_",
    "EMBERMESH_POD_",
    "EMBERMESH_REQUIRE_",
    "EMBERMESH_TLS_",
)


@dataclasses.dataclass(frozen=True)
class UserSettings:
    """What `embermesh` commands read from the environment."""

    PREFIX: ClassVar[str] = "EMBERMESH_"
    url: str = ""  # of the gateway; empty: as `embermesh.session` chooses
    context: str = ""  # name of one in the configuration file, instead of its current one
    state_dir: str = ".embermesh"  # state and logs of the local cluster
    timeout: float = 30.0  # seconds a request to the gateway may take
    token: str = ""  # sent to the gateway; a gateway that is open needs none
    token_file: str = ""  # read when `token` is empty; a file that only you can read is better

    def bearer(self) -> str:
        """The token, from wherever it is. Raises InvalidInput for a file that can't be read."""
        if self.token or not self.token_file:
            return self.token
        try:
            return Path(self.token_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"EMBERMESH_TOKEN_FILE={self.token_file!r}: {error}") from error

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
