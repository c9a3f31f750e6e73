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


class Damaged(EmbermeshError):
    """Stored bytes fail their checksum or grammar; the message names the file."""

    code = grpc.StatusCode.DATA_LOSS
    http_status = 500
    permanent = True


class Unavailable(EmbermeshError):
    """A part can't be reached now."""

    code = grpc.StatusCode.UNAVAILABLE
    http_status = 503


class DeadlineExceeded(EmbermeshError):
    """A wait came to its end; the message says what was waited for and how long."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    http_status = 504


_FAMILY: tuple[type[EmbermeshError], ...] = (
    InvalidInput,
    NotFound,
    Conflict,
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
    kind = next((k for k in _FAMILY if k.code == code), EmbermeshError)
    return kind(f"{peer}: {details or code.name}")
