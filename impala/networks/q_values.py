"""Action values on top of a torso, and what a loss over n-step windows needs from two copies of the network."""

import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from impala.networks import torsos
from impala.networks.cores import features_of
from impala.networks.features import Torso
from impala.networks.target import Pair
from impala.types import EnvironmentSpec

_STREAM_UNITS = 512  # of a dueling stream's hidden layer


class Outputs(NamedTuple):
    """What the network returns for n observations of B environments."""

    q: tf.Tensor  # [n, B, A], Q(x, ·)
    core_state: Any = ()  # [B, …] after the last observation; () without a core
    hidden: Any = ()  # activations of hidden layers with ReLU, [n·B, …, units] by name; () if the torso gives none


class Windows(NamedTuple):
    """What the loss must know of B windows of T transitions: about their first state, and the last, which bootstraps.

    The last is the state after T transitions, or an earlier one if the episode was cut off: there is no transition
    across a reset, and the states after it are another episode's.
    """

    q_tm1: tf.Tensor  # [B, A], of the first state
    q_t: tf.Tensor  # [B, A], of the last
    target_q_t: tf.Tensor  # [B, A], of the last, by the target network
    num_valid: tf.Tensor  # [B] int32, transitions from the first to the last
    hidden: Any = ()  # of the first state; see `Outputs`


class QValues(tf.Module):
    """A torso with a head for the value of every action; `core`, one of `networks.cores`, remembers between them.

    Q(x, ·) is the output of a linear layer or, with `is_dueling`, V(x) + A(x, ·) − mean A(x, ·), each stream with its
    own hidden layer (Wang et al. 2016, arXiv:1511.06581, equation 9; theirs begin at the convolutions, these behind the
    torso's dense layer).
    """

    def __init__(self, torso: Torso, num_actions: int, *, core=None, is_dueling: bool = False, seed: int = 0):
        super().__init__("q_values")
        self._torso, self._core, self._num_actions, self._is_dueling = torso, core, num_actions, is_dueling
        seeds = itertools.count(seed * 1000 + 701)

        def stream(num_outputs):
            hidden = [_layer(_STREAM_UNITS, 2**0.5, next(seeds), "relu")] if is_dueling else []
            return [*hidden, _layer(num_outputs, 1.0, next(seeds), None)]

        self._advantage, self._value = stream(num_actions), stream(1) if is_dueling else []

    @property
    def core_state_shape(self) -> tuple[int, ...] | None:
        """The shape of one environment's core state; None without a core."""
        return self._core.state_shape if self._core else None

    def __call__(
        self, observation: tf.Tensor, is_first: tf.Tensor, last_action=None, last_reward=None, core_state=()
    ) -> Outputs:
        """Applies the network at n times to B environments; arguments as in `actor_critic.ActorCritic`."""
        n = is_first.shape[0] if is_first.shape[0] is not None else tf.shape(is_first)[0]
        features, core_state, hidden = features_of(
            self._torso, self._core, observation, is_first, last_action, last_reward, core_state
        )
        if self._is_dueling:
            streams = {"advantage": self._advantage, "value": self._value}
            of_streams = {name: first(features) for name, (first, _) in streams.items()}
            advantage, value = (streams[name][1](of_stream) for name, of_stream in of_streams.items())
            q = advantage + (value - tf.reduce_mean(advantage, axis=-1, keepdims=True))
            hidden = dict(hidden) | of_streams
        else:
            (layer,) = self._advantage
            q = layer(features)
        return Outputs(tf.reshape(q, [n, -1, self._num_actions]), core_state, hidden)

    def numbers(self, outputs: Outputs) -> tuple[tf.Tensor]:
        """Returns what acting needs: Q [B, A] of the first observation."""
        return (outputs.q[0],)


class WithTarget(Pair):
    """Two `QValues`; acting uses the online one alone."""

    _online: QValues
    _target: QValues

    def __init__(self, online: QValues, target: QValues, *, num_stacked: int):
        super().__init__(online, target)
        self._num_stacked = num_stacked

    def __call__(self, observation: tf.Tensor, is_first: tf.Tensor) -> Outputs:
        """Applies `online`; see `QValues`."""
        return self._online(observation, is_first)

    def on_windows(self, observation: tf.Tensor, is_first: tf.Tensor) -> Windows:
        """Applies `online` to the first and the last state of a window, and `target` to the last.

        Args:
          observation: [T+k, B, …], the first k−1 of them the older planes of the stack at time 0.
          is_first: [T+1, B]; never True at time 1, since no window begins across a reset.
        """
        k, is_start = self._num_stacked, tf.zeros_like(is_first[:1])
        first = self._online(observation[:k], is_start)
        num_valid = tf.reduce_sum(tf.math.cumprod(1 - tf.cast(is_first[1:], tf.int32), axis=0), axis=0)
        last = stack_at(observation, num_valid, k)
        q_t, target_q_t = (network(last, is_start).q[0] for network in (self._online, self._target))
        return Windows(first.q[0], q_t, target_q_t, num_valid, first.hidden)

    def on_sequences(self, observation: tf.Tensor, is_first: tf.Tensor) -> "WindowStates":
        """Applies both networks to every state of a window; arguments as in `on_windows`."""
        first = self._online(observation[: self._num_stacked], tf.zeros_like(is_first[:1]))
        # Frames before a reset belong to another episode; those before time 0 are zeroed where the window is read.
        starts = tf.concat([tf.zeros_like(is_first[:1]), is_first[1:]], axis=0)
        q, target_q = (network(observation, starts).q for network in (self._online, self._target))
        return WindowStates(first.q[0], tf.stop_gradient(q), tf.stop_gradient(target_q), first.hidden)


class WindowStates(NamedTuple):
    """What the loss must know of all T + 1 states of B windows."""

    q_tm1: tf.Tensor  # [B, A], of the first state
    q: tf.Tensor  # [T+1, B, A], of every state, without gradient
    target_q: tf.Tensor  # [T+1, B, A], of every state, by the target network
    hidden: Any = ()  # of the first state; see `Outputs`


def stack_at(observation: tf.Tensor, time: tf.Tensor, num_stacked: int) -> tf.Tensor:
    """Returns the k frames [k, B, …] that are seen at a time [B] of each window [T+k, B, …]."""
    if observation.shape[0] == num_stacked + 1:  # T = 1
        return observation[1:]
    index = time[None] + tf.range(num_stacked)[:, None]  # [k, B]
    columns = tf.broadcast_to(tf.range(tf.shape(observation)[1])[None], tf.shape(index))
    return tf.gather_nd(observation, tf.stack([index, columns], axis=-1))


def make(
    environment: EnvironmentSpec, *, torso: str, hidden_sizes=(64, 64), normalisation: str = "median",
    is_dueling: bool = False, bfloat16: bool = False, seed: int = 0,
) -> QValues:  # fmt: skip
    """Makes a network for discrete actions by the name of its torso, the same for the same seed; see `torsos.make`."""
    made = torsos.make(
        torso, environment, hidden_sizes=hidden_sizes, normalisation=normalisation, seed=seed, bfloat16=bfloat16
    )  # fmt: skip
    return with_heads(made, environment, is_dueling=is_dueling, seed=seed)


def with_heads(
    torso: Torso, environment: EnvironmentSpec, *, core=None, is_dueling: bool = False, seed: int = 0
) -> QValues:  # fmt: skip
    """Puts a head for discrete actions on any torso, or on a core behind it, and creates all variables."""
    shape, dtype = environment.observation
    network = QValues(torso, environment.actions.num_actions, core=core, is_dueling=is_dueling, seed=seed)
    led_here = (tf.zeros([1, 1], tf.int32), tf.zeros([1, 1]), tf.zeros([1, *core.state_shape])) if core else ()
    network(tf.zeros([environment.num_stacked, 1, *shape], dtype), tf.ones([1, 1], tf.bool), *led_here)
    return network


def _layer(units: int, gain: float, seed: int, activation: str | None):
    orthogonal = tf.keras.initializers.Orthogonal(gain, seed=seed)
    return tf.keras.layers.Dense(units, activation, kernel_initializer=orthogonal)
