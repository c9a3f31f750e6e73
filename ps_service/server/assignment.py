"""What one attempt of a job asks of one server, and the check that a caller belongs to that
attempt.
"""

from __future__ import annotations

import dataclasses
import enum

from ps_service.sharding import ShardMap
from services.api import spec
from services.api.spec import JobSpec
from services.kit import usage
from services.kit.discovery import Run
from services.kit.errors import Conflict, InvalidInput
from services.wire import ps_pb2

_SPARE_THREADS = 16
_USUAL_SHARD_THREADS = 8  # at most, if nobody asked: a request of usual size keeps no more busy
_MOST_SHARD_THREADS = 256
_MOST_STANDBY_MB = 65_536


def threads_of_shard(asked: int, cpus: float) -> int:
    """Threads for one large request of a sparse shard: those that were asked for, or with 0 the
    CPUs that its process may use. Raises InvalidInput for a number out of bounds.
    """
    if not 0 <= asked <= _MOST_SHARD_THREADS:
        raise InvalidInput(f"shard_threads is {asked}, must be 0 to {_MOST_SHARD_THREADS}")
    return asked or min(max(1, int(cpus)), _USUAL_SHARD_THREADS)


def standby_of_shard(megabytes: int, memory: int) -> int:
    """Bytes that stand by for new rows of a sparse shard: those that were asked for, but no more
    than an eighth of the `memory`, in bytes, that its process may use. Raises InvalidInput for a
    number out of bounds.
    """
    if not 0 <= megabytes <= _MOST_STANDBY_MB:
        raise InvalidInput(f"standby_mb is {megabytes}, must be 0 to {_MOST_STANDBY_MB}")
    return min(megabytes << 20, memory // 8)


class Pace(enum.Enum):
    """When a trainer's dense pushes take effect."""

    TOGETHER = "together"  # once those of all trainers for the step are there
    ON_ARRIVAL = "on-arrival"
    MERGED = "merged"  # local steps, whose outcomes are merged now and then


_PACES = {"async": Pace.ON_ARRIVAL, "kstep": Pace.MERGED}


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Fixed for the life of a server process."""

    job: str
    generation: int
    rank: int  # shard (sparse) or block (dense)
    peers: int  # servers of the same role
    shard_map: ShardMap
    trainers: int  # members of the barriers are ranks 0..trainers-1
    sync: bool  # sparse pushes wait for all trainers
    restore: str = ""  # manifest to start from; empty = from scratch
    pace: Pace = Pace.TOGETHER  # of dense pushes
    shard_threads: int = 1  # that work on one large request of a sparse shard
    standby_bytes: int = 0  # of memory, that stand by for new rows of a sparse shard

    @property
    def threads(self) -> int:
        """Calls the server must be able to have in progress: a waiting push of every trainer, a
        retry of each, and some that don't wait.
        """
        return _SPARE_THREADS + 2 * self.trainers

    @classmethod
    def of_sparse(cls, run: Run, rank: int, threads: int = 0, standby_mb: int = 0) -> Assignment:
        """Shard `rank` of the run; `threads` as in threads_of_shard, `standby_mb` as in
        standby_of_shard. Raises InvalidInput for a bad spec, a rank there is not, or a number out
        of bounds.
        """
        job = spec.validate(run.spec)
        assignment = cls._of(run, rank, job, job.resources.sparse_ps)
        threads = threads_of_shard(threads, usage.cpu_limit())
        standby = standby_of_shard(standby_mb, usage.memory_limit())
        return dataclasses.replace(assignment, shard_threads=threads, standby_bytes=standby)

    @classmethod
    def of_dense(cls, run: Run, rank: int) -> Assignment:
        """Block `rank` of the run. Raises InvalidInput for a bad spec or a rank there is not."""
        job = spec.validate(run.spec)
        return cls._of(run, rank, job, job.resources.dense_ps)

    @classmethod
    def _of(cls, run: Run, rank: int, job: JobSpec, peers: int) -> Assignment:
        if not 0 <= rank < peers:
            raise InvalidInput(f"rank {rank} is not in 0..{peers - 1} of the job's servers")
        return cls(
            job=run.job,
            generation=run.generation,
            rank=rank,
            peers=peers,
            shard_map=ShardMap.of(run.epoch, run.owners, job.resources.sparse_ps),
            trainers=job.resources.trainers,
            sync=job.training.mode == "sync",
            restore=run.restore,
            pace=_PACES.get(job.training.mode, Pace.TOGETHER),
        )

    def admit(self, caller: ps_pb2.Caller) -> None:
        """Raises Conflict with both values when the caller is of another generation or epoch."""
        if caller.generation != self.generation:
            raise Conflict(
                f"generation {caller.generation} calls, this server is of {self.generation}"
            )
        if caller.epoch != self.shard_map.epoch:
            raise Conflict(
                f"epoch {caller.epoch} calls, the shard map is at {self.shard_map.epoch}"
            )
