"""A small typed client of the gateway's REST API, for programs, notebooks and the `embermesh`
command.

Answers are the classes of `services.api.views`; failures are those of `services.kit.errors`,
whatever went wrong: a refused request, a gateway that isn't there, an answer that isn't ours. It
holds no state but its connections.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import httpx
import pydantic

from embermesh import sse
from embermesh.answers import ModelT, parse, problem
from embermesh.settings import DEFAULT_URL
from services.api.spec import JobSpec
from services.api.views import (
    CheckpointView,
    EventList,
    EventView,
    JobList,
    JobSize,
    JobState,
    JobView,
    RestoreRequest,
)
from services.kit import errors

CHECKPOINT_TIMEOUT = 600.0  # seconds; :checkpoint answers when the manifest is written
GATEWAY_AWAY_SECONDS = 60.0  # `wait` outlives a restart of the gateway of this length


class Client:
    """Talks to the gateway at `url`, as the holder of `token`; a request takes at most `timeout`
    seconds. Usable as a context manager.

    Every method raises InvalidInput, NotFound, Conflict, Unauthenticated, Forbidden or
    TooManyRequests when the gateway refuses, Unavailable when it can't be reached and
    DeadlineExceeded when it doesn't answer in time. `version` is a JobView's: the change is refused
    (PreconditionFailed) when the job has moved on. The same `idempotency_key` twice does it once.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        timeout: float = 30.0,
        *,
        token: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise errors.InvalidInput(f"gateway URL {url!r} must start with http:// or https://")
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout,
            transport=transport,
            trust_env=False,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def submit(
        self, spec: str | Path | JobSpec | Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> JobView:
        """Starts a job from YAML or JSON text, a Path to such a file, a JobSpec, or a mapping of
        its fields.

        The same `idempotency_key` twice gives the same job.
        """
        headers = {"Content-Type": "application/yaml"}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        return self.view(JobView, "POST", "/v1/jobs", content=_text(spec), headers=headers)

    def size(
        self, spec: str | Path | JobSpec | Mapping[str, Any], *, assumed_rows: int | None = None
    ) -> JobSize:
        """What a job would take and whether it has room; nothing starts. A table whose rows the
        spec doesn't bound is taken to hold `assumed_rows`.
        """
        params: dict[str, str | int] = {"dry_run": "true"}
        if assumed_rows is not None:
            params["assumed_rows"] = assumed_rows
        headers = {"Content-Type": "application/yaml"}
        return self.view(
            JobSize, "POST", "/v1/jobs", content=_text(spec), headers=headers, params=params
        )

    def jobs(self, limit: int = 100) -> list[JobView]:
        """The newest `limit` jobs (at most 1000), newest first."""
        return self.view(JobList, "GET", "/v1/jobs", params={"limit": limit}).jobs

    def all_jobs(self, page: int = 500) -> Iterator[JobView]:
        """Every job there was when the walk began, newest first, `page` a request."""
        params: dict[str, str | int] = {"limit": page}
        while True:
            found = self.view(JobList, "GET", "/v1/jobs", params=params)
            yield from found.jobs
            if found.next is None:
                return
            params["cursor"] = found.next

    def get(self, job: str) -> JobView:
        """The job with that id, as it stands now."""
        return self.view(JobView, "GET", _path(job))

    def cancel(
        self, job: str, *, version: int | None = None, idempotency_key: str | None = None
    ) -> JobView:
        """Asks the job to stop; the answer shows it on its way."""
        headers = _conditions(version, idempotency_key)
        return self.view(JobView, "POST", _path(job, ":cancel"), headers=headers)

    def pause(
        self, job: str, *, version: int | None = None, idempotency_key: str | None = None
    ) -> JobView:
        """Asks for a checkpoint and then for no processes, until `resume`; the answer shows the job
        on its way, `wait_paused` waits.
        """
        headers = _conditions(version, idempotency_key)
        return self.view(JobView, "POST", _path(job, ":pause"), headers=headers)

    def resume(
        self, job: str, *, version: int | None = None, idempotency_key: str | None = None
    ) -> JobView:
        """Starts a paused job again where it was paused, or takes back a pause under way."""
        headers = _conditions(version, idempotency_key)
        return self.view(JobView, "POST", _path(job, ":resume"), headers=headers)

    def checkpoint(self, job: str, *, timeout: float = CHECKPOINT_TIMEOUT) -> CheckpointView:
        """Takes a checkpoint now and waits until it is complete."""
        return self.view(CheckpointView, "POST", _path(job, ":checkpoint"), timeout=timeout)

    def checkpoints(self, job: str) -> list[CheckpointView]:
        """The job's complete checkpoints, oldest first."""
        return parse(_Checkpoints, self.request("GET", _path(job, "/checkpoints"))).root

    def restore(
        self,
        job: str,
        *,
        checkpoint: str | None = None,
        sparse_ps: int | None = None,
        dense_ps: int | None = None,
        trainers: int | None = None,
        placement: Literal["remote", "embedded"] | None = None,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Starts the job again from a checkpoint (id or manifest URI; default: the newest), maybe
        with other counts or placement.
        """
        body = RestoreRequest(
            checkpoint=checkpoint,
            placement=placement,
            sparse_ps=sparse_ps,
            dense_ps=dense_ps,
            trainers=trainers,
        )
        headers = _conditions(version, idempotency_key)
        return self.view(
            JobView, "POST", _path(job, ":restore"), json=body.model_dump(), headers=headers
        )

    def scale(
        self,
        job: str,
        *,
        trainers: int | None = None,
        sparse_ps: int | None = None,
        dense_ps: int | None = None,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Goes on with other numbers of processes, from a checkpoint that is taken first; None
        leaves a number as it is.
        """
        counts = {"trainers": trainers, "sparse_ps": sparse_ps, "dense_ps": dense_ps}
        body = {name: count for name, count in counts.items() if count is not None}
        headers = _conditions(version, idempotency_key)
        return self.view(JobView, "POST", _path(job, ":scale"), json=body, headers=headers)

    def events(self, job: str, after: str | None = None) -> list[EventView]:
        """What happened to the job, oldest first; `after` an event's id gives only later ones."""
        params = {} if after is None else {"after": after}
        return self.view(EventList, "GET", _path(job, "/events"), params=params).events

    def logs(
        self,
        job: str,
        *,
        role: str = "trainer",
        rank: int = 0,
        tail: int = 200,
        generation: int | None = None,
    ) -> str:
        """The last `tail` log lines of one process, of the job's newest generation unless another
        is named. Raises NotFound when there are none.
        """
        params: dict[str, str | int] = {"role": role, "rank": rank, "tail": tail}
        if generation is not None:
            params["generation"] = generation
        return self.request("GET", _path(job, "/logs"), params=params).text

    def ready(self) -> bool:
        """Whether the gateway is there and can serve requests."""
        try:
            return self._http.get("/readyz").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def wait(
        self,
        job: str,
        timeout: float | None = None,
        *,
        on_update: Callable[[JobView], None] | None = None,
    ) -> JobView:
        """Waits until the job is over (succeeded, failed or cancelled) and returns it; a pause is
        waited out.

        `on_update` sees every look at it. Raises DeadlineExceeded after `timeout` seconds; a
        gateway that is away for less than a minute is waited for.
        """
        return self._wait(job, timeout, on_update, lambda state: state.final)

    def wait_paused(
        self,
        job: str,
        timeout: float | None = None,
        *,
        on_update: Callable[[JobView], None] | None = None,
    ) -> JobView:
        """Waits until what `pause` asked for has come about or has not, and returns the job:
        paused; over, for it came to its end first; or else as it goes on. Raises like `wait`.
        """
        under_way = (JobState.PAUSING, JobState.STOPPING)
        return self._wait(job, timeout, on_update, lambda state: state not in under_way)

    def watch(
        self, job: str, timeout: float | None = None, *, every: float = 0.5
    ) -> Iterator[JobView]:
        """Looks at the job every `every` seconds; the last look is the one at its final state.
        Raises like `wait`.
        """
        start = seen = time.monotonic()
        idle = threading.Event()
        while True:
            try:
                view = self.get(job)
            except (errors.Unavailable, errors.DeadlineExceeded):
                if time.monotonic() - seen > GATEWAY_AWAY_SECONDS:
                    raise
            else:
                seen = time.monotonic()
                yield view
                if view.state.final:
                    return
            if timeout is not None and time.monotonic() - start > timeout:
                raise errors.DeadlineExceeded(f"job {job} was not done within {timeout:.0f} s")
            idle.wait(every)

    def _wait(
        self,
        job: str,
        timeout: float | None,
        on_update: Callable[[JobView], None] | None,
        enough: Callable[[JobState], bool],
    ) -> JobView:
        looks = self.watch(job, timeout)
        while True:
            view = next(looks)
            if on_update is not None:
                on_update(view)
            if enough(view.state):
                return view

    def view(self, cls: type[ModelT], method: str, path: str, **arguments: Any) -> ModelT:
        """One request whose answer is a `cls`; raises like every method."""
        return parse(cls, self.request(method, path, **arguments))

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """One request in the raw; raises like every method."""
        with self._translated(method, path):
            response = self._http.request(method, path, **arguments)
        if response.is_error:
            raise problem(response)
        return response

    def stream(self, job: str, after: str | None = None) -> Iterator[JobView | EventView]:
        """The job's progress (a JobView whose spec is empty) and events as they happen, until it is
        over; `after` an event's id leaves out the earlier ones.

        A stream that the gateway ends early is opened again where it ended.
        """
        path, last = _path(job, "/stream"), after
        while True:
            headers = {} if last is None else {"Last-Event-ID": last}
            with (
                self._translated("GET", path),
                self._http.stream("GET", path, headers=headers) as response,
            ):
                if response.is_error:
                    response.read()
                    raise problem(response)
                for message in sse.messages(response.iter_lines()):
                    if message.event == "end":
                        return
                    if message.event == "event":
                        last = message.id
                        yield EventView.model_validate_json(message.data)
                    elif message.event == "job":
                        yield JobView.model_validate_json(message.data)

    @contextmanager
    def _translated(self, method: str, path: str) -> Iterator[None]:
        """Turns a failure of the connection into the one error family."""
        try:
            yield
        except httpx.ConnectError as error:
            raise errors.Unavailable(f"no gateway at {self.url}: {error}") from error
        except httpx.TimeoutException as error:
            raise errors.DeadlineExceeded(
                f"gateway {self.url} did not answer {method} {path} in time"
            ) from error
        except httpx.HTTPError as error:
            raise errors.Unavailable(
                f"gateway {self.url}: {str(error) or type(error).__name__}"
            ) from error


class _Checkpoints(pydantic.RootModel[list[CheckpointView]]):
    """The answer of `/checkpoints`."""


def _path(job: str, rest: str = "") -> str:
    if not job:
        raise errors.InvalidInput("a job id is empty")
    return f"/v1/jobs/{quote(job, safe='')}{rest}"


def _conditions(version: int | None, key: str | None) -> dict[str, str]:
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    return headers if key is None else {**headers, "Idempotency-Key": key}


def _text(spec: str | Path | JobSpec | Mapping[str, Any]) -> str:
    if isinstance(spec, str):
        return spec
    if isinstance(spec, Path):
        try:
            return spec.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise errors.InvalidInput(f"can't read the JobSpec {spec}: {error}") from error
    if isinstance(spec, JobSpec):
        return spec.model_dump_json()
    return json.dumps(dict(spec))
