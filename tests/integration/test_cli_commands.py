"""The command line against a real cluster: answers, exit codes, what stays out of stdout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embermesh import cli
from embermesh.cluster import LocalCluster
from embermesh.processes import ProcessId, wait_until
from tests.fixtures.ports import find_free_port

SPEC = """
name: tiny
model: {name: lr}
data: {source: "synthetic://criteo?rows=6000&holdout=1000"}
features: {dense: I1..I13, sparse: {C1..C26: {dim: 2}}}
training: {batch_size: 500, seed: 7}
resources: {sparse_ps: 2, dense_ps: 1, trainers: 1}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a running cluster."""
    cluster = LocalCluster(tmp_path_factory.mktemp("cli") / "state")
    cluster.up(port=find_free_port())
    yield cluster.folder
    cluster.down()


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`embermesh ARGUMENTS…` on that cluster: exit code, standard output, standard error."""
    monkeypatch.setenv("EMBERMESH_STATE_DIR", str(folder))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(f"{SPEC}checkpoint: {{to: 'file://{tmp_path}/checkpoints', keep: 2}}\n")
    return path


@pytest.mark.slow
def test_a_job_from_submit_to_restore(run: Run, spec: Path) -> None:
    code, out, err = run("submit", str(spec), "--watch", "--json")
    assert code == 0, err
    job: dict[str, Any] = json.loads(out)
    assert job["state"] == "succeeded"
    assert job["progress"]["samples"] == 6000
    name = job["id"]
    assert f"{name} succeeded, 6,000 of 6,000 samples" in err

    assert run("jobs")[1].count(name) == 1
    assert [j["id"] for j in json.loads(run("jobs", "--json")[1])] == [name]
    assert "test AUC" in run("get", name)[1]
    kinds = [e["kind"] for e in json.loads(run("events", name, "--json")[1])]
    assert "running" in kinds and kinds[-1] == "succeeded"  # a watch may miss so short a run

    logs = run("logs", name, "--tail", "3")[1]
    for process in ("trainer-0", "sparse-ps-0", "sparse-ps-1", "dense-ps-0"):
        assert f"==> {process} <==" in logs
    followed = run("logs", name, "--role", "trainer", "--rank", "0", "--follow")[1]
    assert "==>" not in followed
    assert "evaluated" in followed

    (checkpoint,) = json.loads(run("checkpoints", name, "--json")[1])
    assert checkpoint["id"] in run("checkpoints", name)[1]
    code, out, err = run("restore", name, "--sparse-ps", "3", "--watch", "--json")
    assert code == 0, err
    again = json.loads(out)
    assert again["result"] == job["result"]
    assert again["spec"]["resources"]["sparse_ps"] == 3


@pytest.mark.slow
def test_a_failed_job_is_exit_code_1_with_its_reason(run: Run, tmp_path: Path) -> None:
    spec = tmp_path / "failing.yaml"
    source = f"file://{tmp_path}/gone.tsv.gz"
    text = SPEC.replace("synthetic://criteo?rows=6000&holdout=1000", source)
    spec.write_text(text + "max_restarts: 0\n")
    code, out, err = run("submit", str(spec), "--watch", "--json")
    assert code == 1
    assert json.loads(out)["state"] == "failed"
    assert "gone.tsv.gz" in err


def test_a_wrong_spec_is_exit_code_2_and_names_every_field(run: Run, tmp_path: Path) -> None:
    spec = tmp_path / "wrong.yaml"
    spec.write_text(SPEC.replace("batch_size", "batch_sise") + "modle: lr\n")
    code, out, err = run("submit", str(spec), "--json")
    assert (code, out) == (2, "")
    assert "training.batch_sise" in err
    assert "modle" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("get", "nope"), 2, "nope"),
        (("get", "nope", "--json"), 2, "nope"),
        (("cancel", "nope"), 2, "nope"),
        (("logs", "nope"), 2, "nope"),
        (("scale", "nope", "--trainers", "0"), 2, "trainers"),
        (("scale", "nope"), 2, "give trainers, sparse_ps or dense_ps"),
        (("scale", "nope", "--dense-ps", "2"), 2, "nope"),
        (("submit", "/no/such/file.yaml"), 2, "/no/such/file.yaml"),
        (("frobnicate",), 2, "frobnicate"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_a_request_that_does_not_fit_is_exit_code_1(run: Run, spec: Path) -> None:
    job = json.loads(run("submit", str(spec), "--json")[1])["id"]
    assert run("cancel", job)[0] == 0
    code, out, err = run("checkpoint", job)
    assert (code, out) == (1, "")
    assert job in err


def test_an_unreachable_gateway_is_exit_code_3(
    run: Run, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERMESH_URL", f"http://127.0.0.1:{free_port}")
    code, out, err = run("jobs", "--json")
    assert (code, out) == (3, "")
    assert f"127.0.0.1:{free_port}" in err
    assert "embermesh up" in err


def test_up_and_doctor_answer_in_json(run: Run, folder: Path) -> None:
    code, out, _ = run("up", "--json")
    assert code == 0
    url = json.loads(out)["url"]
    checks = {c["name"]: c for c in json.loads(run("doctor", "--json")[1])}
    assert checks["gateway"]["found"] == f"{url} ready"
    assert checks["Python"]["ok"]


def test_down_ends_the_processes_of_jobs(run: Run, folder: Path, spec: Path) -> None:
    """Runs last in this module: it takes the cluster down."""
    spec.write_text(spec.read_text().replace("rows=6000", "rows=90000000"))
    job = json.loads(run("submit", str(spec), "--json")[1])["id"]

    def processes() -> list[ProcessId]:
        texts = [path.read_text() for path in folder.glob(f"jobs/{job}/*/*.pid")]
        return [ProcessId.from_text(text) for text in texts if text]

    assert wait_until(lambda: len(processes()) == 4, 30)
    code, out, err = run("down")
    assert (code, out) == (0, "stopped\n")
    assert f"cancelling {job}" in err
    assert not any(process.alive() for process in processes())
    assert "no cluster is running" in run("down")[1]
