"""What a pod of a job runs first: `python -m services.kit.pod_entry MODULE ARGUMENTS…`.

It waits until the pod is granted an incarnation of its rank, and becomes `python -m MODULE` then,
with the two in its environment. An incarnation runs once in a pod: before it begins, its mark is
left in a folder that lives as long as the pod, so a container that Kubernetes starts again waits
for the next incarnation instead. It knows neither Redis nor Kubernetes; files only.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from services.kit import config, lifecycle, telemetry
from services.kit.errors import InvalidInput
from services.kit.member import MemberConfig

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class PodConfig:
    """What the pod's manifest tells its entry."""

    PREFIX: ClassVar[str] = "EMBERMESH_POD_"
    name: str  # of the pod; ends with the rank
    grant: str  # file with the incarnation that may run; empty while there is none
    marks: str  # folder with one file for each incarnation that has begun


def granted(settings: PodConfig) -> int | None:
    """The incarnation to begin now, marked as begun; None while there is none to begin.

    Raises InvalidInput for a grant that is no number.
    """
    text = Path(settings.grant).read_text().strip()
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidInput(f"{settings.grant} holds {text!r}, which is no incarnation")
    try:
        (Path(settings.marks) / text).touch(exist_ok=False)
    except FileExistsError:
        return None
    return int(text)


def environment(
    settings: PodConfig, incarnation: int, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The member's variables. Raises InvalidInput for a pod's name without a rank."""
    _, _, rank = settings.name.rpartition("-")
    if not rank.isdecimal():
        raise InvalidInput(f"{settings.PREFIX}NAME={settings.name!r} must end with -RANK")
    prefix = MemberConfig.PREFIX
    return {**inherited, f"{prefix}RANK": rank, f"{prefix}INCARNATION": str(incarnation)}


def enter(command: Sequence[str], stop: threading.Event) -> None:
    """Waits for the grant and becomes `python -m command`; returns only when `stop` comes first."""
    settings = config.load(PodConfig)
    told = False
    while (incarnation := granted(settings)) is None:
        if not told:
            log.info("%s waits to be granted an incarnation", settings.name)
            told = True
        if stop.wait(_LOOK_SECONDS):
            return
    arguments = [sys.executable, "-m", *command]
    os.execve(sys.executable, arguments, environment(settings, incarnation, config.inherited(())))


if __name__ == "__main__":
    telemetry.setup_logging("info", service="pod-entry")
    lifecycle.main(lambda stop: enter(sys.argv[1:], stop))
