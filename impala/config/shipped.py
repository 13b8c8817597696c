"""The configurations that come with the package, each called by a word: `impala train pong`, `impala compare lag`."""

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from impala.config.errors import ConfigError, nearest

FOLDER = Path(__file__).resolve().parents[1] / "configs"  # in a checkout a link to configs/


def trainings() -> dict[str, Path]:
    """Returns the configurations for `impala train` and `impala bench` by word; the lab's tasks are lab/catch, …."""
    return {_word(path): path for path in _files() if not is_grid(path)}


def grids() -> dict[str, Path]:
    """Returns the grids for `impala compare` by word."""
    return {path.stem: path for path in _files() if is_grid(path)}


def path_of(word: str, shipped: Mapping[str, Path], usage: str) -> Path:
    """Returns the file called `word`.

    Raises:
      ConfigError: there is none; `usage` is the option that takes a user's own file.
    """
    if word not in shipped:
        hint = f"; did you mean {usage} {word}?" if _is_file(Path(word)) else nearest(word, shipped)
        name, are_grids = Path(word).name, shipped.keys() <= grids().keys()
        if name in grids() and not are_grids:
            hint = f"; {name} is a grid: impala compare {name}"
        elif word in trainings() and are_grids:
            hint = f"; {word} is no grid: impala train {word}"
        hint = hint or f"; expected one that --list names, or {usage} FILE"
        raise ConfigError([f"{word}: no shipped configuration{hint}"])
    return shipped[word]


def listed(shipped: Mapping[str, Path]) -> list[str]:
    """Returns a line for each: its word, and the first sentence of the comment that its file begins with."""
    width = max(map(len, shipped), default=0)
    return [f"{word:{width}}  {_first_sentence(path)}" for word, path in shipped.items()]


def _files() -> list[Path]:
    return [*sorted(FOLDER.glob("*.yaml")), *sorted(FOLDER.glob("lab/*.yaml"))]


def _word(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def is_grid(path: Path) -> bool:
    """Returns whether a file is a grid; not if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return False
    return re.search(r"^schemes:", text, flags=re.MULTILINE) is not None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long, or its folder is another user's
        return False


def _first_sentence(path: Path) -> str:
    comment = re.match(r"(?:#.*\n)*", path.read_text(encoding="utf-8"))[0]
    words = " ".join(line.lstrip("# ") for line in comment.splitlines())
    return textwrap.shorten(re.split(r"(?<=[.;]) (?=[A-Z])", words, maxsplit=1)[0], 110, placeholder=" …")
