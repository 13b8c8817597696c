"""An update as one compiled function, traced again for other shapes only: batch → loss → gradients → optimizer."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala.learning import appliers, gradients, units
from impala.learning.groups import naming_lost_peers
from impala.traces import Traced
from impala.types import Chunk, Weights


class NonFiniteUpdates(RuntimeError):
    """Too many updates in a row had a loss or a gradient that is not finite."""


class Result(NamedTuple):
    """What one update did.

    chunks: columns [B] about the chunks of all learners: `weights_version`, the mean over steps of the versions that
    acted, `oldest_version`, the least of these, `is_replayed`, `task`, `num_valid`, the number of valid ones of its
    transitions, and the columns that the loss adds.
    """

    num_updates: int  # done so far, this one included
    applied: bool
    metrics: dict[str, float]
    chunks: dict[str, np.ndarray]


class Learner:
    """Applies one update for each batch to a network.

    Args:
      network: `gradients.network_inputs` of a batch → outputs, with `trainable_variables`.
      loss: (outputs, batch, …) → (loss, metrics); see `impala.losses`. Metrics are scalars, or [B], one for each chunk.
      optimizer: see `impala.learning.optimizers`.
      forward: `gradients.network_inputs` of a batch → outputs, if the loss needs other outputs than the network's.
      max_grad_norm: gradients are scaled down to this global norm.
      jit_compile: compile the step with XLA; for GPUs.
      max_non_finite: an error is raised after so many updates in a row with a loss or gradient that is not finite.
      after_update: called with the `Result` of each update.
      group: the learners that this one updates together with, each on its share of a batch; see `groups.Group`.
    """

    def __init__(
        self, network, loss: Callable, optimizer, *, max_grad_norm: float, forward: Callable | None = None,
        jit_compile: bool = False, max_non_finite: int = 10, after_update: Sequence[Callable[[Result], None]] = (),
        group=None,
    ):  # fmt: skip
        self.network, self.optimizer = network, optimizer
        self._forward = forward or network
        self._loss, self._max_grad_norm, self._max_non_finite = loss, max_grad_norm, max_non_finite
        self._after_update, self._group = after_update, group
        self.num_updates = 0  # batches consumed; the clock of policy lag
        self.num_skipped = self._skipped_in_a_row = 0
        self._variables = list(network.trainable_variables)
        self.num_traces = 0
        self._names_of_traces: dict[int, list[str]] = {}  # by their number: see `update`
        self._step = Traced(self._step, jit_compile=jit_compile)

    def update(
        self, batch: Chunk, learning_rate: float, *, epsilon: float | None = None, **scheduled: float
    ) -> Result:  # fmt: skip
        """Applies one update; one whose loss or gradient norm is not finite changes nothing and is counted.

        Args:
          batch: time-major, [T, B, …].
          learning_rate: of this update.
          epsilon: of the optimizer, from this update on; None leaves it as it is.
          scheduled: arguments of the loss that change during training, e.g. `entropy_cost`.

        Raises:
          ValueError: an earlier call had as many keywords, but others; the step was traced with those.
          NonFiniteUpdates: `max_non_finite` updates in a row were not finite.
          groups.PeerLost: a learner of the group is gone; nothing was changed.
        """
        numbers = dict(learning_rate=learning_rate, is_due=self.num_updates % units.PERIOD == 0, **scheduled)
        numbers |= {} if epsilon is None else {"epsilon": epsilon}
        self._number_names = list(numbers)  # the step reads them while it is traced
        traced = self._names_of_traces.setdefault(len(numbers), self._number_names)
        if traced != self._number_names:
            raise ValueError(f"update got {', '.join(numbers)}; expected {', '.join(traced)}, as in an earlier call")
        with naming_lost_peers() if self._group else contextlib.nullcontext():
            # One array, as every conversion may wait for the interpreter's lock; and not Python's numbers, of which
            # TensorFlow keeps each that it ever converted.
            applied, metrics, chunks = self._step(batch, np.array(list(numbers.values()), np.float32))
        self.num_updates += 1
        metrics = dict(zip(self._metric_names, metrics.numpy().tolist()))
        result = Result(self.num_updates, bool(applied), metrics, dict(zip(self._column_names, chunks.numpy())))
        for job in self._after_update:
            job(result)
        if result.applied:
            self._skipped_in_a_row = 0
        else:
            self.num_skipped += 1
            self._skipped_in_a_row += 1
            if self._skipped_in_a_row >= self._max_non_finite:
                raise NonFiniteUpdates(
                    f"{self._skipped_in_a_row} updates in a row had a loss or gradient that is not finite; "
                    "lower learner.learning_rate, or look at the batches, the first of which a run keeps in not_finite/"
                )
        return result

    def weights(self) -> Weights:
        """Returns copies of the parameters, with the number of batches consumed before."""
        return Weights(self.num_updates, [variable.numpy() for variable in self._variables])

    def _step(self, batch: Chunk, numbers: tf.Tensor):
        self.num_traces += 1  # runs while tracing only
        scheduled = dict(zip(self._number_names, tf.unstack(numbers)))
        learning_rate, is_due = scheduled.pop("learning_rate"), scheduled.pop("is_due") > 0
        if "epsilon" in scheduled:
            self.optimizer.epsilon.assign(scheduled.pop("epsilon"))
        loss, computed, metrics, columns = gradients.compute(
            self._forward, self._variables, self._loss, batch, scheduled, is_due
        )
        self._column_names, chunks = list(columns), tf.stack([tf.cast(c, tf.float64) for c in columns.values()])
        if self._group:
            computed, metrics, chunks = self._group.combine(computed, metrics, chunks)
            loss = metrics["loss"]
        computed, norm = appliers.scaled(computed, self._max_grad_norm)
        is_finite = tf.math.is_finite(loss) & tf.math.is_finite(norm)
        applied = appliers.apply(
            self.optimizer, self._variables, computed, is_finite=is_finite, learning_rate=learning_rate
        )
        metrics = metrics | {"grad_norm": norm}
        self._metric_names = list(metrics)
        return applied, tf.stack(list(metrics.values())), chunks
