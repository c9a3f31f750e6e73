"""The dense part of the workload alone, as `dense_only`, but by our own step: in micro-batches, one
to a core, Adam by our block. What a trainer of ours could do if rows cost nothing.

Prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from bench import network
from bench import workload as w
from ps_service import _native
from trainer_service.micro_batches import configure_threads
from trainer_service.step import TrainStep


def main() -> None:
    args = w.arguments(__doc__)
    micro_batches = configure_threads(1, args.batch_size)  # before the network
    width = w.DENSE + w.SLOTS * w.DIM
    step = TrainStep(
        network.build_joined(width, w.HIDDEN),
        batch_size=args.batch_size,
        dense=w.DENSE,
        width=width,
        joined=True,
        micro_batches=micro_batches,
    )
    block = _native.DenseBlock(step.initial(), optimizer="adam", optimizer_params={"lr": 0.001})
    inputs = np.random.default_rng(1).normal(0.0, 0.01, (args.batch_size, width))
    step.rows(args.batch_size)[:] = inputs
    rows, start = w.read(w.data(args).train(w.rows(args))), 0.0
    for number, batch in enumerate(rows.batches(args.batch_size), start=1):
        if number == args.warm_up + 1:
            start = time.perf_counter()
        result = step.run(batch.dense, batch.labels, block.values(), step=number)
        block.apply(result.dense_grads)
    seconds = time.perf_counter() - start
    sys.stdout.write(
        json.dumps({"samples_per_second": args.steps * args.batch_size / seconds}) + "\n"
    )


if __name__ == "__main__":
    main()
