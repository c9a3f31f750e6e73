"""The one way to extend: a name is a module of a package, or the user's `module:attribute`."""

from __future__ import annotations

import importlib
import pkgutil

from services.kit.errors import InvalidInput


def load(package: str, name: str, attribute: str = "create") -> object:
    """Returns `attribute` of module `package.name`, or of the user's `module:attribute`.

    Raises InvalidInput that lists the known names, or says why the user's module can't be imported.
    """
    if ":" in name:
        module_name, attribute = name.split(":", 1)
    else:
        known = names(package)
        if name not in known:
            kind = package.rsplit(".", 1)[-1].removesuffix("s")
            raise InvalidInput(f"unknown {kind} {name!r}; known: {', '.join(known)}")
        module_name = f"{package}.{name}"
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # importing runs the user's code, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"can't load {name!r}: {reason}") from error


def names(package: str) -> list[str]:
    """Names of the package's public modules."""
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))
