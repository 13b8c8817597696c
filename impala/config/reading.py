"""YAML files and command lines in, a validated `Config` out; and back."""

import functools
import inspect
import itertools
import re
import stat
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from impala.config import shipped, uses
from impala.config.errors import LISTED, ConfigError, describe, nearest
from impala.config.schema import DEFAULTS_OF, Config
from impala.config.sections import CORRECTIONS_OF, OWN_CORRECTIONS


class _Loader(yaml.SafeLoader):
    """safe_load that refuses duplicate keys and reads 3e-4 as a number (YAML 1.1 wants 3.0e-4), 1e6 as a whole one.

    What YAML 1.1 reads in base 8 or 60, 010 and 1:30, stays a word.
    """


def _mapping_without_duplicates(loader, node):
    keys = [key.value for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.YAMLError(f"{key}: written twice; expected once")
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


def _whole(loader, node):
    is_odd = re.match(r"[-+]?0[\d_]|.*:", node.value)
    return node.value if is_odd else loader.construct_yaml_int(node)


def _number(loader, node):
    if ":" in node.value:
        return node.value
    value = loader.construct_yaml_float(node)
    has_exponent = "e" in node.value.lower()  # 1.5e6 is whole, 10.0 is not meant to be
    is_whole = has_exponent and abs(value) < 2**53 and value.is_integer()
    return int(value) if is_whole else value


class _Dumper(yaml.SafeDumper):
    """safe_dump that quotes strings that `_Loader` would read as numbers."""


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_duplicates)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )

_MAX_FILE_BYTES = 1 << 16
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip


def _parse(text: str) -> Any:
    """Parses YAML; turns errors of other kinds, which PyYAML lets through, into YAMLErrors."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise
    except Exception as error:  # 2001-99-99, !!int x, !!bool x, [[[[…
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from None


def read_yaml(path: str | Path) -> dict:
    """Reads a mapping from a YAML file. Raises ConfigError with one line when it cannot."""
    path = Path(str(path))  # --config 5 on the command line gives a number
    try:
        status = path.stat()
        if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):  # before opening: a pipe that nobody writes to blocks
            raise ConfigError([f"{path}: is {kind}; expected a regular file"])
        if status.st_size > _MAX_FILE_BYTES:
            raise ConfigError([f"{path}: {status.st_size} bytes; expected a configuration under {_MAX_FILE_BYTES}"])
        with path.open("rb") as file:
            data = _parse(file.read(_MAX_FILE_BYTES + 1).decode("utf-8"))  # files of /proc report a size of 0
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is no text; expected a YAML file"]) from None
    except OSError as error:
        near = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")] if path.parent.is_dir() else [])
        if str(path) in shipped.trainings() | shipped.grids():
            near = f"; did you mean the shipped one, {path} without --config?"
        raise ConfigError([f"{path}: {error.strerror or error}{near}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{path}: not a sound YAML file: {' '.join(str(error).split())}"]) from None
    if data is None:
        raise ConfigError([f"{path}: is empty; expected a mapping of keys to values"])
    if not isinstance(data, dict):
        raise ConfigError([f"{path}: holds {type(data).__name__}; expected a mapping of keys to values"])
    return data


def refuse_patterns(folder: Path, option: str) -> None:
    """Raises ConfigError for a folder below which TensorFlow and Reverb would find no checkpoint again."""
    if odd := " ".join(each for each in "[*?\\" if each in str(folder)):
        line = f"{option} {folder}: TensorFlow would find no checkpoint below a name with {odd}; expected another name"
        raise ConfigError([line])


def parse_overrides(arguments: Iterable[str], known: Iterable[str] | None = None) -> dict[str, Any]:
    """Reads `--learner.learning-rate 3e-4` or `--seed=1` into {"learner.learning_rate": 0.0003, "seed": 1}.

    Only of an option without a value it is said whether it is `known`, by default as a key of a configuration.
    """
    overrides, errors, arguments = {}, [], list(arguments)
    while arguments:
        argument = arguments.pop(0)
        if not argument.startswith("--"):
            errors.append(f"{argument}: expected an option like --learner.learning-rate 3e-4")
            continue
        key, equals, value = argument[2:].partition("=")
        if not equals:
            if not arguments or (arguments[0].startswith("--")):
                is_known = key.replace("-", "_") in (keys() if known is None else known)
                hint = f"has no value; expected --{key} VALUE" if is_known else f"unknown{LISTED}"
                errors.append(f"--{key}: {hint}")
                continue
            value = arguments.pop(0)
        key = key.replace("-", "_")
        try:
            overrides[key] = _parse(value)
        except yaml.YAMLError:
            overrides[key] = value
    if errors:
        raise ConfigError(errors)
    return overrides


def build(data: Mapping[str, Any], overrides: Mapping[str, Any] = {}) -> Config:
    """Builds a Config from nested `data`, overridden by dotted `overrides`.

    Raises:
      ConfigError: all errors at once, a line each: the key, the value, what was expected, the nearest valid name.
    """
    merged = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    errors = []
    for key, value in overrides.items():
        *parents, last = key.split(".")
        node = merged
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                errors.append(f"{key}: {parent} is not a section{nearest(key, keys())}")
                break
        else:
            old = node.get(last)
            node[last] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    try:
        config = Config.model_validate(merged)
    except pydantic.ValidationError as error:
        errors += [describe(e, [*keys(), *Config.model_fields]) for e in error.errors()]
    if errors:
        raise ConfigError(errors)
    return config


def load(path: str | Path, overrides: Mapping[str, Any] = {}) -> Config:
    """Reads a YAML file and builds a Config from it and `overrides`; see `build`."""
    return build(read_yaml(path), overrides)


def over(below: Config, above: Config) -> Config:
    """Returns `above` with the keys not set in it taken from `below`; `above` alone if program or agent differ."""
    if (below.program, below.agent.name) != (above.program, above.agent.name):
        return above
    return build(_merged(as_data(below), above.model_dump(by_alias=True, exclude_unset=True)))


def _merged(below: dict, above: Mapping) -> dict:
    both = {key: _merged(below.get(key, {}), value) for key, value in above.items() if isinstance(value, dict)}
    return below | above | both


def dump(config: Config) -> str:
    """Returns the resolved configuration as YAML, only keys that program and agent use; `load` gives an equal one."""
    return yaml.dump(as_data(config, mode="json"), Dumper=_Dumper, sort_keys=False)


def as_data(config: Config, **how) -> dict[str, Any]:
    """Returns the nested keys and values that program and agent use; `build` makes an equal Config from them.

    `how` is passed to pydantic's `model_dump`.
    """
    return _used(config, config.model_dump(by_alias=True, **how))


def _used(config: Config, node: Mapping, prefix: str = "") -> dict:
    below = {
        key: _used(config, value, f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in node.items()
        if isinstance(value, dict) or config.has_use_for(prefix + key)
    }
    return {key: value for key, value in below.items() if value != {}}


def flatten(config: Config) -> dict[str, Any]:
    """Returns {"learner.batch_size": 32, …}."""
    return dict(_leaves(config.model_dump(by_alias=True)))


@functools.cache
def keys() -> tuple[str, ...]:
    """Returns every valid dotted key, of all agents."""
    return tuple(key for key, _, _ in documented())


def documented(program: str | None = None, agent: str | None = None) -> Iterator[tuple[str, str, str]]:
    """Yields for each dotted key: the key, its default as YAML, and its choices and meaning (its source comment).

    With `program`, yields only the keys that it and its agents use, with the defaults of the program and its first
    agent; where another agent's is another, the text says so. With one of its agents, yields that one's alone.
    """
    rows: dict[str, tuple[str, str]] = {}
    agents = uses.AGENTS[program] if program else (None,)
    agents = (agent,) if agent in agents else agents
    for agent in agents:
        defaults = _defaults(program, agent) if program else {}
        for key, default, text in _documented(Config, (agent,) if agent else ()):
            if program and not (uses.is_of_program(key, program, agent) and uses.is_of_agent(key, agent)):
                continue
            default = defaults.get(key, default)
            first, said = rows.setdefault(key, (default, text))
            if default != first and key != "agent.name":
                rows[key] = first, "; ".join(filter(None, [said, f"with {agent} {default}"]))
    names = uses.AGENTS[program] if program else dict.fromkeys(itertools.chain(*uses.AGENTS.values()))
    first, said = rows["agent.name"]
    rows["agent.name"] = first, said.replace(first, " | ".join(names), 1)
    if program and "loss.correction" in rows:
        schemes = {word for each in agents for word in CORRECTIONS_OF[each]}
        first, said = rows["loss.correction"]
        choices, *others = said.split("; ")
        schemes |= {"package.module:name"} if OWN_CORRECTIONS.keys() & {*agents} else set()
        kept = [word for word in choices.split(" | ") if word in schemes]
        others = [text for text in others if text.startswith(tuple(f"with {each} " for each in agents))]
        rows["loss.correction"] = first, "; ".join([" | ".join(kept), *others])
    sections = list(dict.fromkeys(key.split(".")[0] for key in rows))
    for key in sorted(rows, key=lambda key: sections.index(key.split(".")[0])):
        yield key, *rows[key]


def _defaults(program: str, agent: str) -> dict[str, str]:
    """Returns the defaults of a program with one of its agents, where they are not those of the schema."""
    defaults = DEFAULTS_OF[program] | DEFAULTS_OF.get(f"{program}+{agent}", {})
    if agent != uses.AGENTS[program][0]:
        defaults = {name: section for name, section in defaults.items() if name != "agent"}
    return {key: _as_yaml(value) for key, value in _leaves(defaults)}


def _documented(model: type[pydantic.BaseModel], agents: tuple[str, ...] = (), prefix: str = ""):
    comments = _comments(model)
    for name, field in model.model_fields.items():
        key, kind = prefix + (field.alias or name), field.annotation
        kinds = [typing.get_args(each)[0] if hasattr(each, "__metadata__") else each for each in typing.get_args(kind)]
        kinds = [each for each in (kind, *kinds) if isinstance(each, type)]
        models = [each for each in kinds if issubclass(each, pydantic.BaseModel)]
        if models:
            chosen = [m for m in models if not agents or len(models) == 1 or m.model_fields["name"].default in agents]
            rows = {}
            for row in itertools.chain(*(_documented(m, prefix=f"{key}.") for m in chosen)):
                rows.setdefault(row[0], row)
            yield from rows.values()
            continue
        choices = " | ".join(_choices(field))
        default = "…" if field.is_required() else _as_yaml(field.default)
        yield key, default, "; ".join(filter(None, [choices, comments.get(name, "")]))


def _choices(field: pydantic.fields.FieldInfo) -> list[str]:
    """Returns the words that a key takes; [] if it takes something else."""
    shelves = [each.func.words for each in field.metadata if hasattr(getattr(each, "func", None), "words")]
    if shelves:
        return [*shelves[0], "package.module:name"]
    return list(typing.get_args(field.annotation)) if typing.get_origin(field.annotation) is typing.Literal else []


@functools.cache  # to read the source takes as long as all else of the command line's configuration
def _comments(model: type[pydantic.BaseModel]) -> dict[str, str]:
    """Returns the comment behind each field in the model's source, by name."""
    return dict(re.findall(r"^    (\w+): .*?  # (.*)$", inspect.getsource(model), flags=re.MULTILINE))


def _as_yaml(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.dump(plain, Dumper=_Dumper, default_flow_style=True).splitlines()[0]


def _leaves(node: Mapping, prefix: str = ""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
