"""How rows come and go while a shard serves: the background walk that evicts them, the event clock
that their age is counted to, and the account of both for metrics and operators.

Which rows go is the native core's affair. In mode hybrid one thread walks all partitions, each in
slices of well under a millisecond. In mode sync nothing may depend on a thread's luck: there each
step walks its share of the partitions, before any trainer goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from ps_service import _native, balance
from ps_service.server.metrics import LifecycleMetrics
from ps_service.tables import TableSpec
from services.kit.errors import InvalidInput
from services.kit.telemetry import timed
from services.wire import ps_pb2

log = logging.getLogger(__name__)

SWEEP_SECONDS = 10.0  # for one walk over all partitions
SWEEP_STEPS = 64  # the same in mode sync, in steps
PUBLISH_SECONDS = 5.0
MAX_AHEAD_SECONDS = 86_400.0
HOT_KEYS = 10
_DRAIN_SECONDS = 30.0


class Lifecycle:
    """Of one configured shard. Thread-safe."""

    def __init__(
        self,
        shard: _native.SparseShard,
        tables: Sequence[TableSpec],
        partitions: Sequence[int],
        metrics: LifecycleMetrics,
        *,
        sync: bool,
        now: Callable[[], float] = time.time,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        """`partitions` are those the shard owns. `now` is the wall clock, in Unix seconds."""
        self._shard, self._tables, self._metrics = shard, tuple(tables), metrics
        self._owned = np.asarray(partitions, np.int64)
        self._named = np.zeros(len(self._owned), np.uint64)
        self._evicts = any(table.rows.eviction for table in tables)
        self._partitions = sorted(partitions) if self._evicts else []
        self._sync, self._now, self._sweep_seconds = sync, now, sweep_seconds
        self._event_time = 0
        self._clock = threading.Lock()
        self._evicting = threading.Lock()
        self._publishing = threading.Lock()
        self._published: dict[tuple[str, str], int] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to evict (mode hybrid) and to publish metrics."""
        self._thread = threading.Thread(target=self._work, name="row-lifecycle", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; rows stay."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_DRAIN_SECONDS)

    def observe(self, event_time: int) -> None:
        """A request's events are of this Unix second (0: unknown).

        Raises InvalidInput for one more than a day ahead of this server: all rows would look old.
        """
        bound = self._now() + MAX_AHEAD_SECONDS
        if event_time > bound:
            raise InvalidInput(
                f"event_time is {event_time}, must be <= {int(bound)}: "
                "a day ahead of this server's clock"
            )
        with self._clock:
            self._event_time = max(self._event_time, event_time)

    @property
    def event_time(self) -> int:
        """Of the newest request, in Unix seconds; 0 before the first."""
        return self._event_time

    def held(self) -> AbstractContextManager[bool]:
        """No row is evicted inside it."""
        return self._evicting

    def stepped(self, step: int) -> None:
        """Mode sync: all trainers' pushes of `step` are applied, and none has been answered."""
        for partition in self._partitions:
            if partition % SWEEP_STEPS == step % SWEEP_STEPS:
                self._evict(partition)

    def stats(self) -> list[ps_pb2.TableStats]:
        """Per table in id order."""
        return [
            ps_pb2.TableStats(
                rows=stats.rows,
                pulled=stats.pulled,
                admitted=stats.admitted,
                rejected=stats.rejected,
                dropped=stats.dropped,
                evicted=stats.evicted,
            )
            for stats in self._shard.stats()
        ]

    def publish(self) -> None:
        """Brings the metrics up to date."""
        with self._publishing:
            for table, stats in enumerate(self._shard.stats()):
                self._publish(self._tables[table].name, table, stats)
            index = self._shard.index_stats()
            self._metrics.load.set(index.rows / max(index.slots, 1))
            self._publish_load()
            for lines, rows in enumerate(index.probes, start=1):
                self._metrics.probes.labels(str(lines)).set(rows)

    def _publish_load(self) -> None:
        """How evenly the requests since the last time went to the partitions."""
        named = self._shard.partition_keys()[self._owned]
        spread = balance.spread(named - self._named)
        self._named = named
        if spread is not None:
            self._metrics.partition_peak.set(spread.peak_to_mean)
            self._metrics.partition_top_share.set(spread.top_share)

    def _publish(self, name: str, table: int, stats: _native.TableStats) -> None:
        metrics = self._metrics
        self._count(metrics.trained_keys.labels(name).inc, (name, "pulled"), stats.pulled)
        self._count(metrics.admitted_rows.labels(name).inc, (name, "admitted"), stats.admitted)
        self._count(metrics.rejected_keys.labels(name).inc, (name, "rejected"), stats.rejected)
        self._count(metrics.dropped_gradients.labels(name).inc, (name, "dropped"), stats.dropped)
        for reason, rows in stats.evicted.items():
            self._count(metrics.evicted_rows.labels(name, reason).inc, (name, reason), rows)
        missed = stats.admitted + stats.rejected
        if stats.pulled:
            metrics.hit_ratio.labels(name).set(1.0 - missed / stats.pulled)
        metrics.gate_bytes.labels(name).set(stats.gate_bytes)
        for place, hot in enumerate(self._shard.hot_keys(table, HOT_KEYS), start=1):
            metrics.hot_key_share.labels(name, str(place)).set(hot.share)

    def _count(self, inc: Callable[[float], None], key: tuple[str, str], total: int) -> None:
        """Adds to a counter what came since the last time."""
        inc(total - self._published.get(key, 0))
        self._published[key] = total

    def _work(self) -> None:
        published = 0.0
        pause = PUBLISH_SECONDS
        walks = bool(self._partitions) and not self._sync
        if walks:
            pause = min(pause, self._sweep_seconds / len(self._partitions))
        at = 0
        while not self._stop.wait(pause):
            if walks:
                self._evict(self._partitions[at])
                at = (at + 1) % len(self._partitions)
            if time.monotonic() - published >= PUBLISH_SECONDS:
                self.publish()
                published = time.monotonic()

    def _evict(self, partition: int) -> None:
        now = self._event_time
        if now == 0:
            return  # nothing has an age yet
        with self._evicting, timed(self._metrics.sweep_seconds):
            self._shard.evict(partition, now)
