"""What schemes check before they compute: shapes, clips and λ."""

import tensorflow as tf


def check_like(name: str, x: tf.Tensor, v_tm1: tf.Tensor) -> None:
    """Raises ValueError when `x` has another shape or dtype than `v_tm1`."""
    if not x.shape.is_compatible_with(v_tm1.shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {tuple(v_tm1.shape)}, the shape of v_tm1")
    if x.dtype != v_tm1.dtype:
        raise ValueError(f"{name} is {x.dtype.name}; expected {v_tm1.dtype.name}, the dtype of v_tm1")


def check_clips(clip_c: float, clip_rho: float, allow_expansion: bool) -> None:
    """Raises ValueError for c̄ > ρ̄, or a negative clip."""
    for name, clip in (("clip_rho", clip_rho), ("clip_c", clip_c)):
        if not clip >= 0.0:
            raise ValueError(f"{name}={clip} is negative; expected 0 or more")
    if clip_c > clip_rho and not allow_expansion:
        raise ValueError(
            f"clip_c={clip_c} > clip_rho={clip_rho}: contracts only for ρ̄ ≥ c̄ (IMPALA, Theorem 1); lower clip_c, or "
            "force it with allow_expansion."
        )


def check_lambda(lambda_: float) -> None:
    """Raises ValueError for a λ outside [0, 1]."""
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_={lambda_} is outside [0, 1].")
