"""How well and how fast a job learns."""

from __future__ import annotations

from tools.dashboards.queries import JOB, RANGE, p95, quantiles
from tools.grafana import Dashboard, Panel, Query, Row, Variable

DASHBOARD = Dashboard(
    uid="embermesh-job",
    title="Embermesh job",
    text="How well and how fast a job learns.",
    variable=Variable("job", "Job", "embermesh_trainer_samples_total"),
    rows=[
        Row(
            "Quality",
            [
                Panel(
                    "AUC",
                    "Progressive AUC of the recent window, mean over trainers.",
                    [Query(f"job:embermesh_trainer_auc:avg{{{JOB}}}", "{{job}}")],
                    unit="none",
                    decimals=4,
                ),
                Panel(
                    "Loss",
                    "Progressive log loss of the recent window, mean over trainers.",
                    [Query(f"job:embermesh_trainer_loss:avg{{{JOB}}}", "{{job}}")],
                    unit="none",
                    decimals=4,
                ),
                Panel(
                    "Calibration",
                    "Clicks over predicted clicks; 1 is calibrated, below 1 predicts too much.",
                    [Query(f"avg by (job) (embermesh_trainer_copc{{{JOB}}} != 0)", "{{job}}")],
                    unit="none",
                    decimals=3,
                ),
            ],
        ),
        Row(
            "Speed",
            [
                Panel(
                    "Samples per second",
                    "Rows trained, summed over the trainers.",
                    [Query(f"job:embermesh_trainer_samples:rate1m{{{JOB}}}", "{{job}}")],
                ),
                Panel(
                    "Where a step's time goes",
                    "Share of a trainer's time by phase; without plan and ahead, which run beside.",
                    [
                        Query(
                            "avg by (phase) (rate(embermesh_trainer_phase_seconds_sum"
                            f'{{phase!~"plan|ahead", {JOB}}}[{RANGE}]))',
                            "{{phase}}",
                        )
                    ],
                    unit="percentunit",
                    stacked=True,
                ),
                Panel(
                    "Step phases, 95th percentile",
                    "Seconds of one mini-batch by phase.",
                    [p95("embermesh_trainer_phase_seconds", "phase", "{{phase}}", JOB)],
                    unit="s",
                ),
            ],
        ),
        Row(
            "Freshness",
            [
                Panel(
                    "Staleness",
                    "Steps between the read of a row and the write of its gradient.",
                    [
                        *quantiles("embermesh_trainer_staleness_steps", JOB),
                        Query(
                            f"max by (job) (embermesh_trainer_staleness_bound_steps{{{JOB}}})",
                            "bound of {{job}}",
                        ),
                    ],
                ),
                Panel(
                    "Lag",
                    "Messages of the stream not read yet.",
                    [Query(f"job:embermesh_trainer_lag:sum{{{JOB}}}", "{{job}}")],
                ),
                Panel(
                    "Waiting for data",
                    "Share of the trainers' time.",
                    [Query(f"job:embermesh_trainer_wait:share{{{JOB}}}", "{{job}}")],
                    unit="percentunit",
                    top=1,
                ),
            ],
        ),
        Row(
            "Together",
            [
                Panel(
                    "Barrier wait, 95th percentile",
                    "Time a push waited for the other trainers; sparse-PS in mode sync only.",
                    [
                        p95("embermesh_dense_barrier_seconds", "job", "dense {{job}}", JOB),
                        p95("embermesh_sparse_barrier_seconds", "job", "sparse {{job}}", JOB),
                    ],
                    unit="s",
                ),
                Panel(
                    "Trainers with steps to take",
                    "Those that are ready and not at the end of their data.",
                    [Query(f"sum by (job) (embermesh_trainer_stepping{{{JOB}}})", "{{job}}")],
                    decimals=0,
                ),
                Panel(
                    "Skipped and repeated",
                    "Per second: malformed rows, gradients without a row, repeated pushes.",
                    [
                        Query(
                            f"sum(rate(embermesh_trainer_bad_rows_total{{{JOB}}}[{RANGE}]))",
                            "bad rows",
                        ),
                        Query(
                            f"sum(rate(embermesh_trainer_missing_keys_total{{{JOB}}}[{RANGE}]))",
                            "missing keys",
                        ),
                        Query(
                            f"sum(rate(embermesh_sparse_duplicate_pushes_total{{{JOB}}}[{RANGE}]))",
                            "repeated sparse pushes",
                        ),
                        Query(
                            f"sum(rate(embermesh_dense_duplicate_pushes_total{{{JOB}}}[{RANGE}]))",
                            "repeated dense pushes",
                        ),
                    ],
                ),
            ],
        ),
    ],
)
