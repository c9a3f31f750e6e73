"""The synthetic source: reproducible, shared out exactly, and as hard as it says."""

from __future__ import annotations

import numpy as np
import pytest

from services.api.spec import JobSpec, validate
from services.kit.errors import InvalidInput
from trainer_service.batch import Batch
from trainer_service.sources import EndOfData, Source, open_holdout, open_training
from trainer_service.sources import synthetic as synthetic_source
from trainer_service.sources.synthetic import CARDINALITIES, ZIPF, CriteoModel


def job(url: str, *, batch_size: int = 100, seed: int = 1, epochs: int = 1, **data) -> JobSpec:
    return validate(
        {
            "name": "t",
            "model": {"name": "lr"},
            "data": {"source": url, **data},
            "features": {"dense": "I1..I13", "sparse": {"C1..C26": {"encode": "id"}}},
            "training": {"batch_size": batch_size, "seed": seed, "epochs": epochs},
        }
    )


def drain(source: Source) -> list[Batch]:
    batches = []
    try:
        while True:
            batch = source.next_batch(0)
            assert batch is not None
            batches.append(batch)
    except EndOfData:
        return batches


def take(source: Source, timeout: float = 0.0) -> Batch:
    batch = source.next_batch(timeout)
    assert batch is not None
    return batch


def holdout_of(spec: JobSpec) -> Source:
    holdout = open_holdout(spec)
    assert holdout is not None
    return holdout


def prints(batches: list[Batch]) -> list[tuple[bytes, ...]]:
    return [(b.labels.tobytes(), b.dense.tobytes(), b.keys.tobytes()) for b in batches]


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    ranks = np.argsort(np.argsort(scores)) + 1.0
    ones = labels.sum()
    return float((ranks[labels > 0].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones)))


def test_the_shares_of_three_trainers_are_the_batches_of_one():
    spec = job("synthetic://criteo?rows=2550", epochs=2)
    alone = prints(drain(open_training(spec, rank=0, trainers=1)))
    shares = [prints(drain(open_training(spec, rank=r, trainers=3))) for r in range(3)]
    assert len(alone) == 52
    assert sorted(b for share in shares for b in share) == sorted(alone)
    assert shares[1][:3] == [alone[1], alone[4], alone[7]]
    assert len(set(alone)) == 26  # the second epoch repeats the first


def test_resume_goes_on_behind_the_last_batch():
    spec = job("synthetic://criteo?rows=2000")
    source = open_training(spec, rank=0, trainers=1)
    first = prints([take(source) for _ in range(7)])
    positions = {p.partition: p for p in source.positions()}
    rest = [
        b
        for r in range(2)
        for b in prints(drain(open_training(spec, rank=r, trainers=2, resume=positions)))
    ]
    assert sorted(first + rest) == sorted(prints(drain(open_training(spec, rank=0, trainers=1))))


def test_the_seed_changes_the_rows_and_the_holdout_is_not_trained():
    url = "synthetic://criteo?rows=300&holdout=300"
    batches = [
        *prints(drain(open_training(job(url), rank=0, trainers=1))),
        *prints(drain(open_training(job(url, seed=2), rank=0, trainers=1))),
        *prints(drain(holdout_of(job(url)))),
    ]
    assert len(set(batches)) == 9


def test_holdout_variants():
    assert open_holdout(job("synthetic://criteo?rows=10")) is None
    last = job("synthetic://criteo?rows=1000", holdout={"last": 0.2})
    assert open_training(last, rank=0, trainers=1).total_samples == 800
    assert holdout_of(last).total_samples == 200
    own = job("synthetic://criteo?rows=1000", holdout={"source": "synthetic://criteo?rows=70"})
    assert holdout_of(own).total_samples == 70
    with pytest.raises(InvalidInput, match=r"either holdout\.last or holdout="):
        open_training(
            job("synthetic://criteo?holdout=5", holdout={"last": 0.5}), rank=0, trainers=1
        )


def test_the_planted_model_is_as_hard_as_promised():
    batches = drain(holdout_of(job("synthetic://criteo?rows=1&holdout=200000", batch_size=10_000)))
    labels = np.concatenate([b.labels for b in batches])
    probabilities = np.concatenate([b.probabilities for b in batches])
    # Over six seeds the Bayes AUC is 0.8396 and the click rate 0.309; one draw errs by 0.001.
    assert auc(labels, probabilities) == pytest.approx(0.840, abs=0.004)
    assert labels.mean() == pytest.approx(0.310, abs=0.005)
    assert probabilities.mean() == pytest.approx(labels.mean(), abs=0.004)
    dense = np.concatenate([b.dense for b in batches])
    np.testing.assert_allclose(dense.mean(axis=0), 0, atol=0.015)
    np.testing.assert_allclose(dense.std(axis=0), 1, atol=0.015)


def test_ranks_follow_the_zipf_law_on_both_sides_of_the_table():
    zipf = synthetic_source._Zipf(ZIPF)
    masses = np.cumsum(np.arange(1, 50_001, dtype=np.float64) ** -ZIPF)
    counts = np.array([1, 10, 1023, 1024, 1025, 5000, 50_000])
    np.testing.assert_allclose(zipf.mass(counts), masses[counts - 1], rtol=1e-8)
    np.testing.assert_allclose(zipf.mass(counts)[-2:], masses[counts[-2:] - 1], rtol=2e-10)
    targets = np.random.default_rng(3).random(20_000) * masses[-1]
    expected = np.searchsorted(masses, targets, side="right")
    off = zipf.ranks(targets) != expected
    assert off.mean() < 1e-3


def test_keys_carry_their_slot_and_respect_its_cardinality():
    batch, _ = CriteoModel().rows(20_000, (1, 2, 3))
    for slot in (0, 1, 25):
        keys = batch.column(f"C{slot + 1}").to_numpy()
        assert set(keys >> 48) == {slot + 1}
        assert len(set(keys)) <= CARDINALITIES[slot]
    assert len(set(batch.column("C1").to_numpy())) == 10


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("synthetic://avazu", "unknown synthetic data 'avazu'; known: criteo"),
        ("synthetic://criteo/x", "unknown synthetic data 'criteo/x'"),
        ("synthetic://criteo?row=5", "unknown key 'row'.*known: rows, holdout"),
        ("synthetic://criteo?rows=0", r"rows='0' is not an integer in \[1, "),
        ("synthetic://criteo?rows=-3", "rows='-3'"),
        ("synthetic://criteo?rows=1e6", "rows='1e6'"),
        ("synthetic://criteo?rows=", "rows=''"),
        ("synthetic://criteo?holdout=10000000000000", "holdout='10000000000000'"),
    ],
)
def test_what_the_url_gets_wrong_is_named(url, message):
    with pytest.raises(InvalidInput, match=message):
        open_training(job(url), rank=0, trainers=1)


def test_features_the_data_lacks_are_named():
    spec = job("synthetic://criteo").model_copy(
        update={
            "features": validate(
                {
                    "name": "t",
                    "model": {"name": "lr"},
                    "data": {"source": "synthetic://criteo"},
                    "features": {"sparse": {"C27": {}}},
                }
            ).features
        }
    )
    with pytest.raises(InvalidInput, match="feature 'C27' needs column 'C27'"):
        open_training(spec, rank=0, trainers=1)
