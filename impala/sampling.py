"""From a network's outputs to an action, in NumPy: a process that only draws actions needs no TensorFlow.

The parameters are those of `distributions`, as the network gives them: not normalised.
"""

from typing import Protocol

import numpy as np

from impala.types import Actions, Continuous, Discrete, MultiDiscrete

SMALLEST_SCALE = 1e-3  # of a Gaussian
RAW_OF_ONE = float(np.log(np.e - 1.0))  # softplus⁻¹(1)


class Sampler(Protocol):
    """Draws from a family of distributions with parameters [N, num_parameters]."""

    def sample(self, parameters: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Draws actions [N, …]."""

    def mode(self, parameters: np.ndarray) -> np.ndarray:
        """Returns the most probable actions [N, …]."""


class Categorical:
    """p(a) ∝ exp(logits[a])."""

    def sample(self, parameters, random):
        # argmax(logits + Gumbel noise) is a sample of the softmax (Gumbel 1954).
        return self.mode(parameters + random.gumbel(size=parameters.shape))

    def mode(self, parameters):
        return np.argmax(parameters, axis=-1).astype(np.int32)


class Categoricals(Categorical):
    """Independent categoricals, their logits side by side."""

    def __init__(self, sizes: tuple[int, ...]):
        self._ends = np.cumsum(sizes)[:-1]

    def mode(self, parameters):
        parts = np.split(parameters, self._ends, axis=-1)
        return np.stack([super(Categoricals, self).mode(logits) for logits in parts], axis=-1)


class Gaussian:
    """N(mean, σ²) in each dimension; see `distributions.Gaussian`."""

    def sample(self, parameters, random):
        mean, raw = np.split(parameters, 2, axis=-1)
        scale = np.logaddexp(0.0, raw + RAW_OF_ONE) + SMALLEST_SCALE
        return (mean + scale * random.normal(size=mean.shape)).astype(np.float32)

    def mode(self, parameters):
        return np.split(parameters, 2, axis=-1)[0].astype(np.float32)


def of(actions: Actions) -> Sampler:
    """Returns the sampler of distributions over `actions`."""
    match actions:
        case Discrete():
            return Categorical()
        case MultiDiscrete():
            return Categoricals(actions.num_actions)
        case Continuous():
            return Gaussian()
