"""The trainer's metrics. Histograms are in seconds or steps, counters end in _total."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.kit.telemetry import LATENCY_BUCKETS

_STALENESS_BUCKETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


class TrainerMetrics:
    """Declared once per process against its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.samples = Counter(
            "embermesh_trainer_samples_total", "Rows trained in this generation.", registry=registry
        )
        self.steps = Counter(
            "embermesh_trainer_steps_total",
            "Steps taken, those without rows included.",
            registry=registry,
        )
        self.idle_steps = Counter(
            "embermesh_trainer_idle_steps_total",
            "Steps taken without rows: other trainers' barriers pass while the stream is silent.",
            registry=registry,
        )
        self.projected_steps = Counter(
            "embermesh_trainer_projected_steps_total",
            "Steps whose first layer was computed by distinct rows, see training.project.",
            registry=registry,
        )
        self.phase_seconds = Histogram(
            "embermesh_trainer_phase_seconds",
            "Time of one mini-batch by phase: wait (for a planned batch), pull (waiting for its "
            "rows), step (gathering them included), push (both servers, barriers included); beside "
            "them plan, and ahead (pulling rows of a later batch).",
            ["phase"],
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.pause_seconds = Histogram(
            "embermesh_trainer_pause_seconds",
            "Time the trainer stood still for a checkpoint.",
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.staleness = Histogram(
            "embermesh_trainer_staleness_steps",
            "Steps between the read of a batch's rows and the write of their gradients.",
            buckets=_STALENESS_BUCKETS,
            registry=registry,
        )
        self.stale_batches = Counter(
            "embermesh_trainer_stale_batches_total",
            "Batches whose staleness was above the job's bound.",
            registry=registry,
        )
        self._declare_rows(registry)
        self._declare_gauges(registry)

    def _declare_rows(self, registry: CollectorRegistry) -> None:
        self.keys = Counter(
            "embermesh_trainer_keys_total",
            "Distinct keys pulled, summed over steps.",
            registry=registry,
        )
        self.refreshed_rows = Counter(
            "embermesh_trainer_refreshed_rows_total",
            "Rows of later batches that came with the reply to the push that changed them.",
            registry=registry,
        )
        self.missing_keys = Counter(
            "embermesh_trainer_missing_keys_total",
            "Keys whose gradient was skipped because the row was gone at the push.",
            registry=registry,
        )
        self.bad_rows = Counter(
            "embermesh_trainer_bad_rows_total", "Malformed rows skipped.", registry=registry
        )

    def _declare_gauges(self, registry: CollectorRegistry) -> None:
        self.loss = Gauge(
            "embermesh_trainer_loss",
            "Progressive log loss of the recent window.",
            registry=registry,
        )
        self.auc = Gauge(
            "embermesh_trainer_auc", "Progressive AUC of the recent window.", registry=registry
        )
        self.copc = Gauge(
            "embermesh_trainer_copc",
            "Clicks over predicted clicks of the recent window; 1 is calibrated.",
            registry=registry,
        )
        self.staleness_bound = Gauge(
            "embermesh_trainer_staleness_bound_steps",
            "The job's training.staleness.",
            registry=registry,
        )
        self.stepping = Gauge(
            "embermesh_trainer_stepping",
            "1 while this trainer has steps to take, 0 before it is ready and after its last.",
            registry=registry,
        )
        self.xla = Gauge(
            "embermesh_trainer_xla",
            "1 if the step is compiled by XLA, 0 if it runs as a TensorFlow graph.",
            registry=registry,
        )
        self.lag = Gauge(
            "embermesh_trainer_lag", "Messages of the stream not read yet.", registry=registry
        )
