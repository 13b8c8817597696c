"""The outcome of a call: absl's codes, the exception that carries them, the code of each Python exception."""

import enum


class StatusCode(enum.IntEnum):
    """absl's names, gRPC's numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class StatusNotOk(Exception):
    """A call that failed. `code` says how, `message` why; if the handler raised, it holds the traceback."""

    def __init__(self, message: str, code: StatusCode = StatusCode.UNKNOWN):
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


# UNAVAILABLE is missing on purpose: clients repeat such calls for ever.
_CODES = (
    ((ValueError, TypeError), StatusCode.INVALID_ARGUMENT),
    (StopIteration, StatusCode.OUT_OF_RANGE),
    (MemoryError, StatusCode.RESOURCE_EXHAUSTED),
    (NotImplementedError, StatusCode.UNIMPLEMENTED),
    (KeyboardInterrupt, StatusCode.ABORTED),
    ((SystemError, SyntaxError), StatusCode.INTERNAL),
    (LookupError, StatusCode.NOT_FOUND),
)


def code_of(exception: BaseException) -> StatusCode:
    """Return the code that stands for a handler's exception; UNKNOWN if its type is not in the table."""
    return next((code for types, code in _CODES if isinstance(exception, types)), StatusCode.UNKNOWN)
