"""Request headers that several routes read, and how a change of a job obeys them."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from fastapi import Depends, Header

from gateway import commands

Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern=r"^[\x21-\x7e]*$",
        description="Makes a retry harmless: the same key and request are carried out once.",
    ),
]
IfMatch = Annotated[
    str,
    Header(
        alias="If-Match",
        max_length=1000,
        description="ETag of the version this is meant for; 412 when the job is at another.",
    ),
]


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What the headers ask of a change."""

    key: str
    if_match: str

    def on(self, change: commands.Change, what: str) -> commands.Change:
        """`change` under these conditions. A repeated key wins over If-Match: the version it named
        is the one that the first try changed.
        """
        return commands.once(commands.at_version(change, self.if_match), self.key, what)


def _conditions(key: Key = "", if_match: IfMatch = "") -> Conditions:
    return Conditions(key, if_match)


Conditional = Annotated[Conditions, Depends(_conditions)]
