"""Forms of query that several dashboards share."""

from __future__ import annotations

from tools.grafana import Query

RANGE = "1m"  # of rates: a dozen scrapes
JOB = 'job=~"$job"'


def quantiles(metric: str, labels: str, by: str = "", legend: str = "") -> list[Query]:
    """Median, 95th and 99th percentile of a histogram."""
    grouped = f"le, {by}" if by else "le"
    return [
        Query(
            f"histogram_quantile({q}, "
            f"sum by ({grouped}) (rate({metric}_bucket{{{labels}}}[{RANGE}])))",
            f"{legend} p{q * 100:.0f}".strip(),
        )
        for q in (0.5, 0.95, 0.99)
    ]


def p95(metric: str, by: str, legend: str, labels: str = "", over: str = RANGE) -> Query:
    """The 95th percentile of a histogram, grouped by the labels `by`, over the time `over`."""
    grouped = f"le, {by}" if by else "le"
    selector = f"{{{labels}}}" if labels else ""
    return Query(
        f"histogram_quantile(0.95, sum by ({grouped}) (rate({metric}_bucket{selector}[{over}])))",
        legend,
    )
