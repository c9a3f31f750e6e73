"""An agent beat by beat: its board, its process and its clock are the test's."""

from __future__ import annotations

import dataclasses
import signal
import threading

import prometheus_client
import pytest

from gateway.compile import Surroundings, make_run, processes
from gateway.record import new_record
from gateway.targets.standby import work_of
from services.api.spec import validate
from services.kit import config
from services.kit.discovery import Role, Run
from services.kit.errors import InvalidInput, NotFound, Unavailable
from services.kit.member import MemberConfig
from services.kit.standby import KILL, TERM, Agent, Ask, Heard, Place, Work
from services.kit.tls import TlsConfig
from services.kit.tracing import TracingConfig
from services.standby.__main__ import Launcher
from services.standby.agent import StandbyAgent
from services.standby.child import Tail
from services.standby.config import StandbyConfig
from services.standby.metrics import StandbyMetrics

CARD = Agent("one", (Role.TRAINER,), "10.0.0.1")
WORK = Work("a-1", 3, Role.TRAINER, 0, 0, "trainer_service", (), {"EMBERMESH_MEMBER_RANK": "0"})


class FakeBoard:
    """What the test puts on it, and what the agent wrote. `away`: Redis is."""

    def __init__(self) -> None:
        self.work: Work | None = None
        self.stop, self.away = "", False
        self.asks: tuple[Ask, ...] = ()
        self.ended: list[tuple[Work, Place]] = []
        self.answers: list[str | None] = []
        self.cards: list[Agent] = []
        self.withdrawn = False

    def beat(self, agent: Agent, work: Work | None) -> Heard:
        if self.away:
            raise Unavailable("Redis: could not renew the agent's lease")
        self.cards.append(agent)
        asks, self.asks = self.asks, ()
        return Heard(self.work, self.stop, asks)

    def end(self, work: Work, place: Place) -> None:
        if self.away:
            raise Unavailable("Redis: could not write how a process ended")
        self.ended.append((work, place))
        if self.work == work:
            self.work, self.stop = None, ""

    def answer(self, ask: Ask, text: str | None) -> None:
        self.answers.append(text)

    def withdraw(self, agent: Agent) -> None:
        self.withdrawn = True


class FakeRegistry:
    """The job's run; None: there is none."""

    def __init__(self) -> None:
        self.present: Run | None = Run("a-1", 3, {}, 1, [])

    def run(self, job: str) -> Run:
        if self.present is None:
            raise NotFound(job)
        return self.present


class FakeChild:
    def __init__(self, obeys: bool = True) -> None:
        self.tail, self.signals = Tail(), list[signal.Signals]()
        self.code: int | None = None
        self.obeys = obeys
        self.tail.add(b"up\n")

    def exit_code(self) -> int | None:
        return self.code

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        if self.obeys or number == signal.SIGKILL:
            self.code = -number


@dataclasses.dataclass
class Rig:
    agent: StandbyAgent
    board: FakeBoard
    registry: FakeRegistry
    children: list[FakeChild]
    metrics: StandbyMetrics
    now: float = 0.0
    obeys: bool = True


@pytest.fixture
def rig() -> Rig:
    board, registry, children = FakeBoard(), FakeRegistry(), list[FakeChild]()
    metrics = StandbyMetrics(prometheus_client.CollectorRegistry())

    def launch(work: Work) -> FakeChild:
        if work.module != "trainer_service":
            raise InvalidInput(f"module {work.module}")
        children.append(FakeChild(made.obeys))
        return children[-1]

    agent = StandbyAgent(CARD, board, registry, launch, metrics, lambda: made.now)  # type: ignore[arg-type]
    made = Rig(agent, board, registry, children, metrics)
    return made


def value(metric: prometheus_client.Gauge | prometheus_client.Counter) -> float:
    return metric._value.get()


def test_work_is_started_once_and_reported_when_it_ends(rig: Rig) -> None:
    rig.agent.beat()
    assert rig.agent.ready() and not rig.children
    rig.board.work = WORK
    for _ in range(3):
        rig.agent.beat()
    assert len(rig.children) == 1 and value(rig.metrics.busy) == 1
    rig.children[0].tail.add(b"oops\n")
    rig.children[0].code = 3
    rig.agent.beat()
    assert rig.board.ended == [(WORK, Place("one", True, 3, "up\noops\n"))]
    rig.agent.beat()
    assert len(rig.children) == 1, "free again"
    assert (value(rig.metrics.busy), value(rig.metrics.failed)) == (0, 1)


def test_sigterm_is_sent_once_and_sigkill_until_it_helps(rig: Rig) -> None:
    rig.obeys = False
    rig.board.work, rig.board.stop = WORK, ""
    rig.agent.beat()
    rig.board.stop = TERM
    for _ in range(3):
        rig.agent.beat()
    assert rig.children[0].signals == [signal.SIGTERM]
    rig.board.stop = KILL
    rig.agent.beat()
    rig.agent.beat()
    assert rig.children[0].signals == [signal.SIGTERM, signal.SIGKILL]
    assert rig.board.ended[0][1].exit_code == -signal.SIGKILL
    assert value(rig.metrics.failed) == 0, "it was told to end"


@pytest.mark.parametrize("other", [None, dataclasses.replace(WORK, generation=4)])
def test_a_process_whose_work_left_the_board_is_killed(rig: Rig, other: Work | None) -> None:
    rig.board.work = WORK
    rig.agent.beat()
    rig.board.work = other
    rig.agent.beat()
    assert rig.children[0].signals == [signal.SIGKILL]
    rig.agent.beat()
    rig.agent.beat()
    assert len(rig.children) == (1 if other is None else 2), "and the new one begins"


def test_the_process_goes_on_while_redis_is_away_and_its_end_is_told_later(rig: Rig) -> None:
    rig.board.work = WORK
    rig.agent.beat()
    rig.board.away = True
    rig.agent.beat()
    assert not rig.agent.ready() and rig.children[0].signals == []
    rig.children[0].code = 0
    rig.agent.beat()
    assert rig.board.ended == [] and value(rig.metrics.redis_errors) == 2
    rig.board.away = False
    rig.agent.beat()
    assert rig.board.ended == [(WORK, Place("one", True, 0, "up\n"))]
    assert value(rig.metrics.failed) == 0


@pytest.mark.parametrize(
    "present",
    [None, Run("a-1", 4, {}, 1, []), Run("a-1", 3, {}, 1, [], active=False)],
    ids=["forgotten", "later", "over"],
)
def test_a_process_nobody_wants_for_a_minute_ends(rig: Rig, present: Run | None) -> None:
    rig.board.work = WORK
    for rig.now in range(0, 100, 3):
        rig.agent.beat()
    assert rig.children[0].signals == [], "wanted"
    rig.registry.present = present
    for rig.now in range(100, 160, 3):
        rig.agent.beat()
    assert rig.children[0].signals == [], "its gateway may still stop it in order"
    for rig.now in range(160, 175, 3):
        rig.agent.beat()
    assert rig.children[0].signals[0] == signal.SIGKILL


def test_what_it_must_not_run_ends_for_good_with_the_reason(rig: Rig) -> None:
    rig.board.work = dataclasses.replace(WORK, module="http.server")
    rig.agent.beat()
    assert rig.board.ended[0][1] == Place("one", True, 2, "module http.server\n")
    assert not rig.children


def test_logs_are_answered_also_for_the_last_ended_ones(rig: Rig) -> None:
    rig.board.work = WORK
    rig.agent.beat()
    rig.children[0].tail.add(b"second\n")
    rig.children[0].code = 1
    rig.agent.beat()
    rig.board.asks = tuple(Ask(place, 1, "r") for place in (WORK.place, "b:1:trainer:0:0"))
    rig.agent.beat()
    assert rig.board.answers == ["second\n", None]


@pytest.mark.parametrize("obeys", [True, False])
def test_an_agent_that_is_asked_to_leave_ends_its_process_first(rig: Rig, obeys: bool) -> None:
    rig.obeys = obeys
    rig.board.work = WORK
    rig.agent.beat()
    stop = threading.Event()
    stop.set()
    ticks = iter(range(1000))
    rig.agent._clock = lambda: float(next(ticks))
    rig.agent.run(stop, grace=5.0)
    expected = signal.SIGTERM if obeys else signal.SIGKILL
    assert rig.children[0].signals[0] == signal.SIGTERM
    assert rig.board.ended[0][1].exit_code == -expected
    assert rig.board.withdrawn and rig.board.cards[-1].draining


def test_the_tail_is_bounded_in_bytes() -> None:
    tail = Tail(limit=100)
    for number in range(50):
        tail.add(f"line {number}\n".encode())
    assert tail.last(2) == "line 48\nline 49\n"
    assert len(tail.last(1000)) <= 100
    assert tail.last(0) == ""


def test_the_process_has_its_agents_own_secrets_and_no_strange_variable() -> None:
    settings = StandbyConfig("redis://:secret@redis:6379/0", "trainer", host="10.0.0.2")
    launcher = Launcher(settings, None)
    env = launcher.environment(WORK)
    assert env["EMBERMESH_MEMBER_REDIS_URL"] == "redis://:secret@redis:6379/0"
    assert (env["EMBERMESH_MEMBER_HOST"], env["EMBERMESH_MEMBER_RANK"]) == ("10.0.0.2", "0")
    with pytest.raises(InvalidInput, match="LD_PRELOAD"):
        launcher.environment(dataclasses.replace(WORK, env={"LD_PRELOAD": "x.so"}))
    with pytest.raises(InvalidInput, match=r"'http\.server' is not one of ps_service"):
        launcher(dataclasses.replace(WORK, module="http.server"))


def test_an_agent_runs_all_that_a_gateway_with_certificates_and_traces_hands_out() -> None:
    spec = validate(
        {
            "name": "a",
            "model": {"name": "lr"},
            "data": {"source": "synthetic://criteo"},
            "features": {"sparse": {"C1": {}}},
        }
    )
    certificates = TlsConfig("/gateway/ca.crt", "/gateway/tls.crt", "/gateway/tls.key")
    traces = TracingConfig("http://collector:4317", 7)
    around = Surroundings("redis://gateways", "10.0.0.1", "info", certificates, traces)
    launcher = Launcher(StandbyConfig("redis://agents", "trainer", host="10.0.0.2"), None)
    made = processes(make_run(new_record(spec, 1.0), spec), spec, around)
    assert {p.role for p in made} == set(Role)
    for process in made:
        env = launcher.environment(work_of(process))
        assert config.load(MemberConfig, env).redis_url == "redis://agents"
        assert config.load(TracingConfig, env) == traces
        assert not any(value.startswith("/gateway/") for value in env.values())


def test_roles_are_checked() -> None:
    good = StandbyConfig("redis://r", "trainer, sparse-ps")
    assert good.parsed_roles() == (Role.SPARSE_PS, Role.TRAINER)
    for wrong in ("", "trainer,gpu"):
        with pytest.raises(InvalidInput, match="EMBERMESH_STANDBY_ROLES"):
            StandbyConfig("redis://r", wrong).parsed_roles()
