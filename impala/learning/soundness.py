"""Which checkpoints of a folder are intact; checked without TensorFlow, so that `impala runs` need not import it.

    state.json   {"frames": …, "updates": …, "sha256": {file: digest}, "state_sha256": digest of all the rest of it}
"""

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

STATE, DAMAGED, ROLLED_BACK = "state.json", ".damaged", ".rolled_back"
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_DIGEST = "state_sha256"
_COUNTS = ("updates", "frames", "episodes", "wall_seconds")
_LARGEST = 2**63


def paths(directory: Path) -> list[Path]:
    """Returns the checkpoints, oldest first."""
    return sorted(path for path in directory.glob("*") if path.name.isdigit())


def survey(directory: Path) -> tuple[Path | None, dict[str, Any], list[tuple[str, str]]]:
    """Looks for the newest sound checkpoint.

    Returns:
      its path, None where there is none; its state; (name, reason) of the newer ones that are damaged, newest first
    """
    passed_over = []
    for path in reversed(paths(directory)):
        try:
            return path, _sound_state(path), passed_over
        except _DAMAGE as error:
            passed_over.append((path.name, _reason(error)))
    return None, {}, passed_over


def newest_state(directory: Path) -> dict[str, Any] | None:
    """Returns the newest state that is sound, without a look at its tensors; None if there is none."""
    for path in reversed(paths(directory)):
        try:
            return _checked_state(path)
        except _DAMAGE:
            continue
    return None


def roll_back(directory: Path, num_updates: int) -> tuple[Path, Path]:
    """Sets the newest checkpoints aside, so that training goes on from one at least `num_updates` updates older.

    So is an evaluator's best, beside `directory`, if it is newer than that one.

    Returns and raises what `older_by` does.
    """
    newest, older = older_by(directory, num_updates)
    for path in paths(directory):
        if int(path.name) > int(older.name):
            aside = path.with_suffix(ROLLED_BACK)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    best = directory.with_name("best")  # an evaluator's
    if (state := newest_state(best)) and state["updates"] > int(older.name):
        shutil.rmtree(best.with_suffix(ROLLED_BACK), ignore_errors=True)
        best.rename(best.with_suffix(ROLLED_BACK))
    return newest, older


def older_by(directory: Path, num_updates: int) -> tuple[Path, Path]:
    """Returns the newest sound checkpoint, and the newest that is at least `num_updates` updates older.

    Raises:
      LookupError: there is none, or none so old.
    """
    kept = [path for path, _ in _sound(directory)]
    if not kept:
        raise LookupError("holds no sound checkpoint")
    newest = int(kept[-1].name)
    older = [path for path in kept if int(path.name) <= newest - num_updates]
    if not older:
        held = ", ".join(f"{newest - int(path.name):,}" for path in reversed(kept[:-1]))
        raise LookupError(f"its checkpoints are {held} updates before the newest" if held else "has one checkpoint")
    return kept[-1], older[-1]


def _sound(directory: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the sound checkpoints, oldest first, with their states."""
    found = []
    for path in paths(directory):
        with contextlib.suppress(*_DAMAGE):
            found.append((path, _sound_state(path)))
    return found


def sealed(state: dict[str, Any]) -> str:
    """Returns the text of a state.json, with a digest of itself.

    Raises:
      ValueError: a number is not finite, which JSON cannot hold.
      TypeError: JSON cannot hold the type of a value.
    """
    state = json.loads(json.dumps(state, allow_nan=False))
    return json.dumps(state | {_DIGEST: _digest(state)}, indent=1)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sound_state(path: Path) -> dict[str, Any]:
    """Returns the state of a checkpoint whose files are as they were written; raises one of `_DAMAGE` if not."""
    state = _checked_state(path)
    if not state["sha256"]:
        raise ValueError(f"{STATE} names no tensors")
    for name, digest in state["sha256"].items():
        if sha256(path / name) != digest:
            raise ValueError(f"{name} does not match its SHA-256")
    return state


def _checked_state(path: Path) -> dict[str, Any]:
    state = json.loads((path / STATE).read_text(encoding="utf-8"), parse_constant=_refuse)
    if _DIGEST in state and state[_DIGEST] != _digest(state):  # the first versions wrote none
        raise ValueError(f"{STATE} does not match its SHA-256")
    for name in _COUNTS:
        value = state.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST:
            raise ValueError(f"{STATE}: {name} is {str(value)[:40]!r}; expected a finite number of at least 0")
    if state.get("updates") != int(path.name):
        raise ValueError(f"{STATE}: updates is {state.get('updates')}; expected {int(path.name)}, the folder's name")
    return state


def _digest(state: dict[str, Any]) -> str:
    rest = {name: value for name, value in state.items() if name != _DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _refuse(constant: str):
    raise ValueError(f"{STATE} holds {constant}; expected finite numbers")


def _reason(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return said[0] if said else type(error).__name__
