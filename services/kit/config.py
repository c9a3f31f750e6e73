"""Process configuration: environment variables -> one frozen dataclass, unknown keys refused.

This is the only reader of the environment. A class states its own prefix, so
`EMBERMESH_TRAINER_RANK=1` fills `TrainerConfig.rank`, and `EMBERMESH_TRAINER_RNAK` is an error
instead of a silent default.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from typing import ClassVar, Protocol, TypeVar

from services.kit.errors import InvalidInput


class Config(Protocol):
    """A frozen dataclass of str, int, float and bool fields with the prefix of its variables."""

    PREFIX: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[object]]]


ConfigT = TypeVar("ConfigT", bound=Config)

_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def load(cls: type[ConfigT], env: Mapping[str, str] | None = None) -> ConfigT:
    """Builds `cls` from `env` (the process environment by default).

    Raises InvalidInput that names the variable when one is unknown, missing or of the wrong type.
    """
    source = os.environ if env is None else env
    given = {k: v for k, v in source.items() if k.startswith(cls.PREFIX)}
    hints = typing.get_type_hints(cls)
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        name = cls.PREFIX + field.name.upper()
        if name in given:
            values[field.name] = _parse(name, given.pop(name), hints[field.name])
        elif field.default is dataclasses.MISSING:
            raise InvalidInput(f"{name} is not set; {cls.__name__} needs it")
    if given:
        known = ", ".join(sorted(cls.PREFIX + f.name.upper() for f in dataclasses.fields(cls)))
        raise InvalidInput(f"unknown setting {', '.join(sorted(given))}; known: {known}")
    return cls(**values)


def environment(config: Config) -> dict[str, str]:
    """The variables that make `load` return an equal object; used by targets to start processes."""
    pairs = ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    return {config.PREFIX + name.upper(): str(value) for name, value in pairs}


def inherited(prefix: str | tuple[str, ...] = "EMBERMESH_") -> dict[str, str]:
    """This process's environment without our own settings: the base for child processes."""
    return {k: v for k, v in os.environ.items() if not k.startswith(prefix)}


def _parse(name: str, text: str, kind: object) -> object:
    try:
        if kind is bool:
            return _BOOLS[text.lower()]
        if kind in (int, float, str):
            return typing.cast(type, kind)(text)
    except (ValueError, KeyError):
        raise InvalidInput(f"{name}={text!r} is not a {getattr(kind, '__name__', kind)}") from None
    raise TypeError(f"{name}: fields of type {kind} are not supported")
