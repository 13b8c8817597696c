"""What an actor uses when its policy, or the network behind it, is in another process (`inference`, `lanes`)."""

import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Protocol

import numpy as np

from impala.acting.behaviours import Behaviour
from impala.acting.chunks import check_finite
from impala.acting.policies import Decision
from impala.timing import TimeAccount
from impala.types import Chunk, EnvironmentSpec, Step

_SLICE_SECONDS = 0.2
_LIFE_BITS = 42  # hold the milliseconds of 139 years


def new_life(incarnation: int) -> int:
    """Returns a number that rises with every start of a client, within a launch and from one launch to the next."""
    return (incarnation << _LIFE_BITS) + time.time_ns() // 1_000_000


class LaneId(NamedTuple):
    """Names a lane and its client's current life: `life` rises whenever the client restarts."""

    actor: int
    first_environment: int
    life: int
    task: int = 0

    @property
    def incarnation(self) -> int:
        """The incarnation of the client's process; see `types.Origin`."""
        return self.life >> _LIFE_BITS


class Stopped(Exception):
    """It was time to stop before the answer came."""


class Pending(Protocol):
    """A result that was asked for and may not have arrived yet; `over_rpc` and shared memory return it."""

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the result; returns whether it is there."""

    def result(self) -> Any:
        """Returns the result, or raises what the other side raised."""


class _OverRpc:
    def __init__(self, future: futures.Future):
        self._future, self.result = future, future.result

    def wait(self, seconds: float) -> bool:
        return bool(futures.wait([self._future], seconds).done)


def over_rpc(method: Callable[..., futures.Future]) -> Callable[..., Pending]:
    """Turns an RPC client's `futures.method` into a `request` as the classes here take it."""
    return lambda *arguments: _OverRpc(method(*arguments))


Fields = list[tuple[tuple[int, ...], np.dtype]]  # (shape, dtype) of each array


def decision_fields(spec: EnvironmentSpec, num_environments: int) -> tuple[Fields, Fields]:
    """Returns the fields of a `Step`, and those of the answer to it: the `Decision`'s action and version."""
    n, (shape, dtype), (action_shape, action_dtype) = num_environments, spec.observation, spec.actions.array
    numbers, bools = ((n,), np.float32), ((n,), np.bool_)
    return (
        [((n, *shape), dtype), numbers, numbers, bools, bools],
        [((n, *action_shape), action_dtype), ((n,), np.int64)],
    )


def network_fields(spec: EnvironmentSpec, num_environments: int, behaviour: Behaviour) -> tuple[Fields, Fields]:
    """Returns the fields of the inputs of an `Outputs` and of what it returns, the version included."""
    n, (shape, dtype) = num_environments, spec.observation
    _, ((action_shape, action_dtype), version) = decision_fields(spec, n)
    core = [((n, *behaviour.core_state_shape), np.float32)] if behaviour.core_state_shape else []
    led_here = [((1, *action_shape), action_dtype), ((1, n), np.float32)] if core else []
    inputs = [((spec.num_stacked, n, *shape), dtype), ((1, n), np.bool_), *led_here, *core]
    return inputs, [*(((n, *number.shape), number.dtype) for number in behaviour.numbers), *core, version]


class Refused(ValueError):
    """A request that cannot be answered, or would mix two streams of one lane."""


def check_fields(who: str, names: Sequence[str], arrays: Sequence[np.ndarray], fields: Fields, spec_name: str) -> None:
    """Raises `Refused`, naming the first of `arrays` that does not match `fields` or is not finite."""
    if len(arrays) != len(fields):
        raise Refused(f"{who}: {len(arrays)} arrays; expected {len(fields)} of {spec_name}: {', '.join(names)}")
    for name, array, (shape, dtype) in zip(names, arrays, fields):
        if array.shape != tuple(shape) or array.dtype != dtype:
            raise Refused(
                f"{who}: {name} is {array.dtype}{list(array.shape)}; expected {np.dtype(dtype)}{list(shape)}, as "
                f"{spec_name} has it"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Refused(f"{who}: {name} holds a value that is not finite")


def result_of(pending: Pending, should_stop: Callable[[], bool]) -> Any:
    """Waits for a result. Raises `Stopped` if `should_stop` returns True first."""
    while not pending.wait(_SLICE_SECONDS):
        if should_stop():
            raise Stopped
    return pending.result()


class Client:
    """A policy whose decisions are made in another process, where its `Actor`'s unrolls are written too.

    Asks as soon as a step is observed, so that the answer is computed while the actor does other work.

    Args:
      request: (number, *step) → pending action and version; repeats messages that are lost.
      should_stop: called while waiting for an answer; True raises `Stopped`.
    """

    window, core_state, decides_elsewhere = np.zeros(0), (), True

    def __init__(self, request: Callable[..., Pending], *, should_stop: Callable[[], bool] = lambda: False):
        self._request, self._should_stop = request, should_stop
        self._number, self._pending = 0, None

    def observe(self, step: Step) -> None:
        """Sends the step."""
        self._pending = self._request(self._number, *step)
        self._number += 1

    def decide(self) -> Decision:
        """Returns the decision on the last step observed; what training needs of it stays in the other process."""
        action, version = result_of(self._pending, self._should_stop)
        return Decision(action, (), version)


class NoWriter:
    """Writes nothing: the unrolls are written where the decisions are made."""

    def start(self, *_) -> None:
        """See `chunks.Writer`."""

    def append(self, *_) -> None:
        """See `chunks.Writer`."""


class Network:
    """The `Outputs` of a network in another process.

    Args:
      request: (*inputs) → pending outputs, which are empty if the caller has to ask again.
      should_stop: see `Client`.
    """

    def __init__(self, request: Callable[..., Pending], *, should_stop: Callable[[], bool] = lambda: False):
        self._request, self._should_stop = request, should_stop

    def __call__(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        while True:
            if outputs := result_of(self._request(*inputs), self._should_stop):
                return tuple(outputs)
            if self._should_stop():
                raise Stopped


class Sink:
    """Hands the chunks of an unroll to a queue in another process; they may be in flight while the next one is played.

    Args:
      request: (list of chunks, each the tuple of its fields) → `Pending`, done once there was room for them.
      should_stop: see `Client`.
    """

    def __init__(self, request: Callable[..., Pending], *, should_stop: Callable[[], bool] = lambda: False):
        self._request, self._should_stop = request, should_stop
        self._pending, self._account = None, TimeAccount()

    def __call__(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            check_finite(chunk)
        if self._pending is not None:
            with self._account.part("blocked"):
                result_of(self._pending, self._should_stop)
        self._pending = self._request([tuple(chunk) for chunk in chunks])

    def blocked_fraction(self) -> float:
        """Returns the share of time spent waiting for the queue since the last call."""
        return self._account.fraction("blocked")
