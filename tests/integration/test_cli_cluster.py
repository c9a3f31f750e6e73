"""The local cluster with real processes: start, mend, refuse, stop."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from embermesh.client import Client
from embermesh.cluster import ClusterState, LocalCluster
from embermesh.processes import spawn, wait_until
from services.kit import discovery, errors


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "state")
    yield cluster
    if (cluster.folder / "cluster.json").exists():
        cluster.down()


def pids(state: ClusterState) -> dict[str, int]:
    return {name: service.id.pid for name, service in state.services.items()}


def kill(state: ClusterState, *names: str) -> None:
    for name in names:
        os.kill(state.services[name].id.pid, signal.SIGKILL)
    assert wait_until(lambda: not any(state.services[n].id.alive() for n in names), 10)


def test_up_twice_starts_once_and_down_stops_all(cluster: LocalCluster, free_port: int) -> None:
    state = cluster.up(port=free_port)
    assert state.url == f"http://127.0.0.1:{free_port}"
    with Client(state.url) as client:
        assert client.jobs() == []
    assert set(pids(state)) == {"redis", "checkpoint", "gateway"}
    assert len({os.getsid(pid) for pid in pids(state).values()} - {os.getsid(0)}) == 3

    assert cluster.up() == state
    with pytest.raises(errors.Conflict, match="--port"):
        cluster.up(port=free_port + 1)
    with pytest.raises(errors.Conflict, match="--redis-url"):
        cluster.up(redis_url="redis://elsewhere:1/0")
    assert cluster.up() == state

    assert cluster.down() is True
    assert state.running() == {}
    assert cluster.state() is None
    assert cluster.down() is False


def test_up_mends_a_cluster_that_lost_a_process(cluster: LocalCluster, free_port: int) -> None:
    state = cluster.up(port=free_port)
    kill(state, "gateway")
    mended = cluster.up()
    assert mended.url == state.url
    before, after = pids(state), pids(mended)
    assert (before["redis"], before["checkpoint"]) == (after["redis"], after["checkpoint"])
    assert before["gateway"] != after["gateway"]


def test_up_mends_a_cluster_whose_process_is_dying(cluster: LocalCluster, free_port: int) -> None:
    """A killed process has closed its sockets some time before it counts as ended."""
    state = cluster.up(port=free_port)
    kill(state, "gateway")
    dying = spawn(["sleep", "2"], dict(os.environ), cluster.folder / "logs" / "dying.log")
    gateway = state.services["gateway"].model_copy(update={"id": dying})
    record = state.model_copy(update={"services": {**state.services, "gateway": gateway}})
    (cluster.folder / "cluster.json").write_text(record.model_dump_json())

    mended = cluster.up()
    assert not dying.alive(), "up must have found it alive and seen it end"
    assert mended.services["gateway"].id.alive()
    assert mended.services["redis"] == state.services["redis"]
    with Client(mended.url) as client:
        assert client.jobs() == []
    assert cluster.up() == mended


def test_the_state_of_a_dead_cluster_is_not_believed(cluster: LocalCluster, free_port: int) -> None:
    state = cluster.up(port=free_port)
    kill(state, "gateway", "checkpoint", "redis")
    again = cluster.up()  # on the same port as before
    assert again.url == state.url
    assert not set(pids(again).values()) & set(pids(state).values())

    kill(again, "gateway", "checkpoint", "redis")
    assert cluster.down() is False  # nothing was running
    assert cluster.state() is None


def test_a_port_in_use_is_named_and_nothing_is_left_behind(cluster: LocalCluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.InvalidInput, match=f"port {port} is in use"):
            cluster.up(port=port)
    assert cluster.state() is None


def test_a_redis_of_ones_own_is_used_and_left_running(
    cluster: LocalCluster, free_port: int, redis_url: str
) -> None:
    state = cluster.up(port=free_port, redis_url=redis_url)
    assert set(pids(state)) == {"checkpoint", "gateway"}
    cluster.down()
    discovery.connect(redis_url).close()


def test_a_redis_that_is_not_there_is_named(cluster: LocalCluster, free_port: int) -> None:
    url = f"redis://127.0.0.1:{free_port}/0"
    with pytest.raises(errors.Unavailable, match=url):
        cluster.up(redis_url=url)
    assert cluster.state() is None


def test_a_service_that_fails_to_start_shows_its_log(
    cluster: LocalCluster, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embermesh.cluster._module", lambda name: ["python3", "-c", "1/0"])
    with pytest.raises(errors.Unavailable, match="ZeroDivisionError"):
        cluster.up(port=free_port)
    assert cluster.state() is None


def test_a_damaged_state_file_is_named(cluster: LocalCluster) -> None:
    cluster.folder.mkdir(parents=True)
    path = cluster.folder / "cluster.json"
    path.write_text("{half")
    with pytest.raises(errors.Damaged, match=r"cluster\.json is damaged"):
        cluster.up()
    path.unlink()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.InvalidInput, match="file/state"):
        LocalCluster(tmp_path / "file" / "state").up()
