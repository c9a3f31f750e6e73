"""Loads the fixtures of tests/fixtures and marks tests by what they need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# A time limit per example would make a busy machine look like a bug.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest_plugins = (
    "tests.fixtures.ports",
    "tests.fixtures.redis_server",
    "tests.fixtures.kafka_broker",
    "tests.fixtures.s3",
    "tests.fixtures.prometheus_server",
    "tests.fixtures.kubernetes_api",
    "tests.fixtures.browser",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`-m kafka` and `-m "not kafka"` work without anyone having to remember the marker."""
    for item in items:
        if "kafka_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)
        if "kubernetes_admin" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session", autouse=True)
def _contexts_of_nobody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test's command goes to the gateway of a context that whoever runs the tests has in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield
