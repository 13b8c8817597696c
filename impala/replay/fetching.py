"""Draws from a table."""

from collections.abc import Callable, Sequence

import numpy as np
import reverb
import tensorflow as tf

from impala.traces import Traced


def fetcher(
    server_address: str, table: str, num_at_once: int, *, info: Sequence[str] = ()
) -> Callable[[], dict[str, np.ndarray]]:
    """Returns a function that draws `num_at_once` items from a table, in order: arrays [num_at_once, …] by column.

    The function blocks until they are there. It raises OutOfRangeError when there will be none, and
    InvalidArgumentError for an item that does not fit; the others that were drawn with it are lost. It is compiled:
    Python's own iteration over a dataset takes as long as to draw a batch of small windows.

    Args:
      info: fields of `reverb.SampleInfo` to return as further columns.
    """
    dataset = reverb.TrajectoryDataset.from_table_signature(
        server_address,
        table,
        max_in_flight_samples_per_worker=num_at_once,
        num_workers_per_iterator=1,  # more would not keep the order
        get_signature_timeout_secs=60,
    ).batch(num_at_once)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it grows with every stall, to 130 chunks too many
    iterator = iter(dataset.with_options(options))

    def columns() -> dict[str, tf.Tensor]:
        samples = iterator.get_next()
        return {**samples.data, **{name: getattr(samples.info, name) for name in info}}

    compiled = Traced(columns)
    return lambda: {name: column.numpy() for name, column in compiled().items()}
