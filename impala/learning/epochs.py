"""PPO's batches of one iteration: advantages are computed once, then minibatches are drawn in several passes.

Networks without a core are trained on single transitions, shuffled anew for each pass; those with a core on whole
unrolls from their first core state on (truncated backpropagation through T steps), shuffled too.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala.learning.gradients import network_inputs
from impala.learning.statistics import Statistics
from impala.traces import Traced
from impala.types import Chunk

_LEAST_DEVIATION = 1e-8  # of advantages
_MOST_REWARD = 10.0  # once scaled
_BOTH, _POLICY, _VALUES = (np.array(trains, np.float32) for trains in ((1, 1), (1, 0), (0, 1)))


class Batch(NamedTuple):
    """Transitions of one iteration: T steps of B unrolls or, for networks without a core, B single ones (T = 1).

    Fields that `types.Chunk` has too mean the same as there, except that there are n = T + 1 observations of unrolls
    and n = 1 of single transitions.
    """

    observation: Any  # [n+k−1, B, …]
    is_first: Any  # [n, B] bool
    previous_action: Any  # [B, …]
    previous_reward: Any  # [B]
    a_tm1: Any  # [T, B, …]
    logits_tm1: Any  # [T, B, A]
    r_t: Any  # [T, B] float32, raw
    weights_version: Any  # [B]
    origin: Any  # [B, 6]
    v_behaviour_tm1: Any  # [T, B], V of the weights that acted
    core_state: Any  # [B, …]; () without a core
    is_replayed: Any  # [B] float32, 0 in the one pass in which it counts as fresh
    advantage_tm1: Any  # [T, B]
    target_tm1: Any  # [T, B], of V
    valid_t: Any  # [T, B] float32, 0 across a reset
    trains: Any  # [2] float32, 1 or 0: the policy, the values
    beta: Any  # [] float32


class Epochs:
    """Makes batches of unrolls: `types.Chunk` [T, B, …] → iterator of `Batch`.

    Ask for each batch only once the network holds the parameters at which the batch's gradient is taken: between
    passes the iterator measures how far the policy has moved.

    Args:
      network: the one that acted; it also gives the value after the last step.
      plan: see `Plan`.
      advantages: (values [T+1, B], rewards, discounts, valid [T, B]) → targets, advantages [T, B] (arXiv:1506.02438).
      clip_reward: a function of `losses.rewards.REWARD_CLIPPING`.
      num_stacked: frames of an observation.
      statistics: what workers share; `state` holds it as it was when the iteration began, `newest` as it is now, and
        `take` returns this worker's increments.
      seed: of the order.
    """

    def __init__(
        self, network, plan: "Plan", advantages: Callable, *, clip_reward: Callable, num_stacked: int,
        statistics: Statistics, seed: Sequence[int],
    ):  # fmt: skip
        self._network, self._plan, self._advantages = network, plan, advantages
        self._clip_reward, self._num_stacked = clip_reward, num_stacked
        self._random, self._statistics = np.random.default_rng(list(seed)), statistics
        self.state, self._increments = statistics.initial(), np.zeros(statistics.size)
        self.newest, self.num_batches = self.state, plan.num_batches
        self._sums: np.ndarray | None = None  # [B], of each environment's discounted rewards so far
        self._value = Traced(lambda *inputs: network(*inputs).value)
        self._logits = Traced(lambda *inputs: network(*inputs).logits)

    def take(self) -> np.ndarray:
        """Returns the increments of the statistics since the last call."""
        taken, self._increments = self._increments, np.zeros(self._statistics.size)
        return taken

    def drop_kl(self) -> None:
        """Drops a measured KL that was not sent."""
        self._increments = self._statistics.without_kl(self._increments)

    def put_back(self, taken: np.ndarray) -> None:
        """Restores increments that were refused, but for the KL, by which the other workers have adapted β already."""
        self._increments += self._statistics.without_kl(taken)

    def __call__(self, unroll: Chunk, *, measures_kl: bool = True) -> Iterator[Batch]:
        """Returns an iterator of the iteration's batches.

        Without `measures_kl` this worker has no say in the next β: it played with a policy that had made some of the
        iteration's updates already, which its KL would leave out.
        """
        has_core = not isinstance(unroll.core_state, tuple)
        whole = self._with_advantages(unroll)
        length, width = whole.a_tm1.shape[:2]
        choose = _unrolls_of(whole) if has_core else _transitions_of(whole, self._num_stacked)
        if self._statistics.num_features:
            self._increments += self._statistics.of_observations(whole.observation[:length].reshape(length * width, -1))
        passes, measure = self._plan.passes(), self._measure if measures_kl else lambda whole: None
        for index, trains in enumerate(passes):
            if index == self._plan.num_epochs:  # the first pass that trains the values alone
                measure(whole)
            order = self._random.permutation(width if has_core else length * width)
            for rows in np.split(order, self._plan.num_minibatches):
                batch = choose(rows)
                if self._plan.normalise == "minibatch":
                    batch = batch._replace(advantage_tm1=normalised(batch.advantage_tm1, batch.valid_t))
                # Each row is fresh in exactly one pass. Transitions are spread over all passes, so that the run's
                # frames rise steadily; unrolls, where there are fewer than passes, over the first ones.
                yield batch._replace(
                    is_replayed=(rows % len(passes) != index).astype(np.float32), trains=trains,
                    beta=np.float32(self._statistics.beta(self.newest)),
                )  # fmt: skip
        if not self._plan.num_value_epochs:
            measure(whole)

    def _with_advantages(self, unroll: Chunk) -> Batch:
        """Returns all transitions of an iteration, in order, with targets and advantages."""
        arrays = Chunk(*(field if isinstance(field, tuple) else np.asarray(field) for field in unroll))
        valid_t = 1.0 - arrays.is_first[1:].astype(np.float32)
        values = self._values_of(arrays)
        rewards = self._scaled(self._clip_reward(tf.constant(arrays.r_t)).numpy(), arrays.discount_t, valid_t)
        targets = self._advantages(values, rewards, arrays.discount_t, valid_t)
        advantages = targets.advantage_tm1.numpy()
        if self._plan.normalise == "iteration":
            advantages = normalised(advantages, valid_t)
        kept = {name: getattr(arrays, name) for name in Batch._fields if name in Chunk._fields}
        return Batch(**kept | dict(
            v_behaviour_tm1=values[:-1], advantage_tm1=advantages, target_tm1=targets.target_tm1.numpy(),
            valid_t=valid_t, trains=_BOTH, beta=np.float32(0),
        ))  # fmt: skip

    def _values_of(self, unroll: Chunk) -> np.ndarray:
        """Returns V [T+1, B] by the weights that acted; the network, which still holds them, gives the last one."""
        if not isinstance(unroll.core_state, tuple):
            return self._value(*network_inputs(unroll)).numpy()
        last = _stacks(unroll.observation, unroll.is_first, self._num_stacked)[:, -1]
        last = self._value(last, unroll.is_first[-1:]).numpy()
        return np.concatenate([unroll.v_behaviour_tm1, last])

    def _measure(self, whole: Batch) -> None:
        """With a penalty, adds KL(old policy ‖ new policy) of the iteration to the increments."""
        if self._statistics.has_penalty:
            logits = self._logits(*network_inputs(whole))[: len(whole.a_tm1)]
            distribution = self._network.distribution
            kl_tm1 = distribution.kl(distribution.normalise(whole.logits_tm1), distribution.normalise(logits)).numpy()
            self._increments += self._statistics.of_kl(np.sum(kl_tm1 * whole.valid_t), np.sum(whole.valid_t))

    def _scaled(self, rewards: np.ndarray, discounts: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Returns rewards [T, B]; if they are scaled, over the deviation of discounted returns and clipped to ±10.

        In the first iteration, when nothing is known of returns, it is this worker's own.
        """
        if not self._statistics.has_returns:
            return rewards
        sums, seen = np.zeros(rewards.shape[1]) if self._sums is None else self._sums, []
        for reward, discount, is_valid in zip(rewards, discounts, valid > 0):
            sums = np.where(is_valid, self._statistics.returns_discount * sums + reward, 0.0)  # an episode begins at 0
            seen.append(sums[is_valid])
            sums = sums * discount  # after a lost life, too, they begin at 0
        self._sums = sums
        own = self._statistics.of_returns(np.concatenate(seen))
        self._increments += own
        known = self.state if self._statistics.knows_returns(self.state) else own
        scale = np.float32(self._statistics.return_deviation(known))
        return np.clip(rewards / scale, -_MOST_REWARD, _MOST_REWARD)


class Plan(NamedTuple):
    """How an iteration's transitions are trained on.

    If `num_value_epochs` > 0, the `num_epochs` passes train the policy alone, then the others the values alone (Heess
    et al. 2017).
    """

    num_epochs: int  # M, passes over the transitions
    num_value_epochs: int  # B, further ones
    num_minibatches: int  # of a pass
    normalise: str  # over what advantages get mean 0 and deviation 1: a "minibatch", the "iteration", or "none"

    @property
    def num_batches(self) -> int:
        """Minibatches of an iteration."""
        return (self.num_epochs + self.num_value_epochs) * self.num_minibatches

    def passes(self) -> list[np.ndarray]:
        """Returns for each pass what it trains, as in `Batch`."""
        return self.num_epochs * [_POLICY if self.num_value_epochs else _BOTH] + self.num_value_epochs * [_VALUES]


def normalised(advantages: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Returns advantages with a mean of 0 and a standard deviation of 1 over the valid transitions."""
    num = max(float(np.sum(valid)), 1.0)
    centred = (advantages - np.sum(advantages * valid) / num) * valid
    return (centred / (np.sqrt(np.sum(np.square(centred)) / num) + _LEAST_DEVIATION)).astype(np.float32)


def _unrolls_of(whole: Batch) -> Callable[[np.ndarray], Batch]:
    """Returns indices of unrolls → their part of the batch."""
    without_time = {"previous_action", "previous_reward", "weights_version", "origin", "core_state"}
    alone = {"is_replayed", "trains", "beta"}

    def choose(rows: np.ndarray) -> Batch:
        return Batch(**{
            name: value if name in alone else value[rows] if name in without_time else value[:, rows]
            for name, value in whole._asdict().items()
        })  # fmt: skip

    return choose


def _transitions_of(whole: Batch, num_stacked: int) -> Callable[[np.ndarray], Batch]:
    """Returns a function: indices t · B + b of transitions → a batch of them, T = 1."""
    length, width = whole.a_tm1.shape[:2]
    stacks = _stacks(whole.observation, whole.is_first, num_stacked)
    of_each = {
        name: getattr(whole, name)
        for name in ("a_tm1", "logits_tm1", "r_t", "v_behaviour_tm1", "advantage_tm1", "target_tm1", "valid_t")
    }  # fmt: skip

    def choose(rows: np.ndarray) -> Batch:
        steps, lanes = np.divmod(rows, width)
        return whole._replace(
            observation=stacks[:, steps, lanes], is_first=whole.is_first[None, steps, lanes],
            previous_action=whole.previous_action[lanes], previous_reward=whole.previous_reward[lanes],
            weights_version=whole.weights_version[lanes], origin=whole.origin[lanes],
            **{name: array[None, steps, lanes] for name, array in of_each.items()},
        )  # fmt: skip

    return choose


def _stacks(observation: np.ndarray, is_first: np.ndarray, num_stacked: int) -> np.ndarray:
    """Returns observations with their older planes, [k, T+1, B, …], oldest first; see `networks.frames`.

    Each can be given to a network alone: planes that are older than its episode are zero.
    """
    length = len(is_first)
    planes, is_same = [], np.ones_like(is_first)
    for age in range(num_stacked):
        if age:
            is_same[age - 1 :] &= ~is_first[: max(0, length - age + 1)]
        plane = observation[num_stacked - 1 - age : num_stacked - 1 - age + length]
        keep = is_same.reshape([*is_same.shape, *(observation.ndim - 2) * [1]])
        planes.append(plane if age == 0 else plane * keep)
    return np.stack(planes[::-1])
