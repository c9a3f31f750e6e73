"""What a gateway's answers mean: its views, or the one error family."""

from __future__ import annotations

from typing import TypeVar

import httpx
import pydantic

from services.api.views import Problem
from services.kit import errors

ModelT = TypeVar("ModelT", bound=pydantic.BaseModel)
_ERRORS: dict[int, type[errors.EmbermeshError]] = {
    400: errors.InvalidInput,
    404: errors.NotFound,
    405: errors.InvalidInput,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    409: errors.Conflict,
    412: errors.PreconditionFailed,
    413: errors.TooLarge,
    429: errors.TooManyRequests,
    415: errors.InvalidInput,
    422: errors.InvalidInput,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
}


def parse(cls: type[ModelT], response: httpx.Response) -> ModelT:
    """The answer as a `cls`. Raises EmbermeshError for one that is none."""
    try:
        return cls.model_validate_json(response.content)
    except pydantic.ValidationError as error:
        what = f"{response.request.method} {response.request.url}"
        raise errors.EmbermeshError(
            f"{what}: not an answer of an Embermesh gateway: {error}"
        ) from error


def problem(response: httpx.Response) -> errors.EmbermeshError:
    """The error that a refusal stands for, in the gateway's words."""
    kind = _ERRORS.get(response.status_code, errors.EmbermeshError)
    try:
        told = Problem.model_validate_json(response.content)
    except pydantic.ValidationError:
        what = f"{response.request.method} {response.request.url}"
        return kind(f"{what}: HTTP {response.status_code} {response.reason_phrase}")
    return kind("\n".join(told.errors) or told.detail or told.title)
