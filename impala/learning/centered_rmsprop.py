"""Centered RMSProp, as in DQN."""

import tensorflow as tf


class CenteredRMSProp(tf.keras.optimizers.legacy.Optimizer):
    """RMSProp that divides by the standard deviation of the gradient (Mnih et al. 2015; its published code).

    m ← decay · m + (1 − decay) g,   s ← decay · s + (1 − decay) g²,   w ← w − lr · g / √(s − m² + ε),   m_0 = s_0 = 0

    With a momentum μ the step is v ← μ v + lr · g / √(s − m² + ε), w ← w − v; DQN has none.
    """

    def __init__(self, learning_rate, decay: float = 0.95, momentum: float = 0.0):
        super().__init__("centered_rmsprop")
        self._set_hyper("learning_rate", learning_rate)
        self._decay_rate, self._momentum, self.epsilon = decay, momentum, 0.01

    def _create_slots(self, var_list):
        for variable in var_list:
            for name in ("mean_gradient", "mean_square", "momentum"):  # the op needs all three
                self.add_slot(variable, name, "zeros")

    def _resource_apply_dense(self, grad, var, apply_state=None):
        return tf.raw_ops.ResourceApplyCenteredRMSProp(
            var=var.handle,
            mg=self.get_slot(var, "mean_gradient").handle,
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
