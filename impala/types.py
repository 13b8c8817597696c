"""Everything that crosses a process boundary, with its shape at every field.

Letters: T unroll length, B chunks in a batch, N environments that step together, a *lane* (an actor's process has one
or several, which take turns), A size of the distribution's parameters, k stacked frames (1 where observations are not
stacked). Reverb signatures, zeros and test fakes are derived from `chunk_spec`, so that a field is described once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

# Of a `Chunk` in a table of overlapping windows, these columns have a time axis; of the others the last value is kept.
WINDOW_COLUMNS = ("observation", "is_first", "a_tm1", "r_t", "discount_t", "logits_tm1")
SMALLEST_PROBABILITY = 1e-6  # of an ε-greedy policy, acting or learning: logarithms and ratios stay finite


class ArraySpec(NamedTuple):
    """Shape and dtype of one array."""

    shape: tuple[int, ...]
    dtype: Any


class Discrete(NamedTuple):
    """One of `num_actions` actions, int32 []; its distribution has a logit for each."""

    num_actions: int

    @property
    def array(self) -> ArraySpec:
        return ArraySpec((), np.int32)

    @property
    def num_parameters(self) -> int:
        return self.num_actions


class MultiDiscrete(NamedTuple):
    """An action in each of several dimensions, int32 [K], dimension k with `num_actions[k]` of them."""

    num_actions: tuple[int, ...]

    @property
    def array(self) -> ArraySpec:
        return ArraySpec((len(self.num_actions),), np.int32)

    @property
    def num_parameters(self) -> int:
        return sum(self.num_actions)


class Continuous(NamedTuple):
    """`num_dimensions` numbers, float32 [D].

    The environment clips them to [−1, 1] and scales them to its bounds, but where a dimension lacks one: there it takes
    the number itself.
    """

    num_dimensions: int

    @property
    def array(self) -> ArraySpec:
        return ArraySpec((self.num_dimensions,), np.float32)

    @property
    def num_parameters(self) -> int:
        return 2 * self.num_dimensions


Actions = Discrete | MultiDiscrete | Continuous


class EnvironmentSpec(NamedTuple):
    """What an agent must know of an environment.

    observation: one single observation (one frame where frames are stacked). actions: what may be done in it.
    num_stacked: k, the frames a network sees at once. frames_per_step: emulator frames per agent step (action repeat).
    parts: name and spec of each part, in order, of a dict or tuple observation, which is flattened into one array.
    """

    name: str
    observation: ArraySpec
    actions: Actions
    num_stacked: int = 1
    frames_per_step: int = 1
    parts: tuple[tuple[str, ArraySpec], ...] = ()


class Step(NamedTuple):
    """The result of one step in each of N environments.

    The step after `is_last` ignores its action and returns the first observation of a new episode with `is_first`:
    there is no transition across a reset, so losses mask it; its reward is 0, its discount 1 and `is_last` False. An
    environment that needs several steps to begin sets `is_first` in each of them; one that gives up an episode, which
    went wrong, sets it without a last step.
    """

    observation: np.ndarray  # [N, …]
    reward: np.ndarray  # [N] float32, raw
    discount: np.ndarray  # [N] float32, 0 at termination (a lost life included where the protocol says so), else 1
    is_first: np.ndarray  # [N] bool, `observation` starts an episode
    is_last: np.ndarray  # [N] bool, `observation` ends an episode, terminated or truncated


class Environment(Protocol):
    """N environments that step together and reset themselves.

    `send` may return before the step is done, so that a caller can do other work before it calls `receive`.
    """

    spec: EnvironmentSpec
    num_environments: int

    def reset(self, seed: int) -> Step:
        """Starts all environments anew; rewards are 0 and every `is_first` is True."""

    def send(self, action: np.ndarray) -> None:
        """Takes one action [N, …] in each environment; ignored where the last step was `is_last`."""

    def receive(self) -> Step:
        """Returns the step that the last `send` began."""

    def close(self) -> None:
        """Frees the environments' resources."""


MAX_INCARNATIONS = 2**20  # of a run; `LaneId.life` keeps one in 21 bits: acting/remote.py


class Origin(NamedTuple):
    """Where a chunk comes from; kept as one int64 vector in the chunk.

    run is the run's seed; incarnation numbers its launches and the restarts of single nodes, after which seq begins
    anew; seq counts the chunks of one environment that one table gets. task is the index of what is played, 0 where a
    run has one task.
    """

    run: int
    actor: int
    environment: int
    incarnation: int
    seq: int
    task: int = 0


class Chunk(NamedTuple):
    """T consecutive transitions of one environment. The dataset adds the batch axis after time: [T, B, …].

    Index i of a field [T] belongs to the transition from the state at time i to that at time i+1, so nobody shifts;
    `is_first` has one entry for each of the T+1 states. Fields that an agent does not keep are (). With stacked frames
    `observation` holds single frames: that of time i at index i+k−1. The first k−1 are the older planes of the stack at
    time 0, already zero where they are older than the episode.
    """

    observation: Any  # [T+1+k−1, …]
    is_first: Any  # [T+1] bool
    previous_action: Any  # […] like actions; the one that led to observation[0], 0 at is_first
    previous_reward: Any  # [] float32, raw; 0 at is_first
    a_tm1: Any  # [T, …] int32 or float32, like actions
    logits_tm1: Any  # [T, A] float32, parameters of the behaviour distribution, as used: logits of discrete actions
    r_t: Any  # [T] float32, raw
    discount_t: Any  # [T] float32, 0 at termination, 1 otherwise; γ is the learner's
    weights_version: Any  # [] int64, of the weights that acted, see `Weights`; central: [T]; of a window, at its end
    origin: Any  # [6] int64, the fields of Origin
    v_behaviour_tm1: Any = ()  # [T] float32, V(observation[i]) by the weights that acted
    core_state: Any = ()  # […] float32, the one before observation[0]; () for feed-forward networks
    is_replayed: Any = ()  # [] bool, drawn from replay; added by the dataset, () when written
    importance: Any = ()  # [] float32, weight of what was drawn by priority; added by the source, else ()


def policy_columns(actions: Actions) -> dict[str, ArraySpec]:
    """Returns the fields of a `Chunk` that keep a decision drawn from a distribution: its parameters and a value."""
    return dict(logits_tm1=ArraySpec((actions.num_parameters,), np.float32), v_behaviour_tm1=ArraySpec((), np.float32))


def chunk_spec(
    environment: EnvironmentSpec, unroll_length: int, core_state_shape=None, *,
    kept: Mapping[str, ArraySpec] | None = None, version_per_step: bool = False,
) -> Chunk:  # fmt: skip
    """Returns a `Chunk` of `ArraySpec`s for chunks of `unroll_length` transitions.

    Args:
      core_state_shape: of one environment; None for feed-forward networks, whose chunks have none.
      kept: specs, for one step, of what is kept of each decision; by default `policy_columns`.
      version_per_step: the weights may change within an unroll.

    Raises:
      ValueError: something is kept that a `Chunk` has no field for.
    """
    t = unroll_length
    shape, dtype = environment.observation
    action = environment.actions.array
    kept = policy_columns(environment.actions) if kept is None else kept
    if unknown := kept.keys() - {"logits_tm1", "v_behaviour_tm1"}:
        raise ValueError(f"kept: {', '.join(sorted(unknown))}; expected logits_tm1 or v_behaviour_tm1, as chunks have")
    columns = {name: ArraySpec((t, *spec.shape), spec.dtype) for name, spec in kept.items()}
    return Chunk(
        observation=ArraySpec((t + environment.num_stacked, *shape), dtype),
        is_first=ArraySpec((t + 1,), np.bool_),
        previous_action=action,
        previous_reward=ArraySpec((), np.float32),
        a_tm1=ArraySpec((t, *action.shape), action.dtype),
        logits_tm1=columns.get("logits_tm1", ()),
        r_t=ArraySpec((t,), np.float32),
        discount_t=ArraySpec((t,), np.float32),
        weights_version=ArraySpec((t,) if version_per_step else (), np.int64),
        origin=ArraySpec((len(Origin._fields),), np.int64),
        v_behaviour_tm1=columns.get("v_behaviour_tm1", ()),
        core_state=() if core_state_shape is None else ArraySpec(tuple(core_state_shape), np.float32),
    )


def map_fields(function, *chunks: Chunk) -> Chunk:
    """Applies `function` to each array field of `chunks`, leaving those that are () as they are."""
    return Chunk(*(function(*fields) if not _is_empty(fields[0]) else () for fields in zip(*chunks)))


def _is_empty(field) -> bool:
    return isinstance(field, tuple) and not field  # an `ArraySpec` is never empty


def zeros(spec: Chunk) -> Chunk:
    """Returns a chunk of zeros."""
    return map_fields(lambda s: np.zeros(s.shape, s.dtype), spec)


def num_bytes(spec: Chunk) -> int:
    """Returns the uncompressed size of one chunk in bytes."""
    return sum(array.nbytes for array in zeros(spec) if not _is_empty(array))


class Episode(NamedTuple):
    """A finished training episode: the game's own score, agent steps, and when and where it was played."""

    score: float
    num_steps: int
    actor: int
    environment: int
    weights_version: int
    task: int = 0


class Weights(NamedTuple):
    """Parameters of a network; `version` is the number of updates before, those skipped as not finite included."""

    version: int
    arrays: list
