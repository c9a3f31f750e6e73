"""How servers learn from the job's run which trainers were replaced."""

from __future__ import annotations

import threading

import pytest

from ps_service.server.replacements import Replacements
from services.kit.discovery import Run
from services.kit.errors import NotFound, Unavailable


def run(generation: int, incarnations: list[int]) -> Run:
    return Run("j", generation, {}, epoch=1, owners=[], incarnations=incarnations)


class Looks:
    """Answers with what a test wrote down; an exception is raised."""

    def __init__(self, *answers: Run | Exception) -> None:
        self._answers = list(answers)
        self.expelled: list[tuple[int, int]] = []
        self.replacements = Replacements(self._answer, 3, self._expel, every=0.01)
        self.seen = threading.Event()

    def look(self) -> list[tuple[int, int]]:
        """Who is expelled by one look."""
        self.expelled.clear()
        self.replacements.look()
        return list(self.expelled)

    def _answer(self) -> Run:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _expel(self, rank: int, incarnation: int) -> None:
        self.expelled.append((rank, incarnation))
        self.seen.set()


def test_every_change_is_told_once() -> None:
    looks = Looks(run(3, []), run(3, [0, 1]), run(3, [0, 1]), run(3, [2, 1]))
    assert [looks.look() for _ in range(4)] == [[], [(1, 1)], [], [(0, 2), (1, 1)]]


def test_another_generation_is_none_of_ours() -> None:
    assert Looks(run(4, [1, 1])).look() == []


@pytest.mark.parametrize("trouble", [Unavailable("Redis"), NotFound("run")])
def test_a_look_that_fails_changes_nothing(trouble: Exception) -> None:
    looks = Looks(trouble, run(3, [0, 1]))
    assert [looks.look() for _ in range(2)] == [[], [(1, 1)]]


def test_it_looks_by_itself_until_it_is_left() -> None:
    looks = Looks(run(3, [0, 5]))
    with looks.replacements:
        assert looks.seen.wait(5)
    assert looks.expelled == [(1, 5)]
