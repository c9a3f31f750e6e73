"""Server-sent events, against the grammar of the HTML standard."""

from __future__ import annotations

from embermesh.sse import Message, messages


def test_messages_end_at_empty_lines_and_comments_are_none() -> None:
    text = ": hello\n\nid: 1\nevent: job\ndata: {}\n\ndata:a\ndata: b\n\nevent: x\n\ndata: cut"
    assert list(messages(text.split("\n"))) == [
        Message("job", "{}", "1"),
        Message("message", "a\nb"),
    ]
