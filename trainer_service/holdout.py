"""The evaluation at the end of a job: every held-out sample once, and no row is ever inserted."""

from __future__ import annotations

import logging
import threading

from trainer_service.evaluate import Evaluation, Holdout
from trainer_service.pipeline import Floats, ReadAhead, Servers
from trainer_service.sources import EndOfData
from trainer_service.step import TrainStep

log = logging.getLogger(__name__)


def evaluate(
    batches: ReadAhead,
    servers: Servers,
    step: TrainStep,
    parameters: Floats,
    stop: threading.Event,
) -> Evaluation:
    """Judges the model of dense `parameters` (n,) and the servers' present rows. Raises Stopped
    when `stop` is set.
    """
    judged = Holdout()
    try:
        while True:
            planned = batches.next(stop)
            batch, plan = planned.batch, planned.plan
            if batch is None or batch.samples == 0:
                continue
            values = servers.pull(plan, step=0, read_only=True)
            plan.gather(values, step.rows(batch.samples))
            judged.add(batch.labels, step.predict(batch.dense, parameters), batch.probabilities)
    except EndOfData:
        result = judged.result()
        log.info("evaluated %s", result)
        return result
