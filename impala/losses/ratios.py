"""The importance ratio in losses and telemetry."""

import tensorflow as tf

_MAX_LOG = 20.0  # e²⁰ ≈ 5·10⁸, whose square float32 still holds


def ratio(log_rho: tf.Tensor) -> tf.Tensor:
    """Returns exp(log ρ), at most e²⁰."""
    return tf.exp(tf.minimum(log_rho, _MAX_LOG))
