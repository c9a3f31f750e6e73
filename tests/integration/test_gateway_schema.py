"""The OpenAPI document against the running gateway: requests made from the schema, and against it,
never get a 5xx, and every answer is one that the document promises.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.access_config import AccessConfig
from gateway.identity import digest, new_token
from tests.integration.gateway_harness import Harness, running_gateway

TOKEN = new_token()[1]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
MODES: list[Any] = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
SECONDS = 20.0  # for all operations; each gets at least EXAMPLES[0] requests of either kind
EXAMPLES = (2, 8)


@pytest.fixture
def harness(redis_db: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[Harness]:
    access = AccessConfig(admin_digest=digest(TOKEN), rate_per_second=0)
    with running_gateway(redis_url, tmp_path, access) as harness:
        harness.http.headers["Authorization"] = f"Bearer {TOKEN}"
        yield harness


def attack(operation: Any, mode: Any, examples: int, job: str) -> int:
    """Sends `examples` requests, every other one at a job that exists; returns how many."""
    sent = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        nonlocal sent
        sent += 1
        if "job" in (case.path_parameters or {}) and sent % 2:
            case.path_parameters["job"] = job
        headers = {"Authorization": f"Bearer {TOKEN}"}
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=20)

    with suppress(Unsatisfiable):  # an operation without parameters can't be asked wrongly
        send()
    return sent


@pytest.mark.slow
def test_no_request_breaks_the_gateway_or_its_promises(harness: Harness) -> None:
    running, over = harness.submit(), harness.submit()
    harness.wait(running, "running")
    harness.http.post(f"/v1/jobs/{over}:cancel").raise_for_status()
    harness.wait(over, "cancelled")
    document = harness.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=str(harness.http.base_url))
    found: list[Any] = list(schema.get_all_operations())
    operations = [operation.ok() for operation in found]
    assert len(operations) == sum(len(verbs) for verbs in document["paths"].values())
    end, left, sent = time.monotonic() + SECONDS, 2 * len(operations), 0
    for operation in operations:
        job = over if operation.path.endswith("/stream") else running
        before = sent
        for mode in MODES:
            enough = time.monotonic() < end - left * 0.2
            sent += attack(operation, mode, EXAMPLES[enough], job)
            left -= 1
        assert sent > before, operation.label
    assert harness.http.get("/readyz").is_success


def test_the_document_promises_problems_only(harness: Harness) -> None:
    document = harness.http.get("/openapi.json").json()
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            for code in ("4XX", "5XX"):
                content = operation["responses"][code]["content"]
                assert list(content) == ["application/problem+json"], (path, verb)
            closed = path not in ("/healthz", "/readyz", "/metrics")
            assert bool(operation.get("security")) == closed, (path, verb)
