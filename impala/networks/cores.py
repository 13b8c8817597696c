"""Memory between torso and heads.

A core is any `tf.Module` with `state_shape` and (features [n·B, F], is_first [n, B], last_action [n, B, …],
last_reward [n, B], state [B, *state_shape]) → (features [n·B, G], state after the last time).
"""

from collections.abc import Callable

import tensorflow as tf

from impala import distributions
from impala.networks.features import Features
from impala.types import Actions


def make(name: str, actions: Actions, *, size: int, clip_reward: Callable, seed: int) -> "Lstm | None":
    """Makes a core by its name: "none", or "lstm" with `size` units; `clip_reward` as for `Lstm`.

    Raises:
      ValueError: no core has the name.
    """
    if name not in ("none", "lstm"):
        raise ValueError(f"network.core: {name!r} is unknown; expected none or lstm")
    return Lstm(size, actions, clip_reward=clip_reward, seed=seed * 1000 + 801) if name == "lstm" else None


class Lstm(tf.Module):
    """An LSTM over features, the last action (one-hot where discrete) and the last reward, as in IMPALA's deep agent.

    Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000, its bias starting at 1. Where an episode
    starts, the state, last action and last reward are zero, whatever is passed: one unroll may hold several episodes.

    Args:
      units: of the state, which is (h, c).
      actions: of the environment, for the last action.
      clip_reward: applied to the last reward; the same function as the loss uses.
      seed: of the initial kernels.
    """

    def __init__(self, units: int, actions: Actions, *, clip_reward: Callable = tf.identity, seed: int = 0):
        super().__init__("lstm")
        self.state_shape = (2, units)
        self._units, self._actions, self._clip_reward, self._seed = units, actions, clip_reward, seed
        self._recurrent_kernel = self._bias = self._kernel = None  # made when the number of features is known

    def __call__(self, features, is_first, last_action, last_reward, state):
        n, goes_on = is_first.shape[0], 1.0 - tf.cast(is_first, tf.float32)  # [n, B]
        action = distributions.features(self._actions, last_action) * goes_on[..., None]
        reward = self._clip_reward(last_reward) * goes_on
        features = tf.reshape(features, [n, -1, features.shape[-1]])
        x = tf.concat([features, action, reward[..., None]], axis=-1)  # [n, B, F + A + 1]
        if self._kernel is None:
            self._make_variables(x.shape[-1])
        # The part that does not depend on the state is one large product over all times.
        gates = tf.reshape(tf.reshape(x, [-1, x.shape[-1]]) @ self._kernel + self._bias, [n, -1, 4 * self._units])
        (h, c), hs = tf.unstack(state, axis=1), []
        for gates_t, goes_on_t in zip(tf.unstack(gates), tf.unstack(goes_on[..., None])):
            h, c = goes_on_t * h, goes_on_t * c
            i, f, g, o = tf.split(gates_t + h @ self._recurrent_kernel, 4, axis=-1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            hs.append(h)
        return tf.concat(hs, axis=0), tf.stack([h, c], axis=1)

    def _make_variables(self, num_inputs: int) -> None:
        units, initializers = self._units, tf.keras.initializers
        with tf.init_scope():
            kernel = initializers.GlorotUniform(self._seed)([num_inputs, 4 * units])
            self._kernel = tf.Variable(kernel, name="kernel")
            orthogonal = [initializers.Orthogonal(seed=self._seed + 1 + gate)([units, units]) for gate in range(4)]
            self._recurrent_kernel = tf.Variable(tf.concat(orthogonal, axis=1), name="recurrent_kernel")
            bias = tf.concat([tf.zeros(units), tf.ones(units), tf.zeros(2 * units)], axis=0)
            self._bias = tf.Variable(bias, name="bias")


def features_of(torso: Callable, core, observation, is_first, last_action, last_reward, core_state):
    """Returns features [n·B, F], the core state after the last observation, and hidden activations, () if not given.

    Args:
      core: `Lstm` or None.
      observation, …, core_state: as in `actor_critic.ActorCritic`.
    """
    features, hidden = torso(observation, is_first), ()
    if isinstance(features, Features):
        features, hidden = features
    if core:
        features, core_state = core(features, is_first, last_action, last_reward, core_state)
    return features, core_state, hidden
