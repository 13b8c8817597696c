"""Bytes that cross between processes, by the arrays' shapes: what a network between machines would have to carry."""

import math

import numpy as np

from impala import config as config_lib


def bytes_per_frame(config: config_lib.Config, spec, num_parameters: int) -> dict[str, float]:
    """Returns the uncompressed bytes of arrays per emulator frame, by what they hold.

    Into a replay table go steps, and windows of them come out. IMPALA's chunks go into a table and out of it, which is
    twice; its weights go to each actor once an unroll. With central inference observations go one way and actions or
    predictions the other, with a replay table or without. With a parameter server gradients go one way and parameters
    the other.
    """
    from impala import agents
    from impala.acting import remote
    from impala.nodes.estimates import step_bytes
    from impala.types import num_bytes

    agent, is_central = agents.of(config), config.has_use_for("inference.transport")
    if config.replays_alone:
        window = agent.make_chunk_spec(config, spec)
        num_drawn = config.learner.batch_size / config.steps_per_update  # windows for each step
        parts = {"steps": step_bytes(window, config.window.fresh), "windows": num_drawn * num_bytes(window)}
        parts |= _both_ways(remote.decision_fields(spec, 1)) if is_central else {}
        return {name: size / spec.frames_per_step for name, size in parts.items()}
    length = config.learner.unroll_length
    chunk = num_bytes(agent.make_chunk_spec(config, spec, version_per_step=is_central)) / length
    match config.program:
        case "impala":
            parts = {"chunks": 2 * chunk, "weights": 4 * num_parameters / (length * config.actor.num_environments)}
        case "seed":
            parts = _both_ways(remote.decision_fields(spec, 1))
        case "a3c" | "dppo":  # to the server and back with each gradient
            both = 4 * num_parameters / config.steps_per_update
            parts = {"gradients": both, "weights": both}
        case "ga3c":
            behaviour = agents.of(config).make_behaviour(config, spec)
            parts = _both_ways(remote.network_fields(spec, 1, behaviour)) | {"chunks": chunk}
    return {name: size / spec.frames_per_step for name, size in parts.items()}


def _both_ways(fields) -> dict[str, float]:
    asked, answered = (sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in way) for way in fields)
    return {"observations": asked, "answers": answered}
