"""AdaGrad (Duchi et al. 2011), with which Gorila's parameter server applies gradients (Nair et al. 2015)."""

import tensorflow as tf


class AdaGrad(tf.keras.optimizers.legacy.Optimizer):
    """s ← s + g²,   w ← w − lr · g / √(s + ε),   s_0 = 0

    Keras' form has ε outside of the root, and s_0 of 0.1.
    """

    def __init__(self, learning_rate):
        super().__init__("adagrad")
        self._set_hyper("learning_rate", learning_rate)
        self.epsilon = 1e-5

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "sum_of_squares", "zeros")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        total = self.get_slot(var, "sum_of_squares")
        total.assign_add(tf.square(grad), use_locking=False)
        rate = self._get_hyper("learning_rate", var.dtype.base_dtype)
        # TensorFlow changes other orders of this product where it optimizes a graph, and keeps them where it does not:
        # a server and a learner would differ in the last bit.
        return var.assign_sub(grad * (rate * tf.math.rsqrt(total + tf.cast(self.epsilon, grad.dtype))))

    def get_config(self):
        raise NotImplementedError("kept by tf.train.Checkpoint, not by configuration")
