"""Addresses: the one under which others reach a port of this process, and URLs fit for messages."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from services.kit.errors import Unavailable

_EVERY_INTERFACE = ("", "0.0.0.0", "::", "[::]")


def advertised(host: str) -> str:
    """`host`, or this machine's own address when `host` stands for every interface.

    Raises Unavailable when the machine's name has no address.
    """
    if host not in _EVERY_INTERFACE:
        return host
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise Unavailable(f"host {host!r}: this machine's name {name!r} has no address") from error


def without_password(url: str) -> str:
    """`url` fit for a message."""
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":…@") if password else url
