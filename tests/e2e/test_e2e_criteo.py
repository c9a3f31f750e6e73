"""Quality on real ads (Criteo, split by time): the modes that promise an AUC reach that of plain
TensorFlow and of each other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from embermesh.client import Client
from services.api.views import JobState
from tests.data import ROOT, shared_data

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
MIN_AUC, MAX_GAP = 0.750, 0.002


def test_hybrid_and_kstep_reach_the_auc_of_sync(client: Client, tmp_path: Path) -> None:
    clicks = shared_data("criteo", "data.tsv.gz")
    auc = {}
    for mode in ("sync", "hybrid", "kstep"):
        spec: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "criteo.yaml").read_text())
        spec["data"]["source"] = f"file://{clicks}"
        spec["training"]["mode"] = mode
        spec["checkpoint"] = {"to": f"file://{tmp_path}"}
        done = client.wait(client.submit(spec).id, 280)
        assert done.state == JobState.SUCCEEDED, done.error
        assert done.progress.samples == 2 * 129_316 and done.progress.bad_rows == 0
        assert done.result is not None and done.result.samples == 32_330
        assert done.result.auc is not None
        auc[mode] = done.result.auc
    assert min(auc.values()) >= MIN_AUC, auc
    assert max(auc["sync"] - auc[mode] for mode in ("hybrid", "kstep")) <= MAX_GAP, auc
