"""Rows, memory and traffic of the sparse-PS shards."""

from __future__ import annotations

from tools.dashboards.queries import JOB, RANGE, quantiles
from tools.grafana import Dashboard, Panel, Query, Row, Variable

DASHBOARD = Dashboard(
    uid="embermesh-sparse-ps",
    title="Embermesh sparse PS",
    text="Rows, memory and traffic of the shards.",
    variable=Variable("job", "Job", "embermesh_sparse_rows"),
    rows=[
        Row(
            "Size",
            [
                Panel(
                    "Rows by shard",
                    "Embedding rows held.",
                    [Query(f"member:embermesh_sparse_rows:sum{{{JOB}}}", "{{job}} shard {{rank}}")],
                ),
                Panel(
                    "Rows by table",
                    "The ten largest tables, all shards.",
                    [
                        Query(
                            f"topk(10, sum by (table) (embermesh_sparse_rows{{{JOB}}}))",
                            "{{table}}",
                        )
                    ],
                ),
                Panel(
                    "Memory of rows",
                    "Rows and their index, and the filters of admission.",
                    [
                        Query(
                            f"sum by (job, rank) (embermesh_sparse_bytes{{{JOB}}})",
                            "{{job}} shard {{rank}}",
                        ),
                        Query(
                            f"sum by (job) (embermesh_sparse_admission_bytes{{{JOB}}})",
                            "{{job}} filters",
                        ),
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Memory, share of the limit",
                    "Of the process; EmbermeshSparsePsMemory fires above 85 %.",
                    [
                        Query(
                            f'member:embermesh_process_memory:share{{role="sparse-ps", {JOB}}}',
                            "{{job}} shard {{rank}}",
                        )
                    ],
                    unit="percentunit",
                    top=1,
                ),
            ],
        ),
        Row(
            "Traffic",
            [
                Panel(
                    "Keys per second",
                    "Read for training, read without inserting, and updated.",
                    [
                        Query(
                            "sum by (purpose) "
                            f"(rate(embermesh_sparse_pulled_keys_total{{{JOB}}}[{RANGE}]))",
                            "pulled, {{purpose}}",
                        ),
                        Query(
                            f"sum(rate(embermesh_sparse_pushed_keys_total{{{JOB}}}[{RANGE}]))",
                            "pushed",
                        ),
                    ],
                ),
                Panel(
                    "Pull latency",
                    "On the server.",
                    quantiles("embermesh_rpc_seconds", f'service="SparsePs", verb="Pull", {JOB}'),
                    unit="s",
                ),
                Panel(
                    "Push latency",
                    "On the server; mode sync: the wait for the other trainers included.",
                    quantiles("embermesh_rpc_seconds", f'service="SparsePs", verb="Push", {JOB}'),
                    unit="s",
                ),
            ],
        ),
        Row(
            "Keys",
            [
                Panel(
                    "Hit ratio",
                    "Share of training keys that had a row, since the start: the ten lowest "
                    "tables, mean over shards.",
                    [
                        Query(
                            f"bottomk(10, avg by (table) (embermesh_sparse_hit_ratio{{{JOB}}}))",
                            "{{table}}",
                        )
                    ],
                    unit="percentunit",
                    top=1,
                ),
                Panel(
                    "Hottest keys",
                    "Share of a shard's recent training keys that its hottest key has: the ten "
                    "hottest tables.",
                    [
                        Query(
                            "topk(10, max by (table) "
                            f'(embermesh_sparse_hot_key_share{{place="1", {JOB}}}))',
                            "{{table}}",
                        )
                    ],
                    unit="percentunit",
                ),
                Panel(
                    "Rows that come and go",
                    "Per second: admitted, refused, evicted.",
                    [
                        Query(
                            f"sum(rate(embermesh_sparse_admitted_rows_total{{{JOB}}}[{RANGE}]))",
                            "admitted",
                        ),
                        Query(
                            f"sum(rate(embermesh_sparse_rejected_keys_total{{{JOB}}}[{RANGE}]))",
                            "not admitted",
                        ),
                        Query(
                            "sum by (reason) "
                            f"(rate(embermesh_sparse_evicted_rows_total{{{JOB}}}[{RANGE}]))",
                            "evicted, {{reason}}",
                        ),
                    ],
                ),
            ],
        ),
        Row(
            "Skew and index",
            [
                Panel(
                    "Skew",
                    "The busiest shard over the mean; 1 is even, EmbermeshShardSkew fires "
                    "above 1.5.",
                    [
                        Query(f"job:embermesh_sparse_rows:skew{{{JOB}}}", "rows of {{job}}"),
                        Query(
                            f"job:embermesh_sparse_pulled_keys:skew{{{JOB}}}",
                            "pulled keys of {{job}}",
                        ),
                    ],
                    unit="none",
                    decimals=2,
                ),
                Panel(
                    "Bytes per row",
                    "Memory of rows and index over the number of rows; includes what the index "
                    "keeps free.",
                    [
                        Query(
                            f"sum by (job) (embermesh_sparse_bytes{{{JOB}}}) "
                            f"/ sum by (job) (embermesh_sparse_rows{{{JOB}}})",
                            "{{job}}",
                        )
                    ],
                    unit="bytes",
                ),
                Panel(
                    "Index load",
                    "Share of the slots in use.",
                    [
                        Query(
                            f"max by (job, rank) (embermesh_sparse_index_load{{{JOB}}})",
                            "{{job}} shard {{rank}}",
                        )
                    ],
                    unit="percentunit",
                    top=1,
                ),
                Panel(
                    "Cache lines per look-up",
                    "Rows by the lines of index that finding them reads, of a sample of the "
                    "partitions; the last place stands for more.",
                    [
                        Query(
                            f"sum by (lines) (embermesh_sparse_probe_rows{{{JOB}}})",
                            "lines: {{lines}}",
                        )
                    ],
                    stacked=True,
                ),
            ],
        ),
    ],
)
