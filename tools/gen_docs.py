"""Writes what comes from the code: docs/cli.md, docs/jobspec.md, docs/metrics.md and the Grafana
dashboards; and what the Helm chart must carry in its own folder: the dashboards, the alert rules
and the rights of the gateway.

`python -m tools.gen_docs` writes them; with `--check` it only says which are not current (exit 1).
"""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.kubernetes import rbac
from tools import dashboards, doc_cli, doc_jobspec, doc_metrics, grafana

ROOT = Path(__file__).resolve().parent.parent
_RULES = ROOT / "deploy" / "prometheus" / "rules.yml"


def documents(root: Path) -> dict[Path, str]:
    """Path -> text as it must be."""
    boards = {f"{d.uid}.json": grafana.render(d) for d in dashboards.ALL}
    chart = root / "helm" / "embermesh" / "files"
    return {
        **{root / "deploy" / "grafana" / "dashboards" / n: text for n, text in boards.items()},
        **{chart / "dashboards" / n: text for n, text in boards.items()},
        chart / "rules.yml": _RULES.read_text(),
        root / "docs" / "cli.md": doc_cli.render(),
        root / "docs" / "jobspec.md": doc_jobspec.render(),
        root / "helm" / "embermesh" / "files" / "rbac-rules.yaml": rbac.render(),
        root / "docs" / "metrics.md": doc_metrics.render(root),
    }


def main(arguments: list[str]) -> int:
    """0: done or current, 1: something is not current, 2: unknown argument."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m tools.gen_docs [--check]\n")
        return 2
    stale = [
        (path, text)
        for path, text in documents(ROOT).items()
        if not path.exists() or path.read_text() != text
    ]
    for path, text in stale:
        if arguments:
            relative = path.relative_to(ROOT)
            sys.stderr.write(f"{relative} is not current: run `python -m tools.gen_docs`\n")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
