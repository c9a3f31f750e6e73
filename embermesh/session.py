"""The gateway that a command talks to, and as whom."""

from __future__ import annotations

from embermesh import settings
from embermesh.client import Client
from embermesh.cluster import LocalCluster


def gateway_url() -> str:
    """EMBERMESH_URL, else that of the local cluster, else the default."""
    own = settings.load()
    if own.url:
        return own.url
    state = LocalCluster(own.state_path).state() if own.state_path.exists() else None
    return state.url if state else settings.DEFAULT_URL


def connect() -> Client:
    """A client with the user's settings and token."""
    own = settings.load()
    return Client(gateway_url(), own.timeout, token=own.bearer())
