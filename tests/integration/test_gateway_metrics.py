"""What a client sends can't grow the gateway's metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.gateway_harness import running_gateway


@pytest.mark.usefixtures("redis_db")
def test_invented_methods_and_paths_share_one_series(redis_url: str, tmp_path: Path) -> None:
    with running_gateway(redis_url, tmp_path) as harness:
        for number in range(5):
            harness.http.request(f"INVENTED{number}", "/v1/jobs")
            harness.http.get(f"/nowhere/{number}")
        text = harness.http.get("/metrics").text
    counts = [line for line in text.splitlines() if line.startswith("embermesh_http_seconds_count")]
    assert not any("INVENTED" in line or "nowhere" in line for line in counts)
    assert sum('method="other"' in line for line in counts) == 1
    assert sum('method="GET",route="none",status="404"' in line for line in counts) == 1
