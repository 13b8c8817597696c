"""Found as `courier` when its folder comes first on the path; the stand-in is impala.launching.rpc.

In a process that Launchpad starts, this file is the first to import impala. It must be the copy around this file, which
is the parent's, and not one that comes earlier on Python's path: a checkout in the current folder, or an installed one.
"""

import importlib.util
import pathlib
import sys

if "impala" not in sys.modules:
    _folder = pathlib.Path(__file__).resolve().parents[4]
    _spec = importlib.util.spec_from_file_location(
        "impala", _folder / "__init__.py", submodule_search_locations=[str(_folder)]
    )
    sys.modules["impala"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["impala"])

from impala.launching.rpc.client import Client, StatusNotOk, list_methods
from impala.launching.rpc.server import Server

__all__ = ["Client", "Server", "StatusNotOk", "list_methods"]
