"""K synchronous learners, each on its share of a batch: their gradients are summed, and every learner applies the sum.

    learner 0: gradient of B/K chunks ─┐
    learner 1: gradient of B/K chunks ─┼─ all-reduce: Σ ─▶ every learner applies the same update to the same weights
    learner …                          ┘

One all-reduce an update carries gradients, metrics and the chunks' versions. Weights are ordinary variables, equal
because they start equal and get equal updates. There are two ways to sum: `Collectives`, over the network or between
GPUs, and `MemoryAllReduce`, in the memory of one machine, where megabytes over gRPC take longer than half an update.
"""

import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf


class PeerLost(RuntimeError):
    """Another learner ended or froze; the collectives of this process no longer work."""


class LearnersDiffer(RuntimeError):
    """Learners that should hold the same weights do not."""


_IMPORTANCE = "importance_max"


class Group:
    """K learners that update together; each method waits for all of them, so all must call them in the same order.

    Args:
      index: of this learner.
      size: K.
      all_reduce: `Collectives` or `MemoryAllReduce`.
      is_mean: losses are means over transitions, so each learner's gradient is weighted with its number of them.
    """

    def __init__(self, index: int, size: int, all_reduce, *, is_mean: bool = False):
        self.index, self.size, self._all_reduce, self._is_mean = index, size, all_reduce, is_mean

    def combine(self, gradients: list, metrics: dict, chunks: tf.Tensor) -> tuple[list, dict, tf.Tensor]:
        """Returns the gradients summed, the metrics of all learners and all learners' columns of `chunks` [n, B/K].

        A learner that weights its rows by importance has divided by the largest weight of its own rows, the metric
        `importance_max`; here that is replaced by the largest of all, by which a single learner would divide.

        Called in the graph of an update. The metrics `num_…` and a summed loss add up, `…_max` are maxima, the rest are
        means weighted with each learner's transitions (which `num_rows` counts).
        """
        names, weight = list(metrics), metrics["num_rows"] if self._is_mean else 1.0
        weight *= metrics.get(_IMPORTANCE, 1.0)
        columns = tf.cast(tf.reshape(chunks, [-1]), tf.float32)  # versions are exact to 16 million updates
        facts = tf.concat([tf.stack([metrics[name] for name in names]), columns], axis=0)
        # Each learner fills its own row of a table of zeros, so that the sum gathers all rows.
        table = tf.pad(facts[None], [[self.index, self.size - 1 - self.index], [0, 0]])  # [K, facts]
        *gradients, table = self._all_reduce.of_tensors([gradient * weight for gradient in gradients] + [table])
        columns = dict(zip(names, tf.unstack(table[:, : len(names)], axis=1)))
        num_rows = tf.maximum(tf.reduce_sum(columns["num_rows"]), 1.0)
        if self._is_mean:
            gradients = [gradient / num_rows for gradient in gradients]
        if _IMPORTANCE in columns:
            largest = tf.reduce_max(columns[_IMPORTANCE])
            gradients = [gradient / largest for gradient in gradients]
            columns["loss"] *= columns[_IMPORTANCE] / largest
        combined = {name: self._combine(name, column, columns["num_rows"]) for name, column in columns.items()}
        chunks = tf.concat(tf.unstack(tf.reshape(table[:, len(names) :], [self.size, *chunks.shape])), axis=1)
        return gradients, combined, tf.cast(chunks, tf.float64)

    def _combine(self, name: str, column: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
        if name.startswith("num_") or (name == "loss" and not self._is_mean):
            return tf.reduce_sum(column)
        if name.endswith("_max"):
            return tf.reduce_max(column)
        return tf.reduce_sum(column * num_rows) / tf.maximum(tf.reduce_sum(num_rows), 1.0)

    def agree(
        self, *, is_ready: bool, wants_end: bool, counts: Sequence[float] = ()
    ) -> tuple[bool, bool, list[float]]:
        """Returns whether all learners are ready for an update, whether any wants to end, and the sums of `counts`.

        Raises:
          PeerLost: a peer is gone.
        """
        num_ready, num_ending, *sums = self._sum_of([float(is_ready), float(wants_end), *counts]).tolist()
        return num_ready == self.size, num_ending > 0, sums

    def broadcast(self, variables: Sequence[tf.Variable], numbers: Sequence[float]) -> list[float]:
        """Gives every learner the first one's `variables`, and returns the first one's `numbers`."""
        arrays = [variable.numpy() for variable in variables] + [np.array(numbers, np.float64)]
        flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays])
        flat = self._sum_of(flat if self.index == 0 else np.zeros_like(flat))
        *values, numbers = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
        for variable, value in zip(variables, values):
            variable.assign(value.reshape(variable.shape).astype(variable.dtype.as_numpy_dtype))
        return numbers.tolist()

    def check_equal(self, variables: Sequence[tf.Variable]) -> None:
        """Raises LearnersDiffer if `variables` are not the same on all learners, bit for bit."""
        digest = hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in variables)).digest()
        mine = np.frombuffer(digest[:12], np.uint16).astype(np.float64)
        theirs = self._sum_of(np.stack([mine, mine**2])) / self.size
        if (theirs[1] - theirs[0] ** 2 > 0.1).any():
            raise LearnersDiffer(f"learner {self.index} holds other weights than its peers; expected the same on all")

    def _sum_of(self, values) -> np.ndarray:
        with naming_lost_peers():
            return self._all_reduce.of_array(np.asarray(values, np.float64))


class SingleLearner:
    """A group of one learner, whose methods wait for nobody."""

    index, size = 0, 1

    def agree(
        self, *, is_ready: bool, wants_end: bool, counts: Sequence[float] = ()
    ) -> tuple[bool, bool, list[float]]:
        """See `Group`."""
        return is_ready, wants_end, list(counts)

    def broadcast(self, variables: Sequence[tf.Variable], numbers: Sequence[float]) -> list[float]:
        """See `Group`."""
        return list(numbers)

    def check_equal(self, variables: Sequence[tf.Variable]) -> None:
        """See `Group`."""


class Collectives:
    """The all-reduce of TensorFlow's `MultiWorkerMirroredStrategy`, of which nothing else is used.

    Making one waits for all peers, for up to an hour in which no Python runs: call `launching.peers.meet` first. It
    replaces the handler of SIGTERM, so install yours again afterwards; it must come before any other operation of
    TensorFlow in the process. Its server answers anybody who reaches its port: use it in private networks only.

    Args:
      index: of this learner.
      addresses: "host:port" of every learner's server.
    """

    def __init__(self, index: int, addresses: Sequence[str]):
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(addresses)}), task_type="worker", task_id=index, rpc_layer="grpc"
        )
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        self._sum_now = tf.function(self._sum, autograph=False)

    def of_tensors(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the sums of all learners' `tensors`, in a graph; they have the same dtype."""
        total = self._sum(tf.concat([tf.reshape(x, [-1]) for x in tensors], axis=0))
        parts = tf.split(total, [x.shape.num_elements() for x in tensors])
        return [tf.reshape(part, x.shape) for part, x in zip(parts, tensors)]

    def of_array(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum of all learners' `values`."""
        return self._sum_now(tf.constant(values)).numpy()

    def _sum(self, x: tf.Tensor) -> tf.Tensor:
        def in_replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(x))  # identity: it wants a device

        return self._strategy.run(in_replica)


class MemoryAllReduce:
    """An all-reduce like `Collectives`, on the CPU.

    Args:
      total: arrays → the sums of all learners' arrays; it raises ConnectionError if a learner is gone.
    """

    def __init__(self, total: Callable[[Sequence[np.ndarray]], list[np.ndarray]]):
        self._total = total

    def of_tensors(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        sums = tf.numpy_function(lambda *arrays: self._total(arrays), tensors, [x.dtype for x in tensors])
        for x, total in zip(tensors, sums, strict=True):
            total.set_shape(x.shape)
        return sums

    def of_array(self, values: np.ndarray) -> np.ndarray:
        (total,) = self._total([values])
        return total


@contextlib.contextmanager
def naming_lost_peers():
    """Turns the errors that an all-reduce raises when a peer is gone into `PeerLost`."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.InternalError,
            tf.errors.DeadlineExceededError, tf.errors.UnknownError, ConnectionError) as error:  # fmt: skip
        lines = str(error).strip().splitlines()
        if isinstance(error, tf.errors.UnknownError):  # holds the traceback of `MemoryAllReduce`'s function
            lines = [line for line in lines if line.startswith("ConnectionError: ")]
            if not lines:
                raise
        logging.error("%s", error)
        reason = lines[0][:200]
        raise PeerLost(f"another learner ended or froze, so that all end; start again to resume ({reason})") from None
