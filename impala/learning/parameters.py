"""TensorFlow parameters to arrays and back, in a fraction of the time of their own methods.

A variable's `assign` takes five times as long, and its `numpy` three times, as the operation itself: together longer
than a small network's gradient.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from impala.types import Weights


def assign_weights(variables: Sequence[tf.Variable], weights: Weights) -> None:
    """Gives `variables`, the parameters of a network like the learner's, the values of `weights`.

    They may share the arrays' memory from then on: do not write to those, nor train the network.

    Raises:
      ValueError: there are more or fewer arrays than variables, or one has another shape or dtype than its
        variable.
    """
    for variable, array in zip(variables, weights.arrays, strict=True):
        try:
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=array, validate_shape=True)
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"{variable.name}, {variable.dtype.name}{list(variable.shape)}: {error}") from None


def copies_of(variables: Sequence[tf.Variable]) -> list[np.ndarray]:
    """Returns the values of `variables`."""
    return [tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype).numpy() for v in variables]
