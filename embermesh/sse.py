"""Server-sent events: lines of text -> messages. Knows nothing of jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator


@dataclasses.dataclass(frozen=True)
class Message:
    """One message; `id` is empty where it had none."""

    event: str
    data: str
    id: str = ""


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """Messages of a stream; comments are skipped, and so is one that the end cuts off."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            both = name == "data" and "data" in fields
            fields[name] = f"{fields['data']}\n{value}" if both else value
            continue
        if "data" in fields:
            kind = fields.get("event", "message")
            yield Message(kind, fields["data"], fields.get("id", ""))
        fields = {}
