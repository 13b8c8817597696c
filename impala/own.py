"""A user's own part, named `package.module:name` in place of a built-in word: loaded, called, identified by a hash.

Every process that needs it imports it, from the current folder too. Name only modules you trust: their code runs.
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

FORM = "package.module:name of your own"
_WORD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_own(word: Any) -> bool:
    """Returns whether a word has the form `package.module:name`."""
    return isinstance(word, str) and bool(_WORD.fullmatch(word))


def load(word: str) -> Any:
    """Imports the module of `word` and returns what it names there: an attribute, or a module of that package.

    Raises:
      ImportError: there is no such module, or no such name in it; the message says which.
      Exception: whatever the module raises while it is imported.
    """
    module_name, _, path = word.partition(":")
    part = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(part, name) and inspect.ismodule(part) and hasattr(part, "__path__"):
            importlib.import_module(f"{part.__name__}.{name}")
        if not hasattr(part, name):
            raise ImportError(f"{module_name} has no {path}")
        part = getattr(part, name)
    return part


def call(function: Callable, **arguments) -> Any:
    """Calls a function or class with those of the `arguments` that it takes."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    return function(**{name: value for name, value in arguments.items() if takes_all or name in names})


def file_and_hash(word: str) -> str:
    """Returns the file of the module that `word` names, and the start of its SHA-256; or "of no file".

    What names a module of a package, as `package:module`, is in that module's file. What a package itself holds may be
    written in any of its files: the hash is of them all. What a module imports from elsewhere is in no hash.
    """
    module_name, _, path = word.partition(":")
    try:
        found = importlib.util.find_spec(module_name)
        for name in path.split("."):
            folders = found.submodule_search_locations  # None: no package
            inner = folders and PathFinder.find_spec(f"{found.name}.{name}", folders)
            if not inner:
                break
            found = inner
        path = Path(found.origin)
        content = _of_package(path.parent) if found.submodule_search_locations else path.read_bytes()
        return f"{path} sha256:{hashlib.sha256(content).hexdigest()[:16]}"
    except Exception:  # no such module, a built-in one, or a parent package that cannot be imported
        return "of no file"


def _of_package(folder: Path) -> bytes:
    """Returns names, sizes and contents of a package's Python files; what is hidden or no file is none of them."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*.py") if path.is_file())
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    contents = [(folder / name).read_bytes() for name in names]
    return b"".join(f"{name} {len(content)}\n".encode() + content for name, content in zip(names, contents))
