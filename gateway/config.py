"""Settings of the gateway process."""

from __future__ import annotations

import dataclasses
from typing import ClassVar


@dataclasses.dataclass(frozen=True)
class GatewayConfig:
    """Where the gateway listens, what it talks to, and how patient it is (all times in seconds)."""

    PREFIX: ClassVar[str] = "EMBERMESH_GATEWAY_"
    redis_url: str = "redis://127.0.0.1:6379/0"
    host: str = "127.0.0.1"  # interface of the REST API
    port: int = 8080
    checkpoint_address: str = "127.0.0.1:7700"  # host:port of the checkpoint service
    target: str = "local"  # where processes run: a module of gateway.targets, or module:function
    state_dir: str = ".embermesh"  # target local: logs and pid files, below it
    member_host: str = "127.0.0.1"  # interface the job's processes listen on
    tick_seconds: float = 0.3  # between two looks at the jobs
    lease_seconds: float = 5.0  # after which a leader that fell silent is replaced
    start_seconds: float = 300.0  # for all processes of a generation to become ready
    stop_seconds: float = 15.0  # between SIGTERM and SIGKILL
    silence_seconds: float = 30.0  # a live process whose lease is gone this long counts as dead
    checkpoint_seconds: float = 600.0  # for one checkpoint
    log_level: str = "info"
    shard_threads: int = 0  # of the job's processes: see services.kit.member.MemberConfig
    standby_mb: int = 256
    plan_threads: int = 1
