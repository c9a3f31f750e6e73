"""Micro-batches side by side: what comes of one that fails."""

from __future__ import annotations

import threading

import pytest

from trainer_service.micro_batches import MicroBatch, MicroBatches

SIZE, COUNT = 32, 3


def test_no_micro_batch_runs_any_more_when_one_has_failed() -> None:
    pieces = MicroBatches(COUNT, batch_size=SIZE * COUNT, dense=1, width=2, joined=False)
    running, ended = threading.Semaphore(0), []

    def run(piece: MicroBatch) -> None:
        if piece.first == 0:
            assert running.acquire(timeout=30)
            raise ValueError("the first")
        running.release()
        ended.append(piece.first)

    with pytest.raises(ValueError, match="the first"):
        pieces.run(SIZE * COUNT, run)
    assert sorted(ended) == [SIZE, 2 * SIZE]
