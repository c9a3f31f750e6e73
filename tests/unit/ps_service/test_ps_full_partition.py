"""What a trainer hears when a partition has no room for another row."""

from __future__ import annotations

from typing import Any
from unittest.mock import create_autospec

import grpc
import prometheus_client
import pytest

from ps_service import _native
from ps_service.server.assignment import Assignment
from ps_service.server.metrics import SparseMetrics
from ps_service.server.sparse import SparseServicer
from ps_service.sharding import ShardMap
from services.api import spec
from services.kit.discovery import Run
from services.kit.errors import Exhausted
from services.kit.storage import Storage
from services.wire import ps_pb2
from tests.fixtures.ps_batches import TABLES

REASON = "rows: partition 3 has no room for a row of table 'user'"


class FullShard(_native.SparseShard):  # type: ignore[misc]  # final for users only
    def pull(self, *_arguments: Any, **_named: Any) -> bytes:
        raise MemoryError(REASON)


def test_a_pull_without_room_for_a_row_says_which_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_native, "SparseShard", FullShard)
    document = {
        "name": "full",
        "model": {"name": "lr"},
        "data": {"source": "synthetic://criteo"},
        "features": {"sparse": {"C1": {}}},
    }
    checked = spec.validate(document).model_dump(mode="json")
    run = Run("full-1", 1, checked, epoch=1, owners=ShardMap.even(64, 1).owners.tolist())
    metrics = SparseMetrics(prometheus_client.CollectorRegistry())
    servicer = SparseServicer(Assignment.of_sparse(run, 0, 1), Storage(), metrics)
    context = create_autospec(grpc.ServicerContext)
    caller = ps_pb2.Caller(generation=1, epoch=1)
    tables = [table.to_proto() for table in TABLES]
    servicer.Configure(ps_pb2.SparseConfigureRequest(caller=caller, seed=1, tables=tables), context)
    request = ps_pb2.SparsePullRequest(caller=caller, counts=[0] * len(TABLES))
    with pytest.raises(Exhausted, match=REASON) as refused:
        servicer.Pull(request, context)
    assert refused.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    servicer.close()
