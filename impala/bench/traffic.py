"""Bytes that cross between processes, by the arrays' shapes: what a network between machines would have to carry."""

import math

import numpy as np

from impala import config as config_lib


def bytes_per_frame(config: config_lib.Config, spec, num_parameters: int) -> dict[str, float]:
    """Returns the uncompressed bytes of arrays per emulator frame, by what they hold.

    Into a replay table go steps, and windows of them come out, where it is not in the worker's own memory. IMPALA's
    chunks go into a table and out of it, which is twice, and replayed ones out of another. Weights go to each actor
    once in `weight_period` unrolls, Ape-X's once in `actor.weight_frames`. With central inference observations go one
    way and actions or predictions the other. With a parameter server gradients go one way and parameters the other, and
    Gorila's target network now and then.
    """
    from impala import agents
    from impala.acting import remote
    from impala.nodes.estimates import step_bytes
    from impala.types import num_bytes

    agent, parts, weights = agents.of(config), {}, 4 * num_parameters
    num_environments, is_central = config.actor.num_environments, config.has_central_inference
    if config.has_replay_table:
        window = agent.make_chunk_spec(config, spec)
        num_drawn = config.learner.batch_size / config.steps_per_update  # windows for each step
        parts |= {"steps": step_bytes(window, config.window.fresh), "windows": num_drawn * num_bytes(window)}

    def chunk_bytes() -> float:
        return num_bytes(agent.make_chunk_spec(config, spec, version_per_step=is_central)) / length

    length = config.learner.unroll_length
    if config.has_use_for("actor.weight_period"):
        steps = config.weight_period * length * num_environments  # between two fetches of weights
        drawn_again = config.num_replayed / config.num_fresh  # for each fresh chunk, out of the replay table
        parts |= {"chunks": (2 + drawn_again) * chunk_bytes(), "weights": weights / steps}
    elif config.has_use_for("actor.weight_frames"):
        parts |= {"weights": weights / (config.actor.weight_frames / spec.frames_per_step * num_environments)}
    elif config.has_central_decisions:
        parts |= _both_ways(remote.decision_fields(spec, 1))
    elif config.has_central_inference:
        parts |= _both_ways(remote.network_fields(spec, 1, agent.make_behaviour(config, spec)))
        parts |= {"chunks": chunk_bytes()}
    elif config.has_parameter_server:  # to the server and back with each gradient
        both = weights / config.steps_per_update
        parts |= {"gradients": both, "weights": both}
        if config.replays_alone:  # a period is of all workers' updates, and each fetches every copy
            parts["targets"] = both * config.actor.num_actors / config.agent.target_period
    return {name: size / spec.frames_per_step for name, size in parts.items()}


def _both_ways(fields) -> dict[str, float]:
    asked, answered = (sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in way) for way in fields)
    return {"observations": asked, "answers": answered}
