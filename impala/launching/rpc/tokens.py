"""The run's token: a process that holds it may call.

It lives in a file of mode 0600; processes are handed the file's path, never the token.
"""

import contextlib
import hmac
import os
import secrets
from collections.abc import Iterable
from typing import Any

TOKEN_FILE_VARIABLE = "IMPALA_RPC_TOKEN_FILE"
METADATA_KEY = "impala-token"
_MIN_CHARACTERS = 32


def new_token(path: str | os.PathLike) -> None:
    """Write a fresh token of 32 random bytes, in hexadecimal, to a new file of mode 0600.

    Raises:
      FileExistsError: there is a file at `path` already; it may be another run's, or a trap.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))


def use_new_token(path: str | os.PathLike) -> None:
    """Writes a fresh token to `path`, in place of an older one, for this process and those that it starts."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    new_token(path)
    os.environ[TOKEN_FILE_VARIABLE] = str(path)


def read_token() -> str | None:
    """Return this process's token, or None where IMPALA_RPC_TOKEN_FILE is not set.

    Raises:
      RuntimeError: the variable is set and its file cannot be read or holds no token.
    """
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    if not path:
        return None
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(f"{TOKEN_FILE_VARIABLE}={path} cannot be read: {error}") from error
    if len(token) < _MIN_CHARACTERS or not token.isalnum():
        raise RuntimeError(f"{TOKEN_FILE_VARIABLE}={path} holds no token: {_MIN_CHARACTERS} letters and digits or more")
    return token


def is_authorised(expected: str | None, metadata: Iterable[tuple[str, Any]]) -> bool:
    """Return whether a call's metadata carries the expected token; True if none is expected."""
    if expected is None:
        return True
    given = next((value for key, value in metadata if key == METADATA_KEY), "")
    given = given.encode("utf-8", "replace") if isinstance(given, str) else given
    return hmac.compare_digest(given, expected.encode())
