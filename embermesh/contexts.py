"""The user's contexts: gateways by name, with where each one's token lies.

They are in `embermesh/config.yaml` below $XDG_CONFIG_HOME, else ~/.config. A context refers to its
token by file, so that the configuration holds no secret and may be shared.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pydantic
import yaml
from pydantic import Field

from services.api.base import Strict
from services.kit import config
from services.kit.errors import Conflict, InvalidInput, NotFound

ContextName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Context(Strict):
    """One gateway."""

    url: str = Field(pattern=r"^https?://[^\s@]+$", description="Without user or password.")
    token_file: str = ""  # ~ is the home folder; empty: an open gateway


class UserConfig(Strict):
    """The whole file."""

    current: str | None = None  # the context that is used; None: the cluster of `embermesh up`
    contexts: dict[ContextName, Context] = Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _current_is_known(self) -> UserConfig:
        if self.current is not None:
            self.get(self.current)
        return self

    def get(self, name: str) -> Context:
        """The context of that name. Raises NotFound."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise NotFound(f"there is no context {name!r}; known: {known}")
        return self.contexts[name]

    def with_added(self, name: str, context: Context, *, use: bool) -> UserConfig:
        """With one more. Raises Conflict for a name that is taken."""
        if name in self.contexts:
            raise Conflict(f"context {name!r} is there already; remove it first")
        current = name if use else self.current
        return _checked(
            {"current": current, "contexts": {**_dumped(self.contexts), name: context.model_dump()}}
        )

    def using(self, name: str | None) -> UserConfig:
        """With that one current; None: the local cluster. Raises NotFound."""
        if name is not None:
            self.get(name)
        return self.model_copy(update={"current": name})

    def without(self, name: str) -> UserConfig:
        """With one less; when it was current, the local cluster is. Raises NotFound."""
        self.get(name)
        left = {other: c for other, c in self.contexts.items() if other != name}
        current = None if self.current == name else self.current
        return UserConfig(current=current, contexts=left)


def config_path(env: Mapping[str, str] | None = None) -> Path:
    """Where the contexts are; `env` is the process environment by default."""
    present = config.inherited() if env is None else env
    # The XDG specification: a relative path is to be ignored.
    base = Path(present.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "embermesh" / "config.yaml"


def load(path: Path) -> UserConfig:
    """The contexts of `path`; none where there is no file. Raises InvalidInput that names the file
    and what is wrong in it.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return UserConfig()
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"can't read {path}: {error}") from error
    try:
        return _checked({} if document is None else document)
    except (InvalidInput, NotFound) as error:
        raise InvalidInput(f"{path}: {error}") from error


def save(path: Path, contexts: UserConfig) -> None:
    """Writes them whole or not at all, readable by the user alone. Raises InvalidInput."""
    text = yaml.safe_dump(contexts.model_dump(exclude_defaults=True), sort_keys=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes it with mode 0600.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError as error:
        raise InvalidInput(f"can't write {path}: {error}") from error


def read_token(file: str) -> str:
    """The token in `file`. Raises InvalidInput when it can't be read, is empty, or when others than
    its owner may use it.
    """
    path = Path(file).expanduser()
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"token file {file!r}: {error}") from error
    if mode & _OTHERS:
        raise InvalidInput(
            f"token file {file!r} has mode {stat.S_IMODE(mode):04o}, so others than you may use "
            f"your token: chmod 600 {path}"
        )
    if not token:
        raise InvalidInput(f"token file {file!r} is empty")
    return token


def _dumped(contexts: Mapping[str, Context]) -> dict[str, object]:
    return {name: context.model_dump() for name, context in contexts.items()}


def _checked(document: object) -> UserConfig:
    try:
        return UserConfig.model_validate(document)
    except pydantic.ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise InvalidInput("\n".join(lines)) from error
