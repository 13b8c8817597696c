"""Environments that are handed in as a class, a function or an instance get a gymnasium id, known in this process."""

import functools
import inspect
import re
import uuid
from collections.abc import Callable

import gymnasium

from impala import own

PREFIX = "handed-in/"  # of those ids

TOKEN = uuid.uuid4().hex  # of this process: what another one registered under the same id is something else

_made_by: dict[str, Callable] = {}  # by id


def name_of(environment) -> str:
    """Returns a gymnasium id, known in this process only, for an environment that is handed in.

    Args:
      environment: a `gymnasium.Env` class, a function without arguments that makes one, or an instance that
        `gymnasium.make` made, whose spec makes others like it.

    Raises:
      ValueError: no copies can be made of it; the message says what to write instead.
    """
    kind = type(environment).__name__
    if isinstance(environment, gymnasium.Env):
        if environment.spec is None or environment.spec.entry_point is None:
            raise ValueError(
                f"got one {kind}, of which no copies can be made; expected a class or function: "
                f"Impala({kind}), or Impala(lambda: {kind}(…))"
            )
        spec = environment.spec
        if gymnasium.registry.get(spec.id) == spec:
            return spec.id
        return _registered(spec.id.partition("/")[2] or spec.id, functools.partial(gymnasium.make, spec))
    if hasattr(environment, "receive"):
        raise ValueError(f"got {kind}, which steps all its copies at once; expected it in Lockstep(environments=[…])")
    if isinstance(environment, gymnasium.vector.VectorEnv) or not callable(environment):
        raise ValueError(f"got {kind}; expected a name, a gymnasium.Env class, or a function that makes one")
    return _registered(getattr(environment, "__name__", kind), environment)


def _registered(name: str, make: Callable) -> str:
    """Registers `make` under an id of its own, the same for the same class or function."""
    word = re.sub(r"-v\d+$|\W+", "", name) or "environment"
    version = 0
    while _made_by.get(id_ := f"{PREFIX}{word}-v{version}", make) != make:
        version += 1
    if id_ not in _made_by:
        takes_all = inspect.isclass(make)  # a function gets what it takes: often nothing, not even a render mode
        gymnasium.register(id_, entry_point=make if takes_all else functools.partial(own.call, make))
        _made_by[id_] = make
    return id_
