"""The one error family: every class knows its gRPC code, HTTP status and whether a retry can help.

`services.kit.rpc` maps these to gRPC statuses and back; the gateway maps them to problem+json.
Messages name the field, the value and the bound.
"""

from __future__ import annotations

import grpc


class EmbermeshError(Exception):
    """Base of all expected failures. `permanent`: trying again with the same input can't help."""

    code: grpc.StatusCode = grpc.StatusCode.INTERNAL
    http_status: int = 500
    permanent: bool = False


class InvalidInput(EmbermeshError):
    """The caller's input is wrong: a field, a value, a file."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    http_status = 422
    permanent = True


class NotFound(EmbermeshError):
    """The named thing doesn't exist."""

    code = grpc.StatusCode.NOT_FOUND
    http_status = 404
    permanent = True


class Conflict(EmbermeshError):
    """The request doesn't fit the present state (state machine, version, generation)."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    http_status = 409


class PreconditionFailed(Conflict):
    """The caller named a version (If-Match) that is not the present one."""

    http_status = 412


class Unauthenticated(EmbermeshError):
    """Nobody can tell who asks: no token, or one that is wrong, expired or revoked."""

    code = grpc.StatusCode.UNAUTHENTICATED
    http_status = 401
    permanent = True


class Forbidden(EmbermeshError):
    """Who asks may not do that."""

    code = grpc.StatusCode.PERMISSION_DENIED
    http_status = 403
    permanent = True


class QuotaExceeded(Forbidden):
    """The tenant's quota leaves no room for it."""


class TooLarge(InvalidInput):
    """The request's body is above the limit."""

    http_status = 413


class Exhausted(EmbermeshError):
    """There is no room for more: of memory, or of what can be numbered."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    http_status = 507


class TooManyRequests(Exhausted):
    """The caller asks too often; `retry_after` seconds later there is room again."""

    http_status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Damaged(EmbermeshError):
    """Stored bytes fail their checksum or grammar; the message names the file."""

    code = grpc.StatusCode.DATA_LOSS
    http_status = 500
    permanent = True


class Unavailable(EmbermeshError):
    """A part can't be reached now."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 503


class NoRoom(Unavailable):
    """What is there is in use; it can be done as soon as others are through, or more is added."""


class DeadlineExceeded(EmbermeshError):
    """A wait came to its end; the message says what was waited for and how long."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504


_FAMILY: tuple[type[EmbermeshError], ...] = (
    InvalidInput,
    NotFound,
    Conflict,
    Unauthenticated,
    Forbidden,
    Exhausted,
    Damaged,
    Unavailable,
    DeadlineExceeded,
)


def from_grpc(error: grpc.RpcError, peer: str) -> EmbermeshError:
    """The family's error for a failed call to `peer`."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    if code == grpc.StatusCode.CANCELLED:  # what a draining server's grace didn't cover
        code = grpc.StatusCode.UNAVAILABLE
    return kind_of(code)(f"{peer}: {details or code.name}")


def kind_of(code: grpc.StatusCode) -> type[EmbermeshError]:
    """The family's class for a status."""
    return next((k for k in _FAMILY if k.code == code), EmbermeshError)
