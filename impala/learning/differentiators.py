"""The first half of an update alone, for workers that send gradients to a server: batch → gradient of its loss."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala.learning import appliers, gradients, units
from impala.learning.learners import NonFiniteUpdates
from impala.traces import Traced
from impala.types import Chunk


class Gradient(NamedTuple):
    """The gradient of one batch, with metrics and columns in the order of the names in `Differentiator`."""

    arrays: list[np.ndarray]  # one for each parameter
    is_finite: bool
    metrics: np.ndarray  # [M] float32
    columns: np.ndarray  # [C, B] float64, about the chunks or transitions: see `learners.Result`


class Differentiator:
    """Computes gradients; compiled, and traced for the first batch.

    Args:
      network, loss, forward: see `learners.Learner`.
      max_grad_norm: gradients are scaled down to this global norm.
      max_non_finite: so many non-finite gradients in a row are an error.
    """

    def __init__(
        self, network, loss: Callable, *, max_grad_norm: float, forward: Callable | None = None,
        jit_compile: bool = False, max_non_finite: int = 10,
    ):  # fmt: skip
        self.network, self.variables = network, list(network.trainable_variables)
        self._forward, self._loss, self._max_grad_norm = forward or network, loss, max_grad_norm
        self._num_computed, self._num_in_a_row, self._max_non_finite = 0, 0, max_non_finite
        self.metrics: tuple[str, ...] = ()  # names, known from the first batch on
        self.columns: tuple[str, ...] = ()
        self.width = 0  # of a column
        self._compute = Traced(self._compute, jit_compile=jit_compile)

    def __call__(self, batch: Chunk, **scheduled: float) -> Gradient:
        """Returns the gradient of a batch, time-major [T, B, …].

        Args:
          scheduled: arguments of the loss that change during training, e.g. `entropy_cost`.

        Raises:
          NonFiniteUpdates: `max_non_finite` gradients in a row, or their losses, were not finite.
        """
        numbers = {name: np.float32(value) for name, value in scheduled.items()}
        is_due = np.bool_(self._num_computed % units.PERIOD == 0)
        computed, is_finite, metrics, columns = self._compute(batch, numbers, is_due)
        self._num_computed += 1
        self._num_in_a_row = 0 if is_finite else self._num_in_a_row + 1
        if self._num_in_a_row >= self._max_non_finite:
            raise NonFiniteUpdates(
                f"{self._num_in_a_row} gradients in a row, or their losses, were not finite; lower "
                "learner.learning_rate or look at the chunks"
            )
        return Gradient([g.numpy() for g in computed], bool(is_finite), metrics.numpy(), columns.numpy())

    def _compute(self, batch: Chunk, scheduled: dict[str, tf.Tensor], is_due: tf.Tensor):
        loss, computed, metrics, columns = gradients.compute(
            self._forward, self.variables, self._loss, batch, scheduled, is_due
        )
        computed, norm = appliers.scaled(computed, self._max_grad_norm)
        metrics = metrics | {"grad_norm": norm}
        self.metrics, self.columns = tuple(metrics), tuple(columns)
        is_finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        stacked = tf.stack([tf.cast(column, tf.float64) for column in columns.values()])
        self.width = stacked.shape[1]
        return computed, is_finite, tf.stack(list(metrics.values())), stacked
