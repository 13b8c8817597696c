"""How many units of a network's hidden layers are active: a layer whose units fall silent no longer learns."""

import tensorflow as tf

DORMANT = 0.025  # τ of Sokar et al. 2023
PERIOD = 16  # updates, or a worker's gradients, between two looks
PREFIXES = ("silent_units/", "dormant_units/")  # of the metrics, before the layer's name


def shares(hidden, is_due: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the shares of silent and of dormant units of each layer, scalars by `PREFIXES` and name.

    A unit (in a convolution: a channel) is silent if it is active for no observation of the batch, and τ-dormant if its
    mean is at most τ times the mean over its layer, which includes silent units (Sokar et al. 2023, arXiv:2302.12902,
    definition 3.1, τ = 0.025).

    Args:
      hidden: activations with ReLU, [N, …, units] by layer; () or empty if a network reports none.
      is_due: [] bool; if False, all shares are NaN, which costs nothing.
    """
    if not hidden:
        return {}

    def measured():
        found = []
        for activation in hidden.values():
            mean = tf.reduce_mean(tf.cast(activation, tf.float32), axis=range(activation.shape.rank - 1))  # [units]
            for bound in (0.0, DORMANT * tf.reduce_mean(mean)):
                found.append(tf.reduce_mean(tf.cast(mean <= bound, tf.float32)))
        return tf.stack(found)

    names = [prefix + layer for layer in hidden for prefix in PREFIXES]
    found = tf.cond(is_due, measured, lambda: tf.fill([len(names)], float("nan")))
    return dict(zip(names, tf.unstack(found, num=len(names))))
