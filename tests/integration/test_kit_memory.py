"""Freed arrays are used again without the kernel, and the garbage collector lets settled objects
be.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.data import ROOT

FAULTS = """
import resource, sys
import numpy as np
from services.kit.memory import keep_freed

if sys.argv[1] == "keep" and not keep_freed():
    sys.exit(3)

def turn():
    arrays = [np.ones(500_000, np.float32) for _ in range(4)]

turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Page faults of 200 arrays of 2 MB, taken and given back."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip("this C library is not glibc")
    return int(done.stdout)


def test_kept_memory_is_not_faulted_in_again() -> None:
    assert faults("keep") < 500
    assert faults("leave") > 10_000


COLLECTED = """
import gc, weakref
from services.kit.memory import settle_objects

class Node:
    pass

def ring():
    node = Node()
    node.itself = node
    return weakref.ref(node)

there = [[] for _ in range(100_000)]
dead = ring()
settle_objects()
assert dead() is None, "what was garbage is gone first"
watched = len(gc.get_objects())
later = ring()
gc.collect()
assert later() is None, "what comes later is still collected"
print(watched)
"""


def test_settled_objects_are_not_walked_over_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTED],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 100
