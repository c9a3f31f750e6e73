"""All jobs and services at a glance."""

from __future__ import annotations

from tools.dashboards.queries import RANGE, p95
from tools.grafana import Dashboard, Panel, Query, Row

DASHBOARD = Dashboard(
    uid="embermesh-fleet",
    title="Embermesh fleet",
    text="All jobs and services at a glance.",
    rows=[
        Row(
            "Now",
            [
                Panel(
                    "Jobs running",
                    "Jobs in state running.",
                    [Query('max(embermesh_jobs{state="running"})', "jobs")],
                    stat=True,
                ),
                Panel(
                    "Samples per second",
                    "Rows trained by all jobs.",
                    [Query("sum(job:embermesh_trainer_samples:rate1m)", "samples/s")],
                    stat=True,
                ),
                Panel(
                    "Embedding rows",
                    "Rows held by all sparse-PS.",
                    [Query("sum(member:embermesh_sparse_rows:sum)", "rows")],
                    stat=True,
                ),
                Panel(
                    "Memory of rows",
                    "Rows and their index, all sparse-PS.",
                    [Query("sum(embermesh_sparse_bytes)", "bytes")],
                    unit="bytes",
                    stat=True,
                ),
                Panel(
                    "Leading gateways",
                    "One acts; none: nothing is started, mended or ended.",
                    [Query("sum(embermesh_gateway_leader)", "leaders")],
                    stat=True,
                ),
                Panel(
                    "Alerts firing",
                    "docs/operations.md has a section for each.",
                    [Query('count(ALERTS{alertstate="firing"}) or vector(0)', "alerts")],
                    stat=True,
                ),
            ],
        ),
        Row(
            "Jobs",
            [
                Panel(
                    "Jobs by state",
                    "As the gateway counts them.",
                    [Query("max by (state) (embermesh_jobs)", "{{state}}")],
                ),
                Panel(
                    "Samples per second by job",
                    "Rows trained, summed over each job's trainers.",
                    [Query("job:embermesh_trainer_samples:rate1m", "{{job}}")],
                    stacked=True,
                ),
                Panel(
                    "Restarts and failed looks",
                    "Generations lost to a failure, and looks at a job that failed, in 15 minutes.",
                    [
                        Query("sum(increase(embermesh_job_restarts_total[15m]))", "restarts"),
                        Query(
                            "sum(increase(embermesh_gateway_reconcile_errors_total[15m]))",
                            "failed looks",
                        ),
                    ],
                ),
            ],
        ),
        Row(
            "Processes",
            [
                Panel(
                    "Memory, share of the limit",
                    "Of the container's limit, else of the machine's memory.",
                    [
                        Query(
                            'member:embermesh_process_memory:share{role!=""}',
                            "{{job}} {{role}} {{rank}}",
                        )
                    ],
                    unit="percentunit",
                    top=1,
                ),
                Panel(
                    "CPU, share of the limit",
                    "Of the container's quota, else of the CPUs it may run on.",
                    [
                        Query(
                            f'rate(process_cpu_seconds_total{{role!=""}}[{RANGE}]) '
                            "/ embermesh_process_cpus",
                            "{{job}} {{role}} {{rank}}",
                        )
                    ],
                    unit="percentunit",
                ),
                Panel(
                    "Processes that answer",
                    "Targets whose metrics could be read, by job and role.",
                    [Query("sum by (job, role, service) (up)", "{{job}} {{role}}{{service}}")],
                    decimals=0,
                ),
            ],
        ),
        Row(
            "Calls",
            [
                Panel(
                    "REST latency, 95th percentile",
                    "Time to answer, by route.",
                    [p95("embermesh_http_seconds", "route", "{{route}}", over="5m")],
                    unit="s",
                ),
                Panel(
                    "REST requests",
                    "Per second, by status.",
                    [
                        Query(
                            f"sum by (status) (rate(embermesh_http_seconds_count[{RANGE}]))",
                            "{{status}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Faults",
                    "Share of calls between processes, of REST requests, and of the gateway's "
                    "requests to Kubernetes, that failed by no fault of the caller.",
                    [
                        Query("job:embermesh_rpc_faults:ratio5m", "calls of {{job}}"),
                        Query("service:embermesh_http_faults:ratio5m", "REST"),
                        Query("service:embermesh_kubernetes_faults:ratio5m", "Kubernetes API"),
                    ],
                    unit="percentunit",
                ),
            ],
        ),
        Row(
            "Around us",
            [
                Panel(
                    "Kubernetes API, 95th percentile",
                    "Time of one request of the gateway, by method; target kubernetes.",
                    [
                        p95(
                            "embermesh_kubernetes_request_seconds",
                            "method",
                            "{{method}}",
                            over="5m",
                        )
                    ],
                    unit="s",
                ),
                Panel(
                    "Kubernetes API requests",
                    "Per second, by status; none: no answer.",
                    [
                        Query(
                            "sum by (status) "
                            f"(rate(embermesh_kubernetes_request_seconds_count[{RANGE}]))",
                            "{{status}}",
                        )
                    ],
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Certificates end in",
                    "The first to end, where processes have certificates; "
                    "EmbermeshCertificateExpires warns below 14 days.",
                    [
                        Query(
                            "min by (certificate) "
                            "(embermesh_tls_certificate_expiry_timestamp_seconds) - time()",
                            "{{certificate}}",
                        )
                    ],
                    unit="s",
                ),
            ],
        ),
        Row(
            "Autoscaling",
            [
                Panel(
                    "Replicas wanted",
                    "What the autoscaler wants, of jobs that ask for it.",
                    [
                        Query(
                            "max by (job, role) (embermesh_autoscale_wanted_replicas)",
                            "{{job}} {{role}}",
                        )
                    ],
                    decimals=0,
                ),
                Panel(
                    "Load",
                    "Share of what the present replicas can do; above 1 they are too few.",
                    [Query("max by (job, role) (embermesh_autoscale_load)", "{{job}} {{role}}")],
                    decimals=2,
                ),
                Panel(
                    "Decisions",
                    "Changes of the number of replicas in 15 minutes.",
                    [
                        Query(
                            "sum by (role, direction) "
                            "(increase(embermesh_autoscale_decisions_total[15m]))",
                            "{{role}} {{direction}}",
                        )
                    ],
                    decimals=0,
                ),
            ],
        ),
    ],
)
