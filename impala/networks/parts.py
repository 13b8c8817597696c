"""The parts of a dict or tuple observation, which environments flatten into one array."""

import numpy as np
import tensorflow as tf

from impala.types import EnvironmentSpec


def split(observation: tf.Tensor, environment: EnvironmentSpec) -> dict[str, tf.Tensor]:
    """Takes a flattened observation apart, for a torso of one's own.

    Args:
      observation: [n, B, F].
      environment: whose `parts` say what lies in it.

    Returns:
      {name: [n, B, …]} with the shape of each part, of the observation's dtype.
    """
    sizes = [int(np.prod(spec.shape)) for _, spec in environment.parts]
    pieces = tf.split(observation, sizes, axis=-1)
    leading = tf.shape(observation)[:-1]
    return {
        name: tf.reshape(piece, tf.concat([leading, spec.shape], axis=0) if spec.shape else leading)
        for (name, spec), piece in zip(environment.parts, pieces)
    }
