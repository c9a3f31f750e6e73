"""What a 16-bit wire costs: AUC on real ads, trained by one trainer against real servers."""

from __future__ import annotations

import threading
from contextlib import closing

import prometheus_client
import pytest
import yaml

from ps_service.tables import dense_optimizer
from services.api.spec import JobSpec, validate
from services.kit.rpc_metrics import ClientMetrics
from tests.data import ROOT, shared_data
from tests.fixtures.ps_cluster import PsCluster
from trainer_service import holdout
from trainer_service.control import PauseGate
from trainer_service.layout import build_layout, load_model
from trainer_service.loop import Loop
from trainer_service.metrics import TrainerMetrics
from trainer_service.pipeline import ReadAhead, Servers
from trainer_service.positions import Positions
from trainer_service.progress import Progress
from trainer_service.rows_ahead import RowsAhead
from trainer_service.sources import open_holdout, open_training
from trainer_service.step import TrainStep, build_network

BATCH, MAX_LOSS_OF_AUC = 1024, 0.0005


def job(values: str) -> JobSpec:
    spec = yaml.safe_load((ROOT / "examples" / "criteo.yaml").read_text())
    spec["data"]["source"] = f"file://{shared_data('criteo', 'data.tsv.gz')}"
    spec["training"] |= {"batch_size": BATCH, "epochs": 1, "wire": {"values": values}}
    spec["resources"] = {"sparse_ps": 2, "dense_ps": 1, "trainers": 1}
    del spec["checkpoint"]
    return validate(spec)


def train(values: str) -> tuple[float, float]:
    """AUC of the held-out rows; bytes of sparse requests and replies per step."""
    spec, registry, stop = job(values), prometheus_client.CollectorRegistry(), threading.Event()
    with PsCluster(sparse=2) as cluster:
        model = load_model(spec)
        layout = build_layout(spec, model)
        planner = layout.planner(cluster.shard_map)
        step = TrainStep(
            build_network(model.build, spec.training.seed),
            batch_size=BATCH,
            dense=layout.dense,
            width=layout.width,
            joined=layout.joined,
        )
        sparse = cluster.sparse_client(
            values=spec.training.wire.values, metrics=ClientMetrics(registry)
        )
        dense = cluster.dense_client()
        sparse.configure(layout.tables, spec.training.seed)
        optimizer, params, options = dense_optimizer(spec.optimizers.dense)
        parameters = dense.configure(optimizer, params, step.initial(), options)
        source, metrics = open_training(spec, rank=0, trainers=1), TrainerMetrics(registry)
        positions, progress = Positions(source.positions()), Progress(metrics)
        with (
            closing(Servers(sparse, dense)) as servers,
            closing(ReadAhead(source, planner, metrics)) as batches,
            closing(RowsAhead(batches, servers, metrics, depth=spec.rows_ahead)) as ahead,
        ):
            assert Loop(
                rows=ahead,
                servers=servers,
                step=step,
                positions=positions,
                gate=PauseGate(),
                progress=progress,
                metrics=metrics,
            ).run(parameters, stop)
            steps = registry.get_sample_value("embermesh_trainer_steps_total")
            size = sum(
                registry.get_sample_value(
                    "embermesh_rpc_client_bytes_total",
                    {"service": "SparsePs", "verb": verb, "direction": direction},
                )
                or 0.0
                for verb, direction in (("Pull", "in"), ("Push", "in"), ("Push", "out"))
            )
            held_out = open_holdout(spec)
            assert held_out is not None and steps
            with closing(ReadAhead(held_out, planner, metrics)) as rows:
                result = holdout.evaluate(rows, servers, step, dense.pull(), stop)
    assert result.auc is not None
    return result.auc, size / steps


@pytest.mark.timeout(300)
def test_auc_with_16_bits_is_that_of_32_bits() -> None:
    exact, exact_bytes = train("fp32")
    assert exact > 0.72, "nothing was learned"
    for values in ("fp16", "scaled-fp16"):
        auc, size = train(values)
        assert abs(auc - exact) <= MAX_LOSS_OF_AUC, values
        assert size < 0.6 * exact_bytes, values
