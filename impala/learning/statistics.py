"""Numbers that workers share beside parameters: running moments, and the coefficient of a penalty.

    worker: increments, sums over what it played ──▶ server: state ← merge(state, increments of all) ──▶ workers

Increments are sums in float64: added over all workers, they are what one worker that played everything would send.
"""

from collections.abc import Callable

import numpy as np

_LEAST_VARIANCE = 1e-8


class Statistics:
    """Says what is shared; both state and increments are vectors [`size`] float64.

    Args:
      num_features: of an observation, whose moments are kept; 0 for none.
      returns_discount: γ of the returns whose moments are kept, by which rewards are scaled; None for none.
      beta: the penalty's coefficient at the start; None for none.
      adapt: (β, mean KL of an iteration's policy updates) → the next β.
    """

    def __init__(
        self, *, num_features: int = 0, returns_discount: float | None = None, beta: float | None = None,
        adapt: Callable[[float, float], float] | None = None,
    ):  # fmt: skip
        self.num_features, self.returns_discount, self._beta, self._adapt = num_features, returns_discount, beta, adapt
        self.has_returns, self.has_penalty = returns_discount is not None, beta is not None
        # [0]: β; in increments the sum of KLs. [1]: in increments the number of these. Then, of each kind of moments,
        # count, sums, sums of squares.
        self._observations = slice(2, 2 + 1 + 2 * num_features) if num_features else slice(2, 2)
        self._returns = slice(self._observations.stop, self._observations.stop + 3 * self.has_returns)
        self.size = self._returns.stop if self._returns.stop > 2 or self.has_penalty else 0

    def initial(self) -> np.ndarray:
        """Returns the state before anything was played."""
        state = np.zeros(self.size)
        if self.has_penalty:
            state[0] = self._beta
        return state

    def merge(self, state: np.ndarray, increments: np.ndarray) -> np.ndarray:
        """Returns the state with what workers added since; `increments` is their sum."""
        if not self.size:
            return state
        merged = state + increments
        merged[:2] = state[:2]
        if self.has_penalty and increments[1] > 0:
            merged[0] = self._adapt(float(state[0]), max(0.0, float(increments[0] / increments[1])))
        return merged

    def without_kl(self, increments: np.ndarray) -> np.ndarray:
        """Returns increments that adapt no β, otherwise the same."""
        return np.concatenate([np.zeros_like(increments[:2]), increments[2:]])

    def beta(self, state: np.ndarray) -> float:
        """Returns the penalty's coefficient, 0 if there is none."""
        return float(state[0]) if self.has_penalty else 0.0

    def observation_moments(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and standard deviation [features] of observations; 0 and 1 before there are any."""
        count, *sums = state[self._observations]
        return _moments(count, np.array(sums[: self.num_features]), np.array(sums[self.num_features :]))

    def knows_returns(self, state: np.ndarray) -> bool:
        """Returns whether any discounted return is in the state."""
        return self.has_returns and bool(state[self._returns][0])

    def return_deviation(self, state: np.ndarray) -> float:
        """Returns the standard deviation of discounted returns; 1 before there are any, or if none is kept."""
        return float(_moments(*state[self._returns])[1]) if self.has_returns else 1.0

    def of_observations(self, observations: np.ndarray) -> np.ndarray:
        """Returns the increments due to observations [N, …]."""
        flat, increments = np.reshape(observations, [len(observations), -1]).astype(np.float64), np.zeros(self.size)
        if self.num_features:
            sums = [len(flat)], flat.sum(axis=0), np.square(flat).sum(axis=0)
            increments[self._observations] = np.concatenate(sums)
        return increments

    def of_returns(self, returns: np.ndarray) -> np.ndarray:
        """Returns the increments due to discounted returns [N]."""
        increments = np.zeros(self.size)
        if self.has_returns:
            returns = np.asarray(returns, np.float64)
            increments[self._returns] = len(returns), returns.sum(), np.square(returns).sum()
        return increments

    def of_kl(self, total: float, count: float) -> np.ndarray:
        """Returns the increments due to KLs of sum `total` over `count` transitions, after an iteration's updates."""
        increments = np.zeros(self.size)
        if self.has_penalty:
            increments[:2] = total, count
        return increments


def _moments(count: float, total, total_of_squares):
    if not count:
        return np.zeros_like(total), np.ones_like(total)
    mean = total / count
    return mean, np.sqrt(np.maximum(total_of_squares / count - np.square(mean), 0.0) + _LEAST_VARIANCE)


NOTHING = Statistics()
