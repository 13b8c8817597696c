"""How losses clip rewards."""

import tensorflow as tf

REWARD_CLIPPING = {
    "none": lambda reward: reward,
    "abs_one": lambda reward: tf.clip_by_value(reward, -1.0, 1.0),
    # Optimistic asymmetric clipping, for DMLab-30: as in IMPALA's figure D.1, and as its published code computes it.
    "soft_asymmetric": lambda reward: 0.3 * tf.minimum(tf.tanh(reward), 0.0) + 5.0 * tf.maximum(tf.tanh(reward), 0.0),
    "soft_asymmetric_code": lambda reward: 5.0 * tf.tanh(reward / 5.0) * tf.where(reward < 0.0, 0.3, 1.0),
}
