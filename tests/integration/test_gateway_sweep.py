"""What ended jobs leave at their target is removed once they have ended, not at every look."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import prometheus_client
import pytest
import redis

from gateway import commands
from gateway import store as storing
from gateway.__main__ import assemble
from gateway.config import GatewayConfig
from gateway.loop import Reconciler
from gateway.record import new_record
from gateway.targets import Keeper
from gateway.targets.local import LocalTarget
from services.api.spec import validate
from services.api.views import JobState
from services.kit.discovery import Registry
from services.kit.errors import Unavailable
from tests.integration.gateway_harness import OPEN, SPEC, FakeTarget, wait_for


class KeepingTarget(FakeTarget):
    """Notes what it was asked to keep; may be unable to."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.kept: list[set[str]] = []
        self.broken = False

    def collect(self, active: Collection[str], fence: int) -> None:
        self.kept.append(set(active))
        if self.broken:
            raise Unavailable("the API server is away")


def keeping_target(settings: GatewayConfig) -> KeepingTarget:
    return KeepingTarget(Registry(storing.connect(settings.redis_url)))


@pytest.fixture
def parts(redis_db: redis.Redis, redis_url: str) -> Iterator[tuple[Any, Reconciler]]:
    target = f"{keeping_target.__module__}:keeping_target"
    settings = GatewayConfig(redis_url=redis_url, target=target, lease_seconds=30)
    gateway, reconciler = assemble(settings, prometheus_client.CollectorRegistry(), OPEN)
    yield gateway, reconciler
    reconciler.close()
    gateway.checkpoints.close()


def test_a_sweep_follows_the_end_of_a_job(parts: tuple[Any, Reconciler]) -> None:
    gateway, reconciler = parts
    assert issubclass(KeepingTarget, Keeper) and not issubclass(LocalTarget, Keeper)
    target: KeepingTarget = gateway.target
    first, second = (gateway.store.save(new_record(validate(SPEC), 1.0)).id for _ in range(2))

    def reached(job: str, state: JobState) -> bool:
        reconciler.tick()
        return bool(gateway.store.get(job).state == state)

    for job in (first, second):
        wait_for(lambda job=job: reached(job, JobState.RUNNING))  # type: ignore[misc]
    for _ in range(3):
        reconciler.tick()
    assert target.kept == [{first, second}]  # what an earlier gateway may have left
    gateway.store.update(first, lambda record: commands.cancel(record, 2.0))
    wait_for(lambda: reached(first, JobState.CANCELLED))
    target.broken = True
    for _ in range(3):
        reconciler.tick()
    assert target.kept == [{first, second}, {second}]
    assert gateway.store.get(second).state == JobState.RUNNING  # whose look was not disturbed
