"""PopArt: values of tasks with rewards of different sizes, learnt at one scale.

Preserving outputs precisely, while adaptively rescaling targets (van Hasselt et al. 2016, arXiv:1602.07714), for each
of several tasks (Hessel et al. 2018, arXiv:1809.04474).
"""

import numpy as np
import tensorflow as tf

_SMALLEST, _LARGEST = 1e-4, 1e6  # of the scale, as in Hessel et al., table 4


class PopArt(tf.Module):
    """Moving moments of the value targets of `num_tasks` tasks.

        μ_k ← (1 − β) μ_k + β mean(targets of k),  ν_k likewise of their squares,  σ_k = √(ν_k − μ_k²)

    They start at μ = 0, ν = 1; tasks that a batch does not hold keep theirs.

    Args:
      step: β of one batch, however many targets of a task it holds. rlax takes a step for each of the n targets and
        adds them up: its β corresponds to n β here. Taken one after the other they would come to 1 − (1 − β)ⁿ, about
        the same as long as n β is small. With 640 targets of a task in a batch, 3e-4 here is 4.7e-7 there.
    """

    def __init__(self, num_tasks: int, step: float = 3e-4):
        super().__init__("popart")
        self.num_tasks, self._step = num_tasks, step
        self._mean = tf.Variable(np.zeros(num_tasks), trainable=False, name="mean")  # float64: squares are subtracted
        self._mean_square = tf.Variable(np.ones(num_tasks), trainable=False, name="mean_square")

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns mean μ and scale σ, both [K] float32."""
        scale = _scale(self._mean, self._mean_square)
        return tf.cast(self._mean, tf.float32), tf.cast(scale, tf.float32)

    def update(self, head: tf.keras.layers.Dense, task, count, total, total_of_squares) -> None:
        """Moves the moments towards those of a batch, and rescales the value head so that its σ n + μ stay the same.

        Args:
          head: its column k gives the normalised value n of task k.
          task, count, total, total_of_squares: [B], for each chunk: its task, the number of its value targets, their
            sum, and the sum of their squares.
        """
        sums = np.zeros((3, self.num_tasks))
        np.add.at(sums, (slice(None), np.asarray(task, int)), np.stack([count, total, total_of_squares]))
        step = self._step * (sums[0] > 0)
        _, mean_of_batch, square_of_batch = sums / np.maximum(sums[0], 1.0)
        old_mean, old_square = self._mean.numpy(), self._mean_square.numpy()
        mean = (1 - step) * old_mean + step * mean_of_batch
        square = (1 - step) * old_square + step * square_of_batch
        old_scale, scale = _scale(old_mean, old_square).numpy(), _scale(mean, square).numpy()
        head.kernel.assign(head.kernel.numpy() * (old_scale / scale))
        head.bias.assign((old_scale * head.bias.numpy() + old_mean - mean) / scale)
        self._mean.assign(mean)
        self._mean_square.assign(square)


def _scale(mean, mean_square) -> tf.Tensor:
    return tf.clip_by_value(tf.sqrt(tf.maximum(mean_square - mean**2, 0.0)), _SMALLEST, _LARGEST)
