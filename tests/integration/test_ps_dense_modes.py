"""Dense optimizers by pace: mode async applies on arrival; in every mode each optimizer follows its
formula, whatever the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ps_service import _native
from ps_service.server.assignment import Pace
from services.kit.errors import Conflict
from tests.fixtures.ps_batches import TABLES
from tests.fixtures.ps_cluster import PsCluster

N = 11
FRESH = np.linspace(-1, 1, N).astype(np.float32)
Step = Callable[[np.ndarray, np.ndarray, dict[str, np.ndarray], int], np.ndarray]


def sgd(w: np.ndarray, g: np.ndarray, _state: dict[str, np.ndarray], _t: int) -> np.ndarray:
    return w - 0.1 * g


def momentum(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], _t: int) -> np.ndarray:
    state["m"] = 0.9 * state.get("m", np.zeros(N)) - 0.1 * g
    return w + state["m"]


def adagrad(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], _t: int) -> np.ndarray:
    state["a"] = state.get("a", np.full(N, 0.1)) + g**2
    return w - 0.1 * g / np.sqrt(state["a"] + 1e-7)


def adam(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], t: int) -> np.ndarray:
    m = state["m"] = 0.9 * state.get("m", np.zeros(N)) + 0.1 * g
    v = state["v"] = 0.999 * state.get("v", np.zeros(N)) + 0.001 * g**2
    lr = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return w - lr * m / (np.sqrt(v) + 1e-7)


def adamw(w: np.ndarray, g: np.ndarray, state: dict[str, np.ndarray], t: int) -> np.ndarray:
    return adam(w, g, state, t) - 0.1 * 0.004 * w


FORMULAS: dict[str, Step] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "adamw": adamw,
}


def params(optimizer: str) -> Mapping[str, float]:
    return {**_native.OPTIMIZERS[optimizer], "lr": 0.1}


def gradients(seed: int, steps: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, N)).astype(np.float32)


def expected(optimizer: str, steps: np.ndarray) -> np.ndarray:
    """float64, from the formulas."""
    w, state = FRESH.astype(np.float64), dict[str, np.ndarray]()
    for t, grad in enumerate(steps.astype(np.float64), start=1):
        w = FORMULAS[optimizer](w, grad, state, t)
    return w


@pytest.mark.parametrize("optimizer", FORMULAS)
def test_together_every_optimizer_follows_its_formula(optimizer: str) -> None:
    """Two trainers with weights 1 : 3; the same bits in one block and in three."""
    grads = gradients(1, 12), gradients(2, 12)
    outcomes = []
    for blocks in (1, 3):
        with PsCluster(dense=blocks, trainers=2) as cluster, ThreadPoolExecutor(2) as pool:
            clients = [cluster.dense_client(r) for r in range(2)]
            for client in clients:
                client.configure(optimizer, params(optimizer), FRESH)
            for step in range(1, 13):
                pushes = [
                    pool.submit(
                        c.push, grads[r][step - 1], step=step, samples=1 + 2 * r, pause=False
                    )
                    for r, c in enumerate(clients)
                ]
                first, second = (p.result(20).values for p in pushes)
                np.testing.assert_array_equal(first, second)
            outcomes.append(first.tobytes())
    assert outcomes[0] == outcomes[1]
    means = 0.25 * grads[0].astype(np.float64) + 0.75 * grads[1]
    np.testing.assert_allclose(first, expected(optimizer, means), rtol=0, atol=2e-5)


@pytest.mark.parametrize("optimizer", FORMULAS)
def test_on_arrival_every_push_is_a_step_of_its_own(optimizer: str) -> None:
    """Nobody waits: trainer 1 pushes when 0 has taken three steps, 2 never does."""
    grads = gradients(3, 8)
    order = [0, 0, 0, 1, 0, 1, 1, 0]
    with PsCluster(pace=Pace.ON_ARRIVAL, dense=2, trainers=3) as cluster:
        clients = [cluster.dense_client(r) for r in range(3)]
        for client in clients:
            client.configure(optimizer, params(optimizer), FRESH)
        steps = [0, 0, 0]
        for at, rank in enumerate(order):
            steps[rank] += 1
            told = clients[rank].push(grads[at], step=steps[rank], samples=1 + at, pause=False)
            assert told.version == at + 1
        np.testing.assert_allclose(told.values, expected(optimizer, grads), rtol=0, atol=2e-5)
        np.testing.assert_array_equal(clients[2].pull(), told.values)


def test_staleness_of_values_is_measured_in_steps_of_the_block() -> None:
    grad = np.ones(N, np.float32)
    with PsCluster(pace=Pace.ON_ARRIVAL, dense=2, trainers=2) as cluster:
        fast, slow = (cluster.dense_client(r) for r in range(2))
        for client in (fast, slow):
            client.configure("sgd", {"lr": 0.1}, FRESH)
        for step in range(1, 4):
            fast.push(grad, step=step, samples=1, pause=False)  # stale by 0, 0, 0
        slow.push(grad, step=1, samples=1, pause=False)  # 3
        fast.push(grad, step=4, samples=1, pause=False)  # 1
        fast.push(grad, step=5, samples=0, pause=False)  # writes nothing
        for served in cluster.dense:
            value = served.registry.get_sample_value
            assert value("embermesh_dense_staleness_steps_count") == 5
            assert value("embermesh_dense_staleness_steps_sum") == 4
            assert value("embermesh_dense_staleness_steps_bucket", {"le": "0.0"}) == 3


def test_a_repeated_push_is_one_step_and_a_trainer_that_left_takes_none() -> None:
    grad = np.ones(N, np.float32)
    with PsCluster(pace=Pace.ON_ARRIVAL, trainers=2) as cluster:
        client, other = (cluster.dense_client(r) for r in range(2))
        for each in (client, other):
            each.configure("sgd", {"lr": 0.1}, FRESH)
        once = client.push(grad, step=1, samples=1, pause=False)
        again = client.push(grad * 9, step=1, samples=1, pause=False)
        assert again.version == once.version == 1
        np.testing.assert_array_equal(again.values, once.values)
        value = cluster.dense[0].registry.get_sample_value
        assert value("embermesh_dense_duplicate_pushes_total") == 1
        with pytest.raises(Conflict, match="rank 0 is ahead: it pushes step 4, its next step is 2"):
            client.push(grad, step=4, samples=1, pause=False)
        client.leave(1)
        assert other.trainers() == 1
        with pytest.raises(Conflict, match="rank 0 pushes step 2 but has left after step 1"):
            client.push(grad, step=2, samples=1, pause=False)
        assert other.push(grad, step=1, samples=1, pause=False).version == 2


def test_a_trainer_pauses_alone_and_a_checkpoint_holds_every_step(tmp_path: Path) -> None:
    grads = gradients(5, 6)
    with PsCluster(pace=Pace.ON_ARRIVAL, dense=2, trainers=2) as cluster:
        cluster.sparse_client().configure(TABLES, 3)
        clients = [cluster.dense_client(r) for r in range(2)]
        for client in clients:
            client.configure("adam", params("adam"), FRESH)
        assert not clients[0].push(grads[0], step=1, samples=1, pause=False).pause
        assert clients[0].push(grads[1], step=2, samples=1, pause=True).pause
        assert clients[1].push(grads[2], step=1, samples=1, pause=True).pause
        uri = cluster.snapshot(tmp_path)
    with PsCluster(pace=Pace.ON_ARRIVAL, dense=3, trainers=4, restore=uri, generation=2) as cluster:
        client = cluster.dense_client(3)
        client.configure("adam", params("adam"), FRESH)
        for step, grad in enumerate(grads[3:], start=1):
            told = client.push(grad, step=step, samples=1, pause=False)
        np.testing.assert_allclose(told.values, expected("adam", grads), rtol=0, atol=2e-5)


def test_many_trainers_at_once_lose_no_step() -> None:
    """Sums of powers of two are exact in any order."""
    grad = np.full(N, 1 / 64, np.float32)
    with PsCluster(pace=Pace.ON_ARRIVAL, dense=2, trainers=4) as cluster:

        def train(rank: int) -> None:
            client = cluster.dense_client(rank)
            client.configure("sgd", {"lr": 1.0}, np.zeros(N, np.float32))
            for step in range(1, 33):
                client.push(grad, step=step, samples=1, pause=False)
            client.leave(32)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(train, r) for r in range(4)]:
                done.result(30)
        assert cluster.dense_values().tolist() == [-2.0] * N
        assert cluster.dense_client(0).trainers() == 0
