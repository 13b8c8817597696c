"""RPC between the nodes of a program, and the stand-in for `courier` that lets `import launchpad` work.

The `courier` in the dm-launchpad wheel is linked against TensorFlow 2.8 and does not load together with 2.15.
`install` puts a folder first on Python's path, here and in child processes, where `import courier` finds this
package instead, in the same copy of impala. What differs from courier: a typed codec instead of object serialisation,
a token, 127.0.0.1 instead of every interface, one server for each port, and arrays that arrive (launchpad#28).

This module imports neither gRPC nor numpy; the parts are `client`, `server`, `batching` and `codec`.
"""

import os
import pathlib
import sys

from impala.launching.rpc.tokens import new_token, use_new_token

__all__ = ["SHIM_PATH", "install", "new_token", "use_new_token"]

SHIM_PATH = str(pathlib.Path(__file__).resolve().parent / "shim")  # holds `courier/` and nothing else


def install() -> None:
    """Make `import courier` find the stand-in, in this process and in those it starts; safe to repeat.

    Raises:
      RuntimeError: another `courier` was imported before.
    """
    module = sys.modules.get("courier")
    file = getattr(module, "__file__", None) or ""
    if module is not None and not file.startswith(SHIM_PATH + os.sep):
        if file.endswith("/impala/launching/rpc/shim/courier/__init__.py"):
            raise RuntimeError(f"two copies of impala meet: {SHIM_PATH} and {file}; expected one, see PYTHONPATH")
        raise RuntimeError(
            f"another courier, {module!r}, is imported already; import impala.launching before launchpad"
        )
    sys.path[:] = _first(sys.path)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(_first(path.split(os.pathsep) if path else []))


def _first(entries: list[str]) -> list[str]:
    return [SHIM_PATH, *(entry for entry in entries if entry != SHIM_PATH)]
