"""Pauses, resumptions, scalings, cancellations, deaths and full disks in any order: no process is
left behind, no generation runs beside another, and every job can still be paused and resumed.
"""

from __future__ import annotations

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import commands
from gateway.actions import Action, PublishRun, RetireRun, Start, Stop, TakeCheckpoint
from gateway.checkpoints import Call
from gateway.compile import expected
from gateway.reconciler import Seen, step
from gateway.record import JobRecord
from gateway.targets import Process
from services.api.views import CheckpointView, JobState
from services.kit.discovery import Checkpoint, Member, Phase, Role, incarnation_of
from services.kit.errors import Conflict
from tests.fixtures.gateway_looks import LIMITS, job, run

OVER = [state for state in JobState if state.final]
USER = ("pause", "resume", "scale", "cancel", "none")
DAY = ("goes well", "checkpoint fails", "server dies", "trainer dies", "gateway dies")


@dataclasses.dataclass
class World:
    """What actions do, as far as `step` can see it. Every look trains a sample."""

    record: JobRecord
    # place -> generation and incarnation
    alive: dict[tuple[Role, int], tuple[int, int]] = dataclasses.field(default_factory=dict)
    active: int = 0  # generation of the active run; 0: none
    samples: int = 0  # in the servers
    saved: dict[str, int] = dataclasses.field(default_factory=lambda: {"": 0})
    newest: Checkpoint | None = None
    call: Call | None = None
    dead: Process | None = None

    def look(self) -> Seen:
        processes = [
            Process(*place, alive=True, incarnation=number)
            for place, (_, number) in self.alive.items()
        ]
        processes += [] if self.dead is None else [self.dead]
        generation = self.record.generation
        return Seen(
            run=run(self.active or generation, active=bool(self.active)),
            processes=tuple(processes),
            members=tuple(
                Member("a-1", of, *place, phase=Phase.READY, incarnation=number)
                for place, (of, number) in self.alive.items()
            ),
            newest=self.newest,
            call=self.call,
        )

    def act(self, action: Action, now: float, day: str) -> None:
        match action:
            case PublishRun():
                self.active = self.record.generation
            case RetireRun():
                self.active = 0
            case Start():
                generation, numbers = self.record.generation, self.record.incarnations
                beside = {of for of, _ in self.alive.values()} - {generation}
                assert not beside, "no generation starts beside another"
                if not self.alive:
                    self.samples = self.saved[self.record.restore]
                for place in expected(self.record.job_spec):
                    self.alive.setdefault(place, (generation, incarnation_of(numbers, *place)))
                self.dead = None
            case Stop():
                self.alive, self.dead = {}, None
            case TakeCheckpoint(purpose):
                self.call = Call(self.record.generation, purpose, now, ended=now, error="full")
                if day != "checkpoint fails":
                    name = f"{len(self.saved):06d}"
                    self.saved[f"file://{name}"] = self.samples
                    self.newest = Checkpoint(name, f"file://{name}", now, self.samples, 0, 0)
                    view = CheckpointView(id=name, uri=f"file://{name}", created=now)
                    self.call = dataclasses.replace(self.call, error="", checkpoint=view)

    def tick(self, now: float, day: str) -> None:
        if self.alive and self.record.state.trains:
            self.samples += 1
            role = {"server dies": Role.SPARSE_PS, "trainer dies": Role.TRAINER}.get(day)
            if role is not None and (role, 0) in self.alive:
                _, number = self.alive.pop((role, 0))
                self.dead = Process(role, 0, alive=False, exit_code=-9, incarnation=number)
        before = self.record
        result = step(before, self.look(), now, LIMITS)
        self.record = result.record
        if self.record.generation != before.generation:
            self.call = None
        if before.state == JobState.PAUSING and self.record.becomes == JobState.PAUSED:
            newest = self.newest
            own = newest is not None and newest.id != before.checkpoint_before
            assert self.record.restore == (newest.uri if newest and own else before.restore)
        if day != "gateway dies":  # it stored the record and took no action
            for action in result.actions:
                self.act(action, now, day)
        if self.record.state == JobState.PAUSED:
            assert not self.alive and self.dead is None and not self.active
            assert not self.record.scaling and self.record.restore in self.saved

    def ask(self, verb: str, now: float) -> None:
        change = {
            "pause": commands.pause,
            "resume": commands.resume,
            "scale": lambda r, now: commands.scale(r, 3, now),
            "cancel": commands.cancel,
        }.get(verb)
        try:
            self.record = self.record if change is None else change(self.record, now)
        except Conflict as refused:
            assert str(self.record.state) in str(refused) or self.record.state.final


@settings(max_examples=150, deadline=None)
@given(
    mode=st.sampled_from(["sync", "hybrid"]),
    days=st.lists(st.tuples(st.sampled_from(USER), st.sampled_from(DAY)), max_size=40),
)
def test_in_any_order_nothing_is_left_running_and_nothing_hangs(
    mode: str, days: list[tuple[str, str]]
) -> None:
    world = World(job(JobState.PENDING, mode=mode))
    now = 1000.0
    for verb, day in days:
        world.ask(verb, now)
        world.tick(now, day)
        now += 40.0
    # Whatever came before, a job that is not over can be paused and resumed once more.
    if not world.record.state.final and world.record.becomes not in OVER:
        world.ask("pause", now)
        for _ in range(30):
            world.tick(now, "goes well")
            now += 5.0
        assert world.record.state in (JobState.PAUSED, JobState.FAILED), world.record
    if world.record.state == JobState.PAUSED:
        kept = world.saved[world.record.restore]
        world.ask("resume", now)
        for _ in range(5):
            world.tick(now, "goes well")
        assert world.record.state.trains
        assert kept < world.samples <= kept + 5
