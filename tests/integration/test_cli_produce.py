"""`embermesh produce` against a real broker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from embermesh import cli
from tests.fixtures.kafka_broker import KafkaBroker

ROWS = 50


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("label,C1\n" + "".join(f"{i % 2},value-{i}\n" for i in range(ROWS)))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_rows_become_messages(
    kafka_broker: KafkaBroker, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = f"kafka://{kafka_broker.bootstrap}/produce-{uuid.uuid4().hex[:8]}"
    code, out, err = run(capsys, "produce", str(clicks), topic, "--create", "2", "--json")
    assert code == 0, err
    done = json.loads(out)
    assert (done["rows"], done["messages"], done["bad_lines"]) == (ROWS, ROWS, 0)

    arrow = ("--format", "arrow", "--rows-per-message", "20", "--limit", "45")
    code, out, err = run(capsys, "produce", str(clicks), topic, *arrow)
    assert code == 0, err
    assert out.startswith("45 rows in 3 messages")


def test_a_missing_topic_or_file_is_named(
    kafka_broker: KafkaBroker, clicks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "produce", str(clicks), f"kafka://{kafka_broker.bootstrap}/nope")
    assert (code, out) == (2, "")
    assert "'nope'" in err
    code, out, err = run(capsys, "produce", "/gone.csv", f"kafka://{kafka_broker.bootstrap}/nope")
    assert (code, out) == (2, "")
    assert "/gone.csv" in err


def test_a_malformed_topic_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("clicks", "kafka://host:1", "kafka://host:1/a/b", "http://host:1/clicks"):
        code, out, err = run(capsys, "produce", "clicks.csv", wrong)
        assert (code, out) == (2, "")
        assert "kafka://127.0.0.1:9092/clicks" in err
