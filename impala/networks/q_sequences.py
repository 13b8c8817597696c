"""What a loss over sequences needs from two copies of a network of action values, with a core or without.

    ├─ burn-in ─┼────── T ──────┤
    without        states 0 … T         Both copies begin at the stored core state, which older weights computed;
    gradient       are learned          burn-in brings it up to date (R2D2, Kapturowski et al. 2019).
"""

from typing import Any, NamedTuple

import tensorflow as tf

from impala.networks.q_values import Outputs, QValues
from impala.networks.target import Pair


class Sequences(NamedTuple):
    """Action values of the T + 1 states after burn-in, of B sequences."""

    q: tf.Tensor  # [T+1, B, A]
    target_q: tf.Tensor  # [T+1, B, A], by the target network, without gradient
    hidden: Any = ()  # see `q_values.Outputs`


class WithTarget(Pair):
    """Two `QValues`; acting uses the online one alone.

    Args:
      num_stacked: k of the observations.
      burn_in: states that only bring the core state up to date.
    """

    _online: QValues
    _target: QValues

    def __init__(self, online: QValues, target: QValues, *, num_stacked: int, burn_in: int):
        super().__init__(online, target)
        self._num_stacked, self._burn_in = num_stacked, burn_in

    def __call__(self, *inputs) -> Outputs:
        """Applies `online` to the inputs of a `QValues`."""
        return self._online(*inputs)

    def on_sequences(self, observation: tf.Tensor, is_first: tf.Tensor, *memory) -> Sequences:
        """Applies both networks to the states after burn-in.

        Args:
          observation: [burn-in + T + k, B, …], the first k − 1 of them the older planes of the stack at time 0.
          is_first: [burn-in + T + 1, B].
          memory: with a core last_action and last_reward [burn-in + T + 1, B], and the core state before the first
            observation.
        """
        time, k = self._burn_in, self._num_stacked
        late = from_time(observation, is_first, time, k) if time else observation
        outputs = []
        for network in (self._online, self._target):
            then = ()
            if memory:
                *led_here, core_state = memory
                if time:
                    early = (array[:time] for array in led_here)
                    burned_in = network(observation[: time + k - 1], is_first[:time], *early, core_state)
                    core_state = tf.stop_gradient(burned_in.core_state)
                then = (*(array[time:] for array in led_here), core_state)
            outputs.append(network(late, is_first[time:], *then))
        online, target = outputs
        return Sequences(online.q, tf.stop_gradient(target.q), online.hidden)


def from_time(frames: tf.Tensor, is_first: tf.Tensor, time: int, num_stacked: int) -> tf.Tensor:
    """Returns the observations from a time on, as a network takes them: [n−time+k−1, B, …].

    The first k − 1 are the older planes of the stack at that time, zeroed where they are older than its episode.

    Args:
      frames: [n+k−1, B, …], the same from time 0 on.
      is_first: [n, B].
    """
    same_episode, planes = tf.ones_like(is_first[0]), []
    for age in range(1, num_stacked):
        if time - age + 1 >= 0:  # else the frame precedes time 0, and is zeroed already if older than the episode
            same_episode &= ~is_first[time - age + 1]
        keep = tf.reshape(tf.cast(same_episode, frames.dtype), [-1] + [1] * (len(frames.shape) - 2))
        planes.append(frames[time + num_stacked - 1 - age] * keep)
    return tf.concat([*(plane[None] for plane in planes[::-1]), frames[time + num_stacked - 1 :]], axis=0)
