"""Reverb tables whose items are one chunk each, written as one Reverb step.

There are three kinds of tables for fresh chunks (`FRESH`); published implementations disagree on which is right.
"""

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
    """Returns a first-in-first-out table that gives every chunk out once and blocks writers when it is full."""
    return reverb.Table.queue(QUEUE, max_size, signature=signature(spec))


def uniform_once(spec: Chunk, max_size: int) -> reverb.Table:
    """Returns a table that gives every chunk out once, in random order, and blocks writers when it is full."""
    return _fresh(spec, max_size, reverb.selectors.Uniform(), reverb.rate_limiters.Queue(max_size))


def drop_oldest(spec: Chunk, max_size: int) -> reverb.Table:
    """Returns a first-in-first-out table that blocks nobody: when full, it drops its oldest chunk for a new one."""
    return _fresh(spec, max_size, reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1))


def _fresh(spec: Chunk, max_size: int, sampler, rate_limiter) -> reverb.Table:
    return reverb.Table(
        QUEUE, sampler=sampler, remover=reverb.selectors.Fifo(), max_size=max_size, max_times_sampled=1,
        rate_limiter=rate_limiter, signature=signature(spec),
    )  # fmt: skip


FRESH = {"queue": queue, "uniform_once": uniform_once, "drop_oldest": drop_oldest}


def uniform(spec: Chunk, max_size: int) -> reverb.Table:
    """Returns a table that keeps the newest `max_size` chunks and gives them out uniformly, any number of times.

    It blocks nobody: a reader waits only for the very first chunk.
    """
    return reverb.Table(
        REPLAY,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=max_size,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature(spec),
    )
