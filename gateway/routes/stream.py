"""`/v1/jobs/{job}/stream`: a job's progress and events as server-sent events.

    event: job      data: JobView, its spec left empty, when it has changed
    event: event    data: EventView; its `id` resumes the stream (Last-Event-ID)
    event: end      data: {"state": …}; the job is over, and so is the stream
    : comment       nothing new; keeps proxies from closing the connection

A stream waits on the event loop, not on a thread: a thousand of them keep no request waiting. It
ends by itself after a while, so that who asks is checked again; browsers and our client come back
with the last id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

import pydantic
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from gateway.deps import Gateway, Parts, Viewer
from gateway.routes.jobs import EVENT_ID, look
from services.api.views import EventView, JobState, JobView
from services.kit.errors import EmbermeshError

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

MEDIA_TYPE = "text/event-stream"
_LOOK_SECONDS = 0.5
_QUIET_SECONDS = 15.0
_LONGEST_SECONDS = 900.0


class _EventStream(StreamingResponse):
    media_type = MEDIA_TYPE


_MESSAGE = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "Of an event: what resumes the stream."},
        "event": {"enum": ["job", "event", "end"]},
        "data": {"type": "string", "description": "JSON."},
    },
}


@router.get(
    "/{job}/stream",
    response_class=_EventStream,
    responses={200: {"content": {MEDIA_TYPE: {"schema": _MESSAGE}}}},
)
def stream(
    gateway: Parts,
    who: Viewer,
    job: str,
    after: Annotated[
        str, Query(pattern=EVENT_ID, description="Id of the last event already seen.")
    ] = "-",
    last_event_id: Annotated[str, Header(pattern=EVENT_ID)] = "-",
) -> _EventStream:
    """The job's events and progress as they happen, until it is over."""
    gateway.job(who, job)
    start = after if last_event_id == "-" else last_event_id
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies: pass it on
    return _EventStream(_lines(gateway, job, start), headers=headers)


async def _lines(gateway: Gateway, job: str, after: str) -> AsyncIterator[str]:
    shown, begin = "", time.monotonic()
    spoke = begin
    while time.monotonic() - begin < _LONGEST_SECONDS and not gateway.closing.is_set():
        try:
            view, events = await run_in_threadpool(_see, gateway, job, after)
        except EmbermeshError:  # Redis is away: the client hears comments until it is back
            view, events = None, []
        for event in events:
            after = event.id
            yield _message("event", event.model_dump_json(), event.id)
        if view is not None:
            text = view.model_copy(update={"spec": {}}).model_dump_json()
            if text != shown:
                yield _message("job", text)
                shown, spoke = text, time.monotonic()
            if view.state.final:
                yield _message("end", _End(state=view.state).model_dump_json())
                return
        if time.monotonic() - spoke > _QUIET_SECONDS:
            yield ": still here\n\n"
            spoke = time.monotonic()
        await asyncio.sleep(_LOOK_SECONDS)


class _End(pydantic.BaseModel):
    state: JobState


def _see(gateway: Gateway, job: str, after: str) -> tuple[JobView, list[EventView]]:
    """The job first: an event that belongs to a state it has not reached yet comes next time."""
    view = look(gateway, gateway.store.get(job))
    return view, [EventView.model_validate(e) for e in gateway.registry.events(job, after)]


def _message(kind: str, data: str, event_id: str = "") -> str:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {data}\n\n"
