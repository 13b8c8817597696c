"""A few steps with random actions: does an environment return what it announces? Asked before a run depends on it."""

import numpy as np

from impala.types import Actions, Continuous, Discrete, Environment, Step

NUM_STEPS = 8


def fault(environment: Environment, *, seed: int = 0) -> str | None:
    """Returns the first field that is not as `environment.spec` says, and what was expected; None if all is well."""
    if find := getattr(environment, "fault", None):  # finds what its vectorisation would hide or fail on
        if found := find(NUM_STEPS):
            return found
    random, spec = np.random.default_rng(seed), environment.spec
    step, n = environment.reset(seed), environment.num_environments
    if not np.all(step.is_first):
        return f"is_first is {step.is_first} after a reset; expected True everywhere"
    for _ in range(NUM_STEPS):
        if found := _fault_of_step(step, spec.observation, n):
            return found
        environment.send(random_action(spec.actions, n, random))
        step = environment.receive()
    return _fault_of_step(step, spec.observation, n)


def _fault_of_step(step: Step, observation, n: int) -> str | None:
    return (
        fault_of_array("observation", step.observation, (n, *observation.shape), observation.dtype, casting="no")
        or fault_of_array("reward", step.reward, (n,), np.float32, casting="no")
        or fault_of_array("discount", step.discount, (n,), np.float32, casting="no")
        or fault_of_array("is_first", step.is_first, (n,), np.bool_)
        or fault_of_array("is_last", step.is_last, (n,), np.bool_)
        or _fault_of_reset(step)
    )


def _fault_of_reset(step: Step) -> str | None:
    """No transition leads to a first step: it has no reward and ends nothing."""
    is_first = np.asarray(step.is_first)
    for name, expected in dict(reward=0.0, discount=1.0, is_last=False).items():
        value = np.asarray(getattr(step, name))
        if np.any(value[is_first] != expected):
            return f"{name} is {value} where is_first is {is_first}; expected {expected} there"
    return None


def fault_of_array(name: str, value, shape: tuple[int, ...], dtype, casting: str = "same_kind") -> str | None:
    """Returns how `value` differs from numbers of `shape` that `dtype` can hold, none of them NaN or infinite.

    `casting` says what "can hold" means, as numpy's; what nobody casts later must be of the dtype itself: "no".
    """
    try:
        array = np.asarray(value)
    except ValueError as error:  # ragged
        return f"{name} is not an array ({error}); expected one of shape {shape}"
    if array.shape != shape:
        return f"{name} has shape {array.shape}; expected {shape}"
    if not np.can_cast(array.dtype, dtype, casting):
        return f"{name} has dtype {array.dtype}; expected {np.dtype(dtype)}"
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        return f"{name} holds {'NaN' if np.isnan(array).any() else 'infinity'}; expected finite numbers"
    return None


def random_action(actions: Actions, n: int, random: np.random.Generator) -> np.ndarray:
    """Returns valid actions [n, …]."""
    shape, dtype = actions.array
    if isinstance(actions, Continuous):
        return random.uniform(-1.0, 1.0, (n, *shape)).astype(dtype)
    high = actions.num_actions if isinstance(actions, Discrete) else np.asarray(actions.num_actions)
    return random.integers(high, size=(n, *shape)).astype(dtype)
