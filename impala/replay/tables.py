"""Reverb tables whose items are one chunk each, written as one Reverb step."""

import reverb
import tensorflow as tf

from impala.types import ArraySpec, Chunk

QUEUE = "queue"


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
