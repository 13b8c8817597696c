"""Reverb tables whose items are one chunk each, written as one Reverb step."""

import reverb
import tensorflow as tf

from impala.types import ArraySpec, Chunk

QUEUE, REPLAY = "queue", "replay"


def signature(spec: Chunk) -> dict[str, tf.TensorSpec]:
    """Returns the Reverb signature of chunks with `spec` (see `types.chunk_spec`)."""
    return {
        name: tf.TensorSpec(field.shape, field.dtype, name)
        for name, field in spec._asdict().items()
        if isinstance(field, ArraySpec)
    }


def queue(spec: Chunk, max_size: int) -> reverb.Table:
    """Returns a first-in-first-out table that gives every chunk out once and holds writers back when it is full."""
    return reverb.Table.queue(QUEUE, max_size, signature=signature(spec))


def uniform(spec: Chunk, max_size: int) -> reverb.Table:
    """Returns a table that keeps the newest `max_size` chunks and gives them out uniformly, any number of times.

    It holds nobody back: a reader waits only for the very first chunk.
    """
    return reverb.Table(
        REPLAY,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature(spec),
    )
