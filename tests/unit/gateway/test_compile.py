"""Record -> run and processes."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest

from gateway.compile import PARTITIONS, Surroundings, expected, make_run, processes
from gateway.config import GatewayConfig
from gateway.record import new_record
from services.api import spec as jobspec
from services.kit import config
from services.kit.discovery import Role
from services.kit.member import MemberConfig


def make_spec(sparse: int, dense: int, trainers: int) -> jobspec.JobSpec:
    return jobspec.validate(
        {
            "name": "a",
            "model": {"name": "lr"},
            "data": {"source": "synthetic://criteo"},
            "features": {"sparse": {"C1": {}}},
            "resources": {"sparse_ps": sparse, "dense_ps": dense, "trainers": trainers},
        }
    )


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 1000, 1024])
def test_every_partition_has_an_owner_and_shards_differ_by_at_most_one(shards: int) -> None:
    spec = make_spec(shards, 1, 1)
    run = make_run(new_record(spec, 1.0), spec)
    assert len(run.owners) == PARTITIONS
    counts = collections.Counter(run.owners)
    assert set(counts) == set(range(shards))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_run_carries_the_spec_so_that_it_parses_to_the_same() -> None:
    spec = make_spec(2, 1, 2)
    record = new_record(spec, 1.0)
    assert jobspec.validate(make_run(record, spec).spec) == spec
    assert record.job_spec == spec


@pytest.mark.parametrize(("blocks", "of_their_own"), [(2, []), (3, []), (5, [3, 4])])
def test_servers_in_the_trainers_need_no_processes(blocks: int, of_their_own: list[int]) -> None:
    spec = jobspec.validate(
        {
            **make_spec(3, 1, 3).model_dump(mode="json"),
            "resources": {"placement": "embedded", "dense_ps": blocks, "trainers": 3},
        }
    )
    run = make_run(new_record(spec, 1.0), spec)
    assert set(run.owners) == {0, 1, 2}
    made = processes(run, spec, Surroundings("redis://r:1/0", "10.0.0.1", "debug"))
    dense = [(Role.DENSE_PS, rank) for rank in of_their_own]
    assert [(p.role, p.rank) for p in made] == [*dense, *((Role.TRAINER, i) for i in range(3))]


def test_every_process_can_read_its_settings() -> None:
    spec = make_spec(2, 3, 4)
    run = make_run(new_record(spec, 1.0), spec)
    own: dict[str, Any] = {"shard_threads": 3, "standby_mb": 64, "plan_threads": 2}
    around = Surroundings("redis://r:1/0", "10.0.0.1", "debug", **own)
    made = processes(run, spec, around)
    assert [(p.role, p.rank) for p in made] == expected(spec)
    assert collections.Counter(p.role for p in made) == {
        Role.SPARSE_PS: 2,
        Role.DENSE_PS: 3,
        Role.TRAINER: 4,
    }
    for process in made:
        settings = config.load(MemberConfig, process.env)
        assert (settings.job, settings.rank) == (run.job, process.rank)
        assert (settings.redis_url, settings.host) == ("redis://r:1/0", "10.0.0.1")
        assert settings.log_level == "debug"
        assert {name: getattr(settings, name) for name in own} == own


def test_a_replacement_is_told_its_incarnation() -> None:
    spec = make_spec(1, 1, 3)
    record = dataclasses.replace(new_record(spec, 1.0), incarnations=(0, 4, 2))
    made = processes(make_run(record, spec), spec, Surroundings("", "", "info"))
    told = [config.load(MemberConfig, process.env).incarnation for process in made]
    assert told == [process.incarnation for process in made] == [0, 0, 0, 4, 2]


def test_the_settings_of_a_process_round_trip() -> None:
    settings = GatewayConfig(port=1, tick_seconds=0.5)
    assert config.load(GatewayConfig, config.environment(settings)) == settings
