"""Prioritised replay: how often an item is drawn, and the weight that corrects for it.

    P(i) = p_i^α / Σ_k p_k^α,   w_i = (N P(i))^(−β)

(Schaul et al. 2016, arXiv:1511.05952, equation 1 and section 3.4, where the weights of a batch are also divided by the
largest of them: the loss does that.) Ranges: α, β ≥ 0; a configuration has both in [0, 1], the papers' range. α = 0
draws uniformly, 1 in proportion to p; β = 1 corrects fully: Σ P(i) w_i x_i is then the mean of x_i.
"""

import numpy as np

_MOST_PROBABILITY = 1.0 + 1e-5  # Reverb's sums of priorities are rounded


def probabilities(priorities, exponent: float) -> np.ndarray:
    """Returns P(i) of all of a table's priorities [N], positive numbers."""
    priorities = np.asarray(priorities, np.float64)
    if not exponent >= 0.0:
        raise ValueError(f"exponent={exponent}; expected 0 or more")
    if not np.all((priorities > 0.0) & np.isfinite(priorities)):
        raise ValueError("priorities: expected finite numbers above 0")
    powers = (priorities / priorities.max()) ** exponent  # divided first: powers of large priorities overflow
    return powers / powers.sum()


def are_probabilities(probability) -> bool:
    """Returns whether all of P(i), [B], are numbers above 0, up to 1: those of a table whose priorities are finite."""
    probability = np.asarray(probability, np.float64)
    return bool(np.all((probability > 0.0) & (probability <= _MOST_PROBABILITY)))


def importance_weights(probability, num_items, exponent: float) -> np.ndarray:
    """Returns w_i of items that were drawn with probability P(i), [B], from `num_items` N, a number or [B]."""
    probability = np.asarray(probability, np.float64)
    if not exponent >= 0.0:
        raise ValueError(f"exponent={exponent}; expected 0 or more")
    if not are_probabilities(probability):
        raise ValueError("probability: expected numbers above 0, up to 1")
    return (np.asarray(num_items) * np.minimum(probability, 1.0)) ** -exponent
