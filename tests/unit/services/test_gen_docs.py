"""The generated documents are current, complete, and the generator refuses what it can't read."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client
import pytest

from services.api.spec import JobSpec
from services.checkpoint.metrics import CheckpointMetrics
from services.kit.rpc_metrics import ClientMetrics, RpcMetrics
from tests.data import ROOT
from tools import doc_jobspec, doc_metrics, gen_docs


def test_the_committed_documents_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    code = gen_docs.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_stale_document_is_named_and_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gen_docs, "ROOT", tmp_path)
    assert gen_docs.main(["--check"]) == 1
    assert "docs/jobspec.md is not current" in capsys.readouterr().err
    assert gen_docs.main([]) == 0
    assert gen_docs.main(["--check"]) == 0
    assert gen_docs.main(["--chekc"]) == 2


def test_every_field_of_the_spec_is_documented() -> None:
    text = doc_jobspec.render()

    def names(model: type) -> set[str]:
        return set(model.model_fields)  # type: ignore[attr-defined]

    fields = set(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE))
    assert fields >= names(JobSpec)
    assert fields >= {"clip", "bucketize", "last", "every", "batch_size", "sparse_ps", "adagrad"}
    assert "| `every` | duration | none | > 0 |" in text
    assert "| `staleness` | whole number | `4` | ≥ 0, ≤ 64 |" in text
    assert "## `features.sparse.NAME`" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert not [row for row in rows if row.endswith("|  |")], "a field without description"


def test_what_the_sources_declare_is_what_the_processes_serve() -> None:
    registry = prometheus_client.CollectorRegistry()
    CheckpointMetrics(registry)
    RpcMetrics(registry)
    ClientMetrics(registry)
    served = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in registry.collect()
    }
    paths = ("services/checkpoint/metrics.py", "services/kit/rpc_metrics.py")
    declared = {m.name for m in doc_metrics.declared(ROOT) if m.path in paths}
    assert declared == served


GOOD = 'Gauge("embermesh_x_rows", "Rows.", ["table"], registry=r)'


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('Gauge(NAME, "Rows.")', "literals"),
        ('Gauge("embermesh_x_rows", f"Rows of {x}.")', "literals"),
        ('Gauge("embermesh_x_rows")', "literals"),
        ('Gauge("x_rows", "Rows.")', "starts with embermesh_"),
        ('Counter("embermesh_x_rows", "Rows.")', "_total"),
        ('Gauge("embermesh_x_rows_total", "Rows.")', "_total"),
        ('Histogram("embermesh_x_time", "Time.")', "unit"),
        ('Gauge("embermesh_x_rows", "Rows")', "sentence"),
        ('Gauge("embermesh_x_rows", "Rows.", ["key"])', "why key has few values"),
        (f"{GOOD}\n{GOOD}", "twice"),
    ],
)
def test_a_faulty_declaration_is_refused(tmp_path: Path, code: str, words: str) -> None:
    head = "from prometheus_client import Counter, Gauge, Histogram\n"
    source = tmp_path / "gateway" / "metrics.py"
    source.parent.mkdir()
    source.write_text(head + GOOD)
    (metric,) = doc_metrics.declared(tmp_path)
    assert (metric.name, metric.kind, metric.labels) == ("embermesh_x_rows", "gauge", ("table",))
    source.write_text(head + code)
    with pytest.raises(ValueError, match=words):
        doc_metrics.declared(tmp_path)
