"""Optimizers and learning-rate schedules, all with their slots created before the first step."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from impala.learning import adagrad, centered_rmsprop, rmsprop

LegacyOptimizer = tf.keras.optimizers.legacy.Optimizer


def make(
    name: str, variables: Sequence[tf.Variable], *, epsilon: float, adam_beta1: float = 0.9,
    rmsprop_decay: float = 0.99, rmsprop_momentum: float = 0.0,
) -> LegacyOptimizer:  # fmt: skip
    """Makes the optimizer called `name` for `variables`; its learning rate starts at 0.

    Assign `optimizer.learning_rate` before each step; `optimizer.epsilon` is a variable too.
    """
    makers = {
        "adam": lambda: tf.keras.optimizers.legacy.Adam(0.0, beta_1=adam_beta1),
        "rmsprop": lambda: rmsprop.RMSPropTF1(0.0, decay=rmsprop_decay, momentum=rmsprop_momentum),
        "centered_rmsprop": lambda: centered_rmsprop.CenteredRMSProp(0.0, rmsprop_decay, rmsprop_momentum),
        "adagrad": lambda: adagrad.AdaGrad(0.0),
    }
    if name not in makers:
        raise ValueError(f"learner.optimizer: {name!r} is unknown; expected {', '.join(list(makers)[:-1])} or adagrad")
    optimizer = makers[name]()
    # Slots must exist before a step that may be skipped, and before a checkpoint is restored into them.
    with tf.name_scope(optimizer._name), tf.init_scope():
        optimizer.epsilon = tf.Variable(epsilon, trainable=False, dtype=tf.float32)  # in no checkpoint
        _ = optimizer.iterations
        optimizer._create_hypers()
        optimizer._create_slots(list(variables))
    return optimizer


def linear_to_zero(initial: float, total: int) -> Callable[[int], float]:
    """Returns position → initial · (1 − position / total), never below 0; position and total in frames."""
    return lambda position: initial * max(0.0, 1.0 - position / total)


def constant(initial: float, total: int) -> Callable[[int], float]:
    """Returns position → initial."""
    del total
    return lambda position: initial


def late_linear_to_zero(initial: float, total: int) -> Callable[[int], float]:
    """Returns position → initial in the first half, then linearly to 0 at `total`."""
    return lambda position: initial * min(1.0, max(0.0, 2.0 - 2.0 * position / total))


SCHEDULES = {"linear": linear_to_zero, "constant": constant, "late_linear": late_linear_to_zero}
