"""Stands in for `python -m services.standby`: the real agent, which also runs modules of a test's,
and `gateway_member.py` in place of trainers and parameter servers.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from services.kit import lifecycle
from services.kit.standby import Work
from services.standby.__main__ import Launcher, serve

MEMBER = Path(__file__).with_name("gateway_member.py")


class AnyProgram(Launcher):
    def command(self, work: Work) -> list[str]:
        if work.module in ("ps_service", "trainer_service"):
            return [sys.executable, str(MEMBER), "-m", work.module, *work.arguments]
        return [sys.executable, "-m", work.module, *work.arguments]


if __name__ == "__main__":
    lifecycle.main(partial(serve, launcher=AnyProgram))
