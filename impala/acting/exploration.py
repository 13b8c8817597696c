"""How much each actor explores where the policy is greedy in action values."""

import numpy as np


def epsilon_ladder(num_actors: int, *, base: float = 0.4, exponent: float = 7.0) -> np.ndarray:
    """Returns ε_i = base^(1 + exponent · i / (N − 1)), the probabilities of a random action: [N], falling.

    (Ape-X, Horgan et al. 2018, arXiv:1803.00933, section 4.1.) A single actor has ε = base.
    """
    if num_actors < 1:
        raise ValueError(f"num_actors={num_actors}; expected 1 or more")
    if not 0.0 < base <= 1.0 or not exponent >= 0.0:
        raise ValueError(f"base={base}, exponent={exponent}; expected 0 < base ≤ 1 and an exponent of 0 or more")
    return base ** (1.0 + exponent * np.arange(num_actors) / max(1, num_actors - 1))
