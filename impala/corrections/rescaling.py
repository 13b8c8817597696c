"""Targets in a space where large values lie closer together, so that rewards need no clip.

    h(x) = sign(x) (√(|x| + 1) − 1) + ε x,   target = h(Σ γ^i r_{t+i} + γ^n h⁻¹(Q(x_{t+n}, a)))

(Pohlen et al. 2018, arXiv:1805.11593, section 3.2 and proposition A.2; R2D2, Kapturowski et al. 2019.) ε > 0 keeps h⁻¹
Lipschitz. In expectation over random returns the fixed point is not h of the value, since h is not linear; where
transitions and policy are deterministic it is.
"""

import tensorflow as tf


def rescale(x, epsilon: float = 1e-3) -> tf.Tensor:
    """Returns h(x), of the shape of x."""
    x = _checked(x, epsilon)
    # √(|x| + 1) − 1 = |x| / (√(|x| + 1) + 1): the difference would lose all digits of a small x.
    return x / (tf.sqrt(tf.abs(x) + 1.0) + 1.0) + epsilon * x


def unscale(y, epsilon: float = 1e-3) -> tf.Tensor:
    """Returns h⁻¹(y), of the shape of y."""
    y = _checked(y, epsilon)
    # u = √(|x| + 1) ≥ 1 solves ε u² + u = |y| + 1 + ε: the root in a form that does not cancel. x = u² − 1.
    u_less_1 = 2.0 * tf.abs(y) / (tf.sqrt(1.0 + 4.0 * epsilon * (tf.abs(y) + 1.0 + epsilon)) + 1.0 + 2.0 * epsilon)
    return tf.sign(y) * u_less_1 * (u_less_1 + 2.0)


def _checked(x, epsilon: float) -> tf.Tensor:
    if not epsilon > 0.0:
        raise ValueError(f"epsilon={epsilon}; expected more than 0")
    return tf.convert_to_tensor(x)
