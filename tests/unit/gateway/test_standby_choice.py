"""Which agents get a generation's processes: a choice exists whenever brute force finds one."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.targets.standby import choose
from services.kit.discovery import Role
from services.kit.errors import NoRoom
from services.kit.standby import Agent

ROLES = st.sampled_from(list(Role))


def agent(name: str, *roles: Role, draining: bool = False) -> Agent:
    return Agent(name, roles, "10.0.0.1", draining)


@st.composite
def fleets(draw: st.DrawFn) -> dict[Agent, bool]:
    kinds = draw(st.lists(st.sets(ROLES, min_size=1), max_size=6))
    return {
        agent(f"a{number}", *sorted(roles)): draw(st.booleans())
        for number, roles in enumerate(kinds)
    }


def possible(roles: list[Role], agents: dict[Agent, bool]) -> bool:
    free = [a for a, is_free in agents.items() if is_free]
    return any(
        all(role in one.roles for role, one in zip(roles, order, strict=True))
        for order in itertools.permutations(free, len(roles))
    )


@given(st.lists(ROLES, max_size=5), fleets())
def test_there_is_a_choice_exactly_when_one_exists(
    roles: list[Role], agents: dict[Agent, bool]
) -> None:
    if not possible(roles, agents):
        with pytest.raises(NoRoom, match="waits for free agents"):
            choose(roles, agents)
        return
    chosen = choose(roles, agents)
    assert len(set(chosen)) == len(roles)
    for role, one in zip(roles, chosen, strict=True):
        assert role in one.roles and agents[one]


def test_who_can_do_everything_is_kept_for_last() -> None:
    every, one = agent("a", *Role), agent("b", Role.TRAINER)
    assert choose([Role.TRAINER], {every: True, one: True}) == [one]


def test_the_shortage_is_counted() -> None:
    agents = {
        agent("a", Role.TRAINER): True,
        agent("b", Role.TRAINER): False,
        agent("c", Role.DENSE_PS): True,
    }
    with pytest.raises(NoRoom) as refused:
        choose([Role.TRAINER, Role.TRAINER, Role.DENSE_PS], agents)
    assert "1 dense-ps (free: 1 of 1 agents)" in str(refused.value)
    assert "2 trainer (free: 1 of 2 agents)" in str(refused.value)
