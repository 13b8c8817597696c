"""RMSProp as in the paper."""

import tensorflow as tf


class RMSPropTF1(tf.keras.optimizers.legacy.Optimizer):
    """RMSProp as TensorFlow 1 has it, which the IMPALA paper's settings assume.

    s ← decay · s + (1 − decay) g²,   m ← momentum · m + lr · g / √(s + ε),   w ← w − m,   s_0 = 1, m_0 = 0

    Keras' form starts s at 0, which makes the first steps as large as lr / √(1 − decay); PyTorch's adds ε outside the
    root.
    """

    def __init__(self, learning_rate, *, decay: float = 0.99, momentum: float = 0.0):
        super().__init__("rmsprop_tf1")
        self._set_hyper("learning_rate", learning_rate)
        self._decay_rate, self._momentum, self.epsilon = decay, momentum, 0.01

    def _create_slots(self, var_list):
        for variable in var_list:
            self.add_slot(variable, "mean_square", "ones")
            self.add_slot(variable, "momentum", "zeros")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return tf.raw_ops.ResourceApplyRMSProp(
            var=var.handle,
            ms=self.get_slot(var, "mean_square").handle,
            mom=self.get_slot(var, "momentum").handle,
            lr=self._get_hyper("learning_rate", var.dtype.base_dtype),
            rho=self._decay_rate,
            momentum=self._momentum,
            epsilon=tf.cast(self.epsilon, var.dtype.base_dtype),
            grad=grad,
            use_locking=False,
        )

    def get_config(self):
        raise NotImplementedError("kept by tf.train.Checkpoint, not by configuration")
