"""Checkpoints: how old, how large, how long, how often not."""

from __future__ import annotations

from tools.dashboards.queries import JOB, p95
from tools.grafana import Dashboard, Panel, Query, Row, Variable

DASHBOARD = Dashboard(
    uid="embermesh-checkpoints",
    title="Embermesh checkpoints",
    text="How old, how large, how long, how often not.",
    variable=Variable("job", "Job", "embermesh_checkpoint_failures_total"),
    rows=[
        Row(
            "Age",
            [
                Panel(
                    "Age of the newest checkpoint",
                    "Of active jobs.",
                    [
                        Query(
                            "time() - max by (job) "
                            f"(embermesh_checkpoint_last_success_timestamp_seconds{{{JOB}}})",
                            "{{job}}",
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Time to the next one",
                    "Below 0 it is overdue; EmbermeshCheckpointTooOld fires below -10 minutes.",
                    [
                        Query(
                            "max by (job) "
                            f"(embermesh_checkpoint_due_timestamp_seconds{{{JOB}}}) - time()",
                            "{{job}}",
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Failures",
                    "Checkpoints begun and given up in an hour.",
                    [
                        Query(
                            "sum by (job) "
                            f"(increase(embermesh_checkpoint_failures_total{{{JOB}}}[1h]))",
                            "{{job}}",
                        )
                    ],
                    decimals=0,
                ),
            ],
        ),
        Row(
            "Cost",
            [
                Panel(
                    "Size",
                    "All data files of the newest checkpoint.",
                    [Query(f"max by (job) (embermesh_checkpoint_bytes{{{JOB}}})", "{{job}}")],
                    unit="bytes",
                ),
                Panel(
                    "Duration, 95th percentile",
                    "From the first Pause to the manifest, and of it the time trainers stood "
                    "still; all jobs.",
                    [
                        p95("embermesh_checkpoint_seconds", "", "whole", over="10m"),
                        p95("embermesh_checkpoint_pause_seconds", "", "standing still", over="10m"),
                    ],
                    unit="s",
                ),
                Panel(
                    "Writing, 95th percentile",
                    "Time of a server to collect and write its file.",
                    [
                        p95(
                            "embermesh_sparse_snapshot_seconds", "job", "sparse {{job}}", JOB, "10m"
                        ),
                        p95("embermesh_dense_snapshot_seconds", "job", "dense {{job}}", JOB, "10m"),
                    ],
                    unit="s",
                ),
            ],
        ),
        Row(
            "Effect",
            [
                Panel(
                    "Checkpoints",
                    "Complete ones in 10 minutes; all jobs.",
                    [Query("sum(increase(embermesh_checkpoint_seconds_count[10m]))", "complete")],
                    decimals=0,
                ),
                Panel(
                    "Time trainers stood still",
                    "Share of the trainers' time.",
                    [
                        Query(
                            "avg by (job) "
                            f"(rate(embermesh_trainer_pause_seconds_sum{{{JOB}}}[5m]))",
                            "{{job}}",
                        )
                    ],
                    unit="percentunit",
                    decimals=2,
                ),
                Panel(
                    "Rows restored",
                    "Rows the shards loaded from the checkpoint they started from.",
                    [Query(f"sum by (job) (embermesh_sparse_restored_rows{{{JOB}}})", "{{job}}")],
                ),
            ],
        ),
    ],
)
