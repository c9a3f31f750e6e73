"""`embermesh token`, `tenant` and `plan` against a closed gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import yaml

from embermesh import cli
from gateway.access_config import AccessConfig
from gateway.identity import digest
from tests.integration.gateway_harness import SPEC, Harness, running_gateway

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    monkeypatch.setenv("EMBERMESH_STATE_DIR", str(tmp_path / "none"))

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def admin_token(run: Run) -> str:
    made = json.loads(run("token", "generate", "--json")[1])
    assert made["setting"] == "EMBERMESH_ACCESS_ADMIN_DIGEST"
    assert made["digest"] == digest(made["token"])
    return str(made["token"])


@pytest.fixture
def harness(
    redis_db: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    admin_token: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Harness]:
    access = AccessConfig(admin_digest=digest(admin_token))
    with running_gateway(redis_url, tmp_path, access) as harness:
        monkeypatch.setenv("EMBERMESH_URL", str(harness.http.base_url))
        yield harness


def test_from_the_first_token_to_a_job_within_a_quota(
    harness: Harness, run: Run, admin_token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(SPEC))
    code, out, err = run("jobs")
    assert (code, out) == (1, "")
    assert "EMBERMESH_TOKEN" in err

    file = tmp_path / "token"
    file.write_text(f"{admin_token}\n")
    monkeypatch.setenv("EMBERMESH_TOKEN_FILE", str(file))
    code, made, err = run("token", "create", "ci", "--role", "operator", "--tenant", "ads")
    assert code == 0, err
    name = made.split("_")[1]
    assert f"token {name}: operator of tenant ads" in err
    assert run("tenant", "quota", "ads", "--jobs", "1", "--memory-gib", "2")[0] == 0
    listed = run("token", "list")[1]
    assert name in listed
    assert made.strip() not in listed

    monkeypatch.setenv("EMBERMESH_TOKEN", made.strip())  # before the file
    code, out, err = run("plan", str(spec), "--rows", "1000000")
    assert code == 0, err
    assert "assumed" in out
    assert "3,000,000 rows" in out
    first = json.loads(run("submit", str(spec), "--json", "--idempotency-key", "k")[1])
    again = json.loads(run("submit", str(spec), "--json", "--idempotency-key", "k")[1])
    assert first["id"] == again["id"]
    code, out, err = run("submit", str(spec))
    assert (code, out) == (1, "")
    assert "jobs: tenant 'ads' would use 2; its quota is 1" in err
    code, out, err = run("plan", str(spec))
    assert code == 1
    assert "no room: jobs" in out
    assert json.loads(run("jobs", "--all", "--json")[1])[0]["id"] == first["id"]
    code, out, err = run("scale", first["id"], "--trainers", "3", "--version", "99")
    assert code == 1
    assert '"99"' in err

    monkeypatch.delenv("EMBERMESH_TOKEN")
    (tenant,) = [t for t in json.loads(run("tenant", "list", "--json")[1]) if t["tenant"] == "ads"]
    assert tenant["usage"]["jobs"] == 1
    assert "1 / 1" in run("tenant", "list")[1]
    assert run("token", "revoke", name)[0] == 0
    monkeypatch.setenv("EMBERMESH_TOKEN", made.strip())
    assert run("jobs")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("token", "create", "x", "--role", "root"), "root"),
        (("token", "create", "x", "--tenant", "Not A Name"), "tenant"),
        (("token", "create", "x", "--days", "0"), "days"),
        (("token", "revoke", "aaaaaaaaaa"), "there is no token"),
        (("tenant", "quota", "ads", "--jobs", "-1"), "jobs"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    harness: Harness,
    run: Run,
    admin_token: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setenv("EMBERMESH_TOKEN", admin_token)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_token_file_that_is_not_there_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERMESH_TOKEN_FILE", "/no/such/token")
    code, _, err = run("jobs")
    assert code == 2
    assert "/no/such/token" in err
