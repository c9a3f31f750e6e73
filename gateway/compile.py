"""A job's record -> what its next generation needs: the Run its processes read, and the processes.
Pure.
"""

from __future__ import annotations

import dataclasses

from gateway.record import JobRecord
from gateway.targets import ProcessSpec
from ps_service.sharding import ShardMap, embedded_blocks
from services.api.spec import JobSpec
from services.kit import config
from services.kit.discovery import Role, Run
from services.kit.member import MemberConfig
from services.kit.tls import TlsConfig
from services.kit.tracing import TracingConfig

PARTITIONS = 1024  # P of every job; a checkpoint of another P can't be restored
_MODULES: dict[Role, tuple[str, tuple[str, ...]]] = {
    Role.SPARSE_PS: ("ps_service", ("sparse",)),
    Role.DENSE_PS: ("ps_service", ("dense",)),
    Role.TRAINER: ("trainer_service", ()),
}
_COMMON_ENV = {
    "PYTHONUNBUFFERED": "1",  # a killed process's last lines are in its log
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What processes must know of the platform, from the gateway's settings."""

    redis_url: str
    host: str  # interface of their ports
    log_level: str
    tls: TlsConfig | None = None  # certificates, where the gateway has them: the processes' too
    otlp: TracingConfig | None = None  # where traces go, where the gateway's do
    shard_threads: int = 0
    standby_mb: int = 256
    plan_threads: int = 1


def make_run(record: JobRecord, spec: JobSpec) -> Run:
    """The record's present generation as its processes read it; its partition map is even."""
    shards = ShardMap.even(PARTITIONS, spec.resources.sparse_ps)
    return Run(
        job=record.id,
        generation=record.generation,
        spec=record.spec,
        epoch=shards.epoch,
        owners=shards.owners.tolist(),
        restore=record.restore,
        incarnations=list(record.incarnations),
    )


def expected(spec: JobSpec) -> list[tuple[Role, int]]:
    """(role, rank) of every process of a generation, servers first."""
    resources = spec.resources
    ranks = {
        Role.SPARSE_PS: range(0 if resources.embedded else resources.sparse_ps),
        Role.DENSE_PS: range(embedded_blocks(resources), resources.dense_ps),
        Role.TRAINER: range(resources.trainers),
    }
    return [(role, rank) for role in ranks for rank in ranks[role]]


def processes(run: Run, spec: JobSpec, around: Surroundings) -> list[ProcessSpec]:
    """All processes of the run's generation."""
    pods = spec.resources.pods
    sizes = {
        Role.SPARSE_PS: pods.sparse_ps,
        Role.DENSE_PS: pods.dense_ps,
        Role.TRAINER: pods.trainer,
    }
    specs = []
    for role, rank in expected(spec):
        module, arguments = _MODULES[role]
        member = MemberConfig(
            job=run.job,
            generation=run.generation,
            rank=rank,
            incarnation=run.incarnation(role, rank),
            redis_url=around.redis_url,
            host=around.host,
            log_level=around.log_level,
            shard_threads=around.shard_threads,
            standby_mb=around.standby_mb,
            plan_threads=around.plan_threads,
        )
        env = {**_COMMON_ENV, **config.environment(member)}
        if around.tls is not None:
            env |= config.environment(around.tls)
        if around.otlp is not None:
            env |= config.environment(around.otlp)
        place = (run.job, run.generation, role, rank)
        size = sizes[role]
        specs.append(ProcessSpec(*place, module, arguments, env, member.incarnation, size))
    return specs
