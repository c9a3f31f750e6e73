"""What people see of the API's answers: tables and short texts. Scripts use `--json` instead."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embermesh.contexts import UserConfig
from embermesh.doctor import Check
from services.api.access import TenantView, TokenView
from services.api.views import (
    CheckpointView,
    EventView,
    JobSize,
    JobState,
    JobView,
    MemberView,
    Progress,
)

_COLORS = {
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.PAUSED: "magenta",
}


def jobs_table(jobs: Sequence[JobView]) -> Table:
    """One line per job."""
    table = _table("job", "state", "samples", "samples/s", "loss", "AUC", "test AUC", "age")
    for job in jobs:
        progress, result = job.progress, job.result
        speed = "" if job.state.at_rest else count(progress.samples_per_second)
        table.add_row(
            job.id,
            state_text(job.state),
            samples_text(progress),
            speed,
            number(progress.loss),
            number(progress.auc),
            number(result.auc) if result else "",
            age(job.created),
        )
    return table


def job_details(console: Console, job: JobView) -> None:
    """Everything about one job."""
    facts = _table("", "", header=False)
    for name, value in _facts(job):
        if value:
            facts.add_row(name, value)
    console.print(facts)
    if job.members:
        console.print(_members_table(job.members))


def checkpoints_table(checkpoints: Iterable[CheckpointView]) -> Table:
    """One line per checkpoint."""
    table = _table("checkpoint", "age", "samples", "rows", "size", "manifest")
    for c in checkpoints:
        table.add_row(
            c.id, age(c.created), count(c.samples), count(c.rows), size(c.bytes), escape(c.uri)
        )
    return table


def events_table(events: Iterable[EventView]) -> Table:
    """One line per event, oldest first."""
    table = _table("age", "event", "message")
    for event in events:
        table.add_row(age(event.time), event.kind, escape(event.message))
    return table


def tokens_table(tokens: Iterable[TokenView]) -> Table:
    """One line per token."""
    table = _table("id", "name", "tenant", "role", "age", "expires in", "made by")
    for token in tokens:
        left = "never" if token.expires is None else age(2 * time.time() - token.expires)
        table.add_row(
            *(token.id, escape(token.name), token.tenant, str(token.role), age(token.created)),
            *(left, escape(token.by)),
        )
    return table


def tenants_table(tenants: Iterable[TenantView]) -> Table:
    """One line per tenant: used / bound."""
    table = _table("tenant", "jobs", "trainers", "memory")
    for tenant in tenants:
        used, bound = tenant.usage, tenant.quota
        memory = "" if bound.memory_bytes is None else f" / {size(bound.memory_bytes)}"
        table.add_row(
            tenant.tenant,
            f"{used.jobs}{'' if bound.jobs is None else f' / {bound.jobs}'}",
            f"{used.trainers}{'' if bound.trainers is None else f' / {bound.trainers}'}",
            f"{size(used.memory_bytes)}{memory}",
        )
    return table


def contexts_table(known: UserConfig) -> Table:
    """One line per context."""
    table = _table("", "context", "gateway", "token file")
    for name, context in sorted(known.contexts.items()):
        mark = "*" if name == known.current else ""
        table.add_row(mark, name, escape(context.url), escape(context.token_file))
    return table


def job_size(console: Console, job: JobSize) -> None:
    """What a dry run found."""
    table = _table("table", "dim", "rows", "known from", "bytes/row", "memory")
    for t in job.tables:
        table.add_row(
            *(t.name, str(t.dim), count(t.rows), t.rows_from, str(t.row_bytes), size(t.bytes))
        )
    console.print(table)
    console.print(
        f"{count(job.rows)} rows, {size(job.memory_bytes)} on {job.shards} sparse-PS shards "
        f"(the largest {size(job.shard_memory_bytes)}); a step of one of {job.trainers} trainers "
        f"pulls and pushes at most {size(job.step.pull_bytes)} each",
        soft_wrap=True,
    )
    for line in job.shortages:
        console.print(f"no room: {line}", soft_wrap=True, markup=False)


def checks_table(checks: Iterable[Check]) -> Table:
    """One line per check of `doctor`; advice only where something is missing."""
    table = _table("", "part", "found", "advice")
    for check in checks:
        mark = (
            "[green]ok[/green]"
            if check.ok
            else "[red]missing[/red]"
            if check.needed
            else "[yellow]none[/yellow]"
        )
        table.add_row(
            mark, check.name, escape(check.found), "" if check.ok else escape(check.advice)
        )
    return table


def result_text(job: JobView) -> str:
    """The evaluation in a few words; empty before there is one."""
    result = job.result
    if result is None:
        return ""
    best = f" (best possible {number(result.bayes_auc)})" if result.bayes_auc is not None else ""
    loss = f"log loss {number(result.logloss)}"
    return f": test AUC {number(result.auc)}{best}, {loss}, {count(result.samples)} held-out rows"


def progress_line(job: JobView) -> str:
    """One line of plain text: where the job stands, for logs and pipes."""
    progress = job.progress
    parts = [f"{job.id} {job.state}", f"{samples_text(progress)} samples"]
    if progress.samples_per_second:
        parts.append(f"{count(progress.samples_per_second)}/s")
    parts += [
        f"{name} {number(v)}"
        for name, v in (("loss", progress.loss), ("AUC", progress.auc))
        if v is not None
    ]
    return ", ".join(parts)


def state_text(state: JobState) -> str:
    """The state in its colour."""
    color = _COLORS.get(state, "cyan")
    return f"[{color}]{state}[/{color}]"


def samples_text(progress: Progress) -> str:
    """Rows trained, of how many where that is known."""
    total = f" of {count(progress.total_samples)}" if progress.total_samples else ""
    return f"{count(progress.samples)}{total}"


def count(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}"


def number(value: float | None) -> str:
    """Four decimals; nothing for nothing."""
    return "" if value is None else f"{value:.4f}"


def size(octets: int) -> str:
    """Bytes in a unit people read."""
    value = float(octets)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def age(then: float) -> str:
    """Time since a Unix timestamp, in its biggest unit."""
    seconds = max(0.0, time.time() - then)
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def _facts(job: JobView) -> list[tuple[str, str]]:
    progress, result, checkpoint = job.progress, job.result, job.checkpoint
    facts = [
        ("job", job.id),
        ("state", state_text(job.state)),
        ("error", escape(job.error)),
        ("generation", f"{job.generation} ({job.restarts} restarts)"),
        ("age", age(job.created)),
        ("samples", samples_text(progress)),
        ("samples/s", "" if job.state.at_rest else count(progress.samples_per_second)),
        ("loss", number(progress.loss)),
        ("AUC", number(progress.auc)),
        ("rows", count(progress.rows) if progress.rows else ""),
        ("bad rows", count(progress.bad_rows) if progress.bad_rows else ""),
        ("lag", "" if progress.lag is None else count(progress.lag)),
    ]
    if result is not None:
        facts += [
            ("test AUC", number(result.auc)),
            ("test log loss", number(result.logloss)),
            ("best possible AUC", number(result.bayes_auc)),
        ]
    if checkpoint is not None:
        facts.append(
            (
                "checkpoint",
                escape(f"{checkpoint.id} ({age(checkpoint.created)} old) {checkpoint.uri}"),
            )
        )
    return facts


def _members_table(members: Sequence[MemberView]) -> Table:
    table = _table("process", "phase", "address", "metrics", "says")
    for m in members:
        says = m.error or ", ".join(
            f"{k} {_short(v)}" for k, v in m.status.items() if isinstance(v, int | float)
        )
        metrics = f"http://{m.metrics_address}/metrics" if m.metrics_address else ""
        table.add_row(f"{m.role}-{m.rank}", m.phase, m.address, metrics, escape(says))
    return table


def _short(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(*columns: str, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, show_header=header, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
