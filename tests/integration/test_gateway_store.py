"""The gateway's records, idempotency keys and leader lease in a real Redis."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from gateway import store as storing
from gateway.record import JobRecord, new_record
from gateway.store import JobStore
from services.api import spec as jobspec
from services.api.views import CheckpointView, JobState, Progress, Result
from services.kit.errors import Conflict, InvalidInput, NotFound, Unavailable
from tests.integration.gateway_harness import SPEC


@pytest.fixture
def store(redis_db: redis.Redis, redis_url: str) -> JobStore:
    return JobStore(storing.connect(redis_url))


def record(now: float = 1.0) -> JobRecord:
    return new_record(jobspec.validate(SPEC), now)


def test_a_record_comes_back_as_it_was_stored(store: JobStore) -> None:
    full = dataclasses.replace(
        record(),
        state=JobState.STOPPING,
        becomes=JobState.PENDING,
        progress=Progress(samples=5, auc=0.7),
        result=Result(auc=0.8),
        checkpoint=CheckpointView(id="000001", uri="file://m", created=2.0),
        scale_to=3,
    )
    saved = store.save(full)
    assert saved.version == 1
    assert store.get(full.id) == saved


def test_ids_are_the_name_and_six_letters(store: JobStore) -> None:
    ids = {record().id for _ in range(100)}
    assert len(ids) == 100
    assert all(i.startswith("clicks-") and len(i) == len("clicks-") + 6 for i in ids)


def test_an_unknown_job_is_named(store: JobStore) -> None:
    with pytest.raises(NotFound, match="no job 'nope-aaaaaa'"):
        store.get("nope-aaaaaa")


def test_a_stale_version_is_refused(store: JobStore) -> None:
    first = store.save(record())
    store.save(first)
    with pytest.raises(Conflict, match="changed since version 1"):
        store.save(first)
    with pytest.raises(Conflict):
        store.save(dataclasses.replace(first, version=0))


def test_no_concurrent_update_is_lost(store: JobStore) -> None:
    job = store.save(record()).id

    def raise_restarts(_: int) -> None:
        for _ in range(10):
            store.update(job, lambda r: dataclasses.replace(r, restarts=r.restarts + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(raise_restarts, range(4)))
    after = store.get(job)
    assert (after.restarts, after.version) == (40, 41)


def test_an_update_without_a_change_stores_nothing(store: JobStore) -> None:
    saved = store.save(record())
    assert store.update(saved.id, lambda r: r).version == saved.version


def test_lists_and_counts_follow_the_states(store: JobStore) -> None:
    old, new = store.save(record(1.0)), store.save(record(2.0))
    assert [r.id for r in store.page("*", 10)] == [new.id, old.id]
    assert [r.id for r in store.page("*", 1)] == [new.id]
    store.save(dataclasses.replace(old, state=JobState.CANCELLED))
    assert [r.id for r in store.active()] == [new.id]
    assert store.counts() == {"pending": 1, "cancelled": 1}


def test_the_same_key_and_body_give_the_same_job(store: JobStore) -> None:
    start = threading.Barrier(6)

    def submit(_: int) -> tuple[str, bool]:
        start.wait()
        made, created = store.create(record(), "key", b"body")
        return made.id, created

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(submit, range(6)))
    assert len({job for job, _ in outcomes}) == 1
    assert sum(created for _, created in outcomes) == 1
    assert len(store.page("*", 10)) == 1


def test_a_key_with_another_body_is_refused(store: JobStore) -> None:
    made, _ = store.create(record(), "key", b"body")
    with pytest.raises(Conflict, match=f"'key' was used with another body, for job {made.id}"):
        store.create(record(), "key", b"other body")


def test_only_one_leads_until_its_lease_ends(store: JobStore) -> None:
    first = store.acquire("one", 0.2)
    assert first is not None
    assert store.acquire("two", 0.2) is None
    assert store.renew(first, 0.2)
    time.sleep(0.3)
    second = store.acquire("two", 5)
    assert second is not None and second.token > first.token
    assert not store.renew(first, 5)
    store.release(first)  # a lost lease can't end another's
    assert store.renew(second, 5)
    store.release(second)
    assert store.acquire("one", 5) is not None


def test_a_former_leader_writes_nothing(store: JobStore) -> None:
    saved = store.save(record())
    former = store.acquire("one", 5)
    assert former is not None
    saved = store.save(saved, former)
    store.release(former)
    present = store.acquire("two", 5)
    with pytest.raises(Conflict, match="not the leader any more"):
        store.save(saved, former)
    assert store.save(saved, present).version == saved.version + 1


def test_a_dead_redis_is_named(free_port: int) -> None:
    store = JobStore(storing.connect(f"redis://127.0.0.1:{free_port}/0"))
    with pytest.raises(Unavailable, match=f"could not be reached: .*{free_port}"):
        store.ping()
    with pytest.raises(InvalidInput, match="redis_url 'nonsense'"):
        storing.connect("nonsense")
