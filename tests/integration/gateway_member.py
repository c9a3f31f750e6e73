"""Stands in for `python -m ps_service` and `python -m trainer_service`: the real chassis around a
body that is ready at once and idle until it is stopped.
"""

from __future__ import annotations

import sys
import threading

from services.kit import member
from services.kit.discovery import Phase, Role

ROLES = {
    ("-m", "ps_service", "sparse"): Role.SPARSE_PS,
    ("-m", "ps_service", "dense"): Role.DENSE_PS,
    ("-m", "trainer_service"): Role.TRAINER,
}


def body(process: member.MemberProcess, stop: threading.Event) -> None:
    process.announce(Phase.READY, lambda: {"samples": 7})
    stop.wait()


if __name__ == "__main__":
    member.main(ROLES[tuple(sys.argv[1:])], body)
