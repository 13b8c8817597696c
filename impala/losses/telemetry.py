"""What every correction scheme logs: how far off-policy the data is, and what the scheme did about it."""

import tensorflow as tf

from impala import returns
from impala.losses.ratios import ratio

_LONG = 200  # steps


def of_policies(log_pi: tf.Tensor, log_mu: tf.Tensor, action: tf.Tensor, valid: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns how far π is from μ where neither is a network's output, as for action values; see `metrics`.

    Args:
      log_pi, log_mu: [T, B, A], logarithms of probabilities.
      action: [T, B], those taken.
      valid: [T, B], 1 for a transition that counts, else 0.
    """

    def mean(x):
        return tf.reduce_sum(valid * x) / tf.maximum(tf.reduce_sum(valid), 1.0)

    log_rho = tf.gather(log_pi - log_mu, action, batch_dims=2)
    rho = ratio(log_rho)
    return {
        "log_rho_mean": mean(log_rho),
        "rho_clipped_fraction": mean(tf.cast(rho > 1.0, tf.float32)),
        "effective_sample_size": tf.square(mean(rho)) / tf.maximum(mean(tf.square(rho)), 1e-12),
        "kl_mu_pi": mean(tf.reduce_sum(tf.exp(log_mu) * (log_mu - log_pi), axis=-1)),
    }


def metrics(
    targets, rows, *, log_rho_tm1, discount_t, valid_t, mask_t, is_clipped_tm1, clip_rho: float, clip_c: float
) -> dict[str, tf.Tensor]:  # fmt: skip
    """Returns scalars, means over all transitions unless stated otherwise.

    num_transitions: of fresh chunks only, since replay brings no new frames. num_rows: of all chunks.
    entropy: of π, whatever the bonus is. advantage_std: the standard deviation. log_rho_max: the maximum.
    rho_clipped_fraction, c_clipped_fraction: ρ > ρ̄, ρ > c̄, whether the scheme clips or not.
    effective_sample_size: (Σρ)² / (n Σρ²), 1 on policy. kl_mu_pi: KL(μ‖π). trace_length: 1 + c_s (1 + c_{s+1} (1 + …)),
    the steps that a target looks ahead, until its episode ends. value_correction: root mean square of v − V.
    explained_variance: 1 − Var(v − V) / Var(v), 1 if the values predict the targets, NaN if these are all alike.
    rejected_fraction: transitions left out as not trusted. policy_clipped_fraction: those whose policy gradient the
    surrogate cuts off, or the ε-correction at least halves.
    """
    num_valid = tf.maximum(tf.reduce_sum(valid_t), 1.0)

    def mean(x_tm1):
        return tf.reduce_sum(valid_t * x_tm1) / num_valid

    def variance(x_tm1):
        return mean(tf.square(x_tm1 - mean(x_tm1)))

    def fraction(condition):
        return mean(tf.cast(condition, tf.float32))

    rho_tm1 = ratio(log_rho_tm1)
    target_tm1, v_tm1 = targets.target_tm1, rows.v_tm1
    of_targets = variance(target_tm1)
    explained = 1.0 - variance(target_tm1 - v_tm1) / tf.maximum(of_targets, 1e-12)
    return {
        "entropy": mean(rows.distribution.entropy(rows.pi_tm1)),
        "value": mean(v_tm1),
        "advantage_mean": mean(targets.advantage_tm1),
        "advantage_std": tf.sqrt(variance(targets.advantage_tm1)),
        "log_rho_mean": mean(log_rho_tm1),
        "log_rho_max": tf.reduce_max(tf.where(valid_t > 0.0, log_rho_tm1, tf.reduce_min(log_rho_tm1))),
        "rho_clipped_fraction": fraction(rho_tm1 > clip_rho),
        "c_clipped_fraction": fraction(rho_tm1 > clip_c),
        "effective_sample_size": tf.square(mean(rho_tm1)) / tf.maximum(mean(tf.square(rho_tm1)), 1e-12),
        "kl_mu_pi": mean(rows.distribution.kl(rows.mu_tm1, rows.pi_tm1)),
        "trace_length": _mean_trace_length(targets, discount_t, mask_t),
        "explained_variance": tf.where(of_targets > 1e-12, explained, float("nan")),
        "value_correction": tf.sqrt(mean(tf.square(target_tm1 - v_tm1))),
        "rejected_fraction": mean(1.0 - mask_t),
        "policy_clipped_fraction": mean(is_clipped_tm1),
        "replayed_fraction": tf.reduce_mean(rows.is_replayed),
        "num_transitions": tf.reduce_sum(valid_t * (1.0 - rows.is_replayed)),
        "num_rows": tf.reduce_sum(valid_t),
    }


def _mean_trace_length(targets, discount_t, mask_t) -> tf.Tensor:
    trace_tm1 = getattr(targets, "trace_tm1", None)
    if trace_tm1 is None:
        return tf.constant(float("nan"))
    goes_on_t = mask_t * tf.cast(discount_t != 0.0, mask_t.dtype) * trace_tm1
    if mask_t.shape[0] is None or mask_t.shape[0] > _LONG:  # what follows takes memory for T² · B numbers
        sums = returns.discounted_sum(x_t=mask_t, decay_t=goes_on_t, initial=tf.zeros_like(mask_t[0]))
        return tf.reduce_sum(sums) / tf.maximum(tf.reduce_sum(mask_t), 1.0)
    # Σ_{t≥s} Π_{i=s}^{t−1} c_i as differences of sums of logarithms: a few operations, where the recursion takes 3 T.
    log_weight = tf.cumsum(tf.math.log(tf.maximum(goes_on_t, 1e-30)), exclusive=True)  # [T, B]
    later = tf.linalg.band_part(tf.ones(2 * [mask_t.shape[0]]), 0, -1)[..., None] > 0.0  # [s, t, 1]: t ≥ s
    weight = tf.exp(tf.where(later, log_weight[None] - log_weight[:, None], -1e30))  # [s, t, B]
    both = mask_t[:, None] * mask_t[None]
    return tf.reduce_sum(both * weight) / tf.maximum(tf.reduce_sum(mask_t), 1.0)
