"""What is wrong with a configuration, one line per error: the key, the value, what was expected, the nearest name."""

import difflib
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from impala import own


class ConfigError(ValueError):
    """A configuration that cannot run: one line per error in `lines`; a command that raises it exits with `status`."""

    status = 2

    def __init__(self, lines: Iterable[str]):
        self.lines = [" ".join(line.splitlines()) for line in lines]
        super().__init__("\n".join(self.lines))


LISTED = "; impala COMMAND --help lists all"
_ALSO = {"gamma": "discount", "lr": "learning_rate", "num_envs": "num_environments"}  # what others call our keys
_REPR = reprlib.Repr()
_REPR.maxstring, _REPR.maxother, _REPR.maxlevel = 200, 200, 2


def _show(value: Any) -> str:
    """Returns `repr(value)`, cut to one line: through YAML's aliases a short file can hold a huge value."""
    try:
        return _REPR.repr(value if not isinstance(value, float) or math.isfinite(value) else str(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a huge integer"


def describe(error: Mapping, known: Iterable[str]) -> str:
    """Returns a pydantic error as a line: the key, the value, what was expected, the nearest of `known` keys."""
    place, known = [str(part) for part in error["loc"]], list(known)
    agent = place.pop(1) if len(place) > 2 and place[0] == "agent" else ""  # in a union, pydantic adds the choice
    key, value = ".".join(place), error.get("input")
    if error["type"] == "extra_forbidden" and key in known and not agent:
        section, _, name = key.partition(".")
        return f"{key}: a name with a dot; expected it below its section, like {section}: {{{name}: …}}"
    if error["type"] == "extra_forbidden" and key in known:
        return f"{key}: not with agent.name={agent}; expected no such key"
    if error["type"] == "extra_forbidden":
        return f"{key}: unknown key{nearest(key, known) or LISTED}"
    if error["type"] == "union_tag_invalid":
        tags = error["ctx"]["expected_tags"].replace("'own'", f"nor {own.FORM}")
        if not isinstance(value, dict):
            return f"{key}: got {_show(value)}; expected keys below it, like {key}.name"
        name = value.get("name")
        hint = nearest(name, re.findall(r"'(\w+)'", tags)) if isinstance(name, str) else ""
        return f"{key}.name: {_show(name)} is not one of {tags}{hint}"
    if error["type"] == "missing":
        return f"{key}: missing; expected a value"
    if error["type"] == "value_error":
        return f"{key + ': ' if key else ''}{error['ctx']['error']}"
    if error["type"] == "literal_error":
        allowed = [name.strip(" '") for name in re.split(r",| or ", error["ctx"]["expected"])]
        hint = nearest(value, allowed) if isinstance(value, str) else ""
        return f"{key}: {_show(value)} is not one of {', '.join(allowed)}{hint}"
    if error["type"].startswith(("model_", "dict_")):
        return f"{key}: got {_show(value)}; expected keys below it{_below(key, known)}"
    if error["type"] in ("tuple_type", "list_type"):
        items = ", ".join(str(value).replace(",", " ").split()) if isinstance(value, str) else _show(value)
        return f"{key}: got {_show(value)}; expected a list, like [{items}]"
    return f"{key}: got {_show(value)}; {error['msg'][0].lower() + error['msg'][1:]}"


def _below(section: str, known: Iterable[str]) -> str:
    names = [name for name in known if name.startswith(f"{section}.")]
    return f", like {names[0]}" if names else ""


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Returns "; did you mean …?" with the candidate that is most like a mistyped word; "" if none is like it."""
    candidates, name = list(candidates), word.split(".")[-1]
    matches = [c for c in candidates if name in _ALSO and c.split(".")[-1] == _ALSO[name]]
    matches = matches or difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    matches = matches or [c for c in candidates if c.split(".")[-1] == name]  # the right name in the wrong section
    matches = matches or sorted((c for c in candidates if word and c.startswith(word)), key=len)
    return f"; did you mean {matches[0]}?" if matches else ""
