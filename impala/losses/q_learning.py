"""The loss of Q-learning: a function of the TD error over n steps.

    y = r_1 + γ r_2 + … + γ^{n−1} r_n + γ^n Q⁻(x_n, b),   δ = y − Q(x_0, a_0)

Q⁻ is the target network. b is its best action (Mnih et al. 2015, doi:10.1038/nature14236), or with `double` the online
network's (van Hasselt et al. 2016, arXiv:1509.06461). A termination ends the sum; where an episode is cut off before n
steps, the last of its states bootstraps. No gradient flows into y.

`corrected` takes y from a Q-based correction instead, over all states of a window, since its n steps were chosen by
another policy than the one whose values are learned.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from impala.losses.importance import MIN_PRIORITY, reduced
from impala.losses.rewards import REWARD_CLIPPING
from impala.losses.telemetry import of_policies
from impala.types import SMALLEST_PROBABILITY


def huber(error: tf.Tensor, threshold: float = 1.0) -> tf.Tensor:
    """Returns ½ δ² up to the threshold κ and κ (|δ| − ½ κ) beyond: its gradient is δ clipped to ±κ, as DQN's is."""
    size = tf.abs(error)
    inside = tf.minimum(size, threshold)
    return inside * (size - 0.5 * inside)


def squared(error: tf.Tensor) -> tf.Tensor:
    """Returns ½ δ² (Ape-X, Horgan et al. 2018, arXiv:1803.00933, section 3)."""
    return 0.5 * tf.square(error)


def q_learning(
    *, error: Callable[[tf.Tensor], tf.Tensor] = huber, double: bool = False, discount: float = 0.99,
    reward_clipping: str = "abs_one", reduction: str = "sum",
) -> Callable:  # fmt: skip
    """Makes the loss, summed over the windows of a batch, or their mean.

    Where windows have an `importance`, each is weighted with it, divided by the largest of the batch.

    Args:
      error: of the TD errors [B].
      double: see above.
      discount: γ.
      reward_clipping: a name of `losses.rewards.REWARD_CLIPPING`.
      reduction: "sum", which DQN's learning rate and RMSProp ε assume, or "mean".

    Returns:
      (outputs, batch) → (loss, metrics): outputs are `networks.q_values.Windows`, batch a time-major `Chunk` of n
      transitions. Where windows have an importance, since they are drawn by priority, the metrics have
      `importance_max`, which a group of learners needs, and a column `priority` [B].
    """

    def target_of(outputs, batch):
        best = tf.argmax(outputs.q_t if double else outputs.target_q_t, axis=-1, output_type=tf.int32)
        bootstrap = tf.gather(outputs.target_q_t, best, batch_dims=1)
        rewards, discounts = n_step(
            REWARD_CLIPPING[reward_clipping](batch.r_t), discount * batch.discount_t, outputs.num_valid
        )
        return rewards + discounts * bootstrap

    return _regression(target_of, error, reduction)


def corrected(
    correction: Callable, *, error: Callable[[tf.Tensor], tf.Tensor] = huber, double: bool = False,
    policy_epsilon: float = 0.0, discount: float = 0.99, reward_clipping: str = "abs_one", reduction: str = "sum",
) -> Callable:  # fmt: skip
    """Makes the loss whose y is the target of a Q-based correction for the first state of each window.

    π is ε-greedy in the values of the target network or, with `double`, of the online one; μ is the policy that acted.

    Args:
      correction: one of `corrections.Q_SCHEMES`, with its parameters.
      policy_epsilon: ε of π; with 0 it is greedy, and Retrace, tree-backup and Watkins' Q(λ) are the same, but for
        the floor of `log_epsilon_greedy`.
      error, double, discount, reward_clipping, reduction: as in `q_learning`.

    Returns:
      (outputs, batch) → (loss, metrics): outputs are `networks.q_values.WindowStates`; the rest as in `q_learning`. The
      batch's `logits_tm1` [T, B, A] are logarithms of μ's probabilities.
    """

    def policies_of(outputs, batch):
        log_pi = log_epsilon_greedy(outputs.q if double else outputs.target_q, policy_epsilon)
        return log_pi, tf.math.log_softmax(batch.logits_tm1), 1.0 - tf.cast(batch.is_first[1:], tf.float32)

    def target_of(outputs, batch):
        log_pi, log_mu_tm1, mask_t = policies_of(outputs, batch)
        return correction(
            q_tm1=outputs.target_q[:-1], q_t=outputs.target_q[1:], a_tm1=batch.a_tm1,
            r_t=REWARD_CLIPPING[reward_clipping](batch.r_t), discount_t=discount * batch.discount_t,
            log_pi_tm1=log_pi[:-1], log_pi_t=log_pi[1:], log_mu_tm1=log_mu_tm1, mask_t=mask_t,
        ).target_tm1[0]  # fmt: skip

    def telemetry(outputs, batch):
        log_pi, log_mu_tm1, mask_t = policies_of(outputs, batch)
        of_the_episode = tf.math.cumprod(mask_t, axis=0)  # what follows a reset has no part in the target
        return of_policies(log_pi[:-1], log_mu_tm1, batch.a_tm1, of_the_episode)

    return _regression(target_of, error, reduction, telemetry)


def log_epsilon_greedy(q: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Returns log-probabilities [..., A] of the ε-greedy policy in q; none is below 1e-6, divided so that all sum to 1.

    A sum of 1 + (A − 1) · 1e-6, as it would be else, lets values grow: by 0.6 % with 18 actions and γ = 0.997.
    """
    num_actions = q.shape[-1]
    best = tf.one_hot(tf.argmax(q, axis=-1), num_actions)
    probability = tf.maximum((1.0 - epsilon) * best + epsilon / num_actions, SMALLEST_PROBABILITY)
    return tf.math.log(probability / tf.reduce_sum(probability, axis=-1, keepdims=True))


def _regression(
    target_of: Callable, error: Callable, reduction: str, telemetry: Callable = lambda outputs, batch: {}
) -> Callable:
    """Makes the loss of Q(x_0, a_0) against `target_of` (outputs, batch) → [B]; `telemetry` makes further metrics."""

    def loss(outputs, batch):
        target = tf.stop_gradient(target_of(outputs, batch))
        q_taken = tf.gather(outputs.q_tm1, batch.a_tm1[0], batch_dims=1)
        td_error = target - q_taken
        total, metrics = reduced(error(td_error), td_error, batch, reduction)
        metrics |= {
            "value_loss": tf.reduce_mean(error(td_error)),
            "value": tf.reduce_mean(tf.reduce_max(outputs.q_tm1, axis=-1)),
            **telemetry(outputs, batch),
        }
        return total, {name: tf.stop_gradient(metric) for name, metric in metrics.items()}

    return loss


def n_step(r_t: tf.Tensor, discount_t: tf.Tensor, num_valid: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the discounted sum of the first `num_valid` [B] rewards, and the discount of the state after them.

    Args:
      r_t, discount_t: [T, B]; the discount is 0 at a termination, and γ elsewhere.
    """
    is_valid = tf.sequence_mask(num_valid, r_t.shape[0], r_t.dtype)  # [B, T]
    is_valid = tf.transpose(is_valid)
    kept = tf.where(is_valid > 0.0, discount_t, tf.ones_like(discount_t))
    before = tf.math.cumprod(kept, axis=0, exclusive=True)
    return tf.reduce_sum(is_valid * before * r_t, axis=0), tf.reduce_prod(kept, axis=0)


def first_priorities(
    r_t: np.ndarray, discount_t: np.ndarray, is_first: np.ndarray, q_taken: np.ndarray, q_best: np.ndarray,
    *, discount: float, reward_clipping: str = "abs_one",
) -> np.ndarray:  # fmt: skip
    """Returns |δ| of N windows of n transitions from the action values computed while acting: [N], in NumPy.

    The network that acted both chooses and values the last action (Ape-X, Horgan et al. 2018, algorithm 1).

    Args:
      r_t, discount_t: [n, N]; the discount is 0 at a termination and 1 elsewhere.
      is_first: [n+1, N], of the states.
      q_taken, q_best: [n+1, N], of the action taken in each state, and of the best one.
      discount: γ.
      reward_clipping: a name of `losses.rewards.REWARD_CLIPPING`.
    """
    rewards = np.asarray(REWARD_CLIPPING[reward_clipping](r_t))
    is_valid = np.cumprod(~is_first[1:], axis=0).astype(bool)  # [n, N]
    factors = np.where(is_valid, discount * discount_t, 1.0)
    before = np.concatenate([np.ones_like(factors[:1]), np.cumprod(factors, axis=0)[:-1]])
    bootstrap = np.take_along_axis(q_best, np.sum(is_valid, axis=0)[None], axis=0)[0]
    target = np.sum(is_valid * before * rewards, axis=0) + np.prod(factors, axis=0) * bootstrap
    return np.maximum(np.abs(target - q_taken[0]), MIN_PRIORITY)
