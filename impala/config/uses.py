"""Which keys each program and agent uses; those that are not named here are used by all.

A key that the chosen program does not use may only have its default; one that the agent does not use may not be set at
all. Neither is shown.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pydantic

AGENTS = {
    "impala": ("actor_critic", "q_unrolls"), "seed": ("actor_critic", "r2d2"), "ga3c": ("actor_critic",),
    "dqn": ("q_learning",),
    "apex": ("q_learning", "dpg"), "a3c": ("actor_critic",),
    "dppo": ("ppo",), "gorila": ("q_learning",),
}  # fmt: skip
ALL_AGENTS = {name for names in AGENTS.values() for name in names}
_UNROLLS = ("impala", "seed", "ga3c")  # programs whose batches are unrolls, fresh from a queue
_SERVED = ("a3c", "dppo", "gorila")  # programs with a parameter server
_REPLAYS = ("dqn", "apex", "gorila", "seed+r2d2")  # whose batches are windows, all of them from a replay table
_PRIORITISED = ("apex", "seed+r2d2")
_ACTORS = ("impala", "seed", "ga3c", "apex", *_SERVED)  # that have processes which only act, or act and differentiate
_OF_PROGRAMS = {  # the programs, or pairs of program and agent, that use a key, or a section
    "inference": ("seed", "ga3c"),
    "ga3c": ("ga3c",),
    "population": ("impala", *_SERVED),
    "server": _SERVED,
    "inference.timeout_seconds": ("seed",),
    "inference.num_at_once": ("seed",),
    "actor.weight_period": ("impala",),
    "actor.num_tensorflow_threads": ("impala", "apex", *_SERVED),
    "actor.niceness": ("impala", "seed", "ga3c", "apex"),
    "learner.num_parallel_operations": ("impala", "seed", "ga3c", "dqn", "apex"),  # whose learner computes gradients
    "actor.weight_frames": ("apex",),
    "actor.num_relays": ("impala", "apex"),
    "cluster.learner_gpus": ("impala", "seed", "ga3c", "dqn", "apex"),
    "cluster.relay_cpus": ("impala", "apex"),
    "cluster.relay_memory_gb": ("impala", "apex"),
    "cluster.actor_cpus": _ACTORS,
    "cluster.actor_memory_gb": _ACTORS,
    "cluster.spread_actors": _ACTORS,
    "cluster.min_actors": _ACTORS,
    "actor.send_size": ("apex",),
    "actor.max_pending": ("apex",),
    "actor.max_episode_frames": ("apex",),
    "agent.epsilon_start": ("dqn", "gorila"),
    "agent.epsilon_end": ("dqn", "gorila"),
    "agent.epsilon_frames": ("dqn", "gorila"),
    "agent.epsilon_base": (*_PRIORITISED, "impala+q_unrolls"),
    "agent.epsilon_exponent": (*_PRIORITISED, "impala+q_unrolls"),
    "network.core": (*_UNROLLS, "a3c", "dppo"),
    "network.core_size": (*_UNROLLS, "a3c", "dppo"),
    "replay.queue_kind": ("impala",),
    "replay.queue_size": _UNROLLS,
    "replay.fraction": ("impala",),
    "replay.size": ("impala", *_REPLAYS),
    "replay.min_size": _REPLAYS,
    "replay.samples_per_insert": _REPLAYS,
    "replay.checkpoint_minutes": ("dqn", *_PRIORITISED),
    "replay.shared": ("gorila",),
    "replay.priority_exponent": _PRIORITISED,
    "replay.importance_exponent": _PRIORITISED,
    "learner.unroll_length": (*_UNROLLS, "a3c", "dppo"),
    "learner.num_learners": (*_UNROLLS, "dqn", "apex"),
    "learner.num_prefetched_batches": ("impala", "seed", *_REPLAYS),
    "server.barrier": ("a3c", "dppo"),
    "server.num_late": ("a3c", "dppo"),
    "server.outlier_deviations": ("gorila",),
    "server.shared_optimizer": ("a3c", "gorila"),
    "learner.max_lag": ("impala", "seed"),
    "record_chunks": ("impala", "seed"),
}
_SHARED_BY_AGENTS = ("loss.correction", "loss.discount", "loss.reward_clipping", "loss.reduction")
EXPLORING = ("q_learning", "r2d2", "q_unrolls", "dpg")  # beyond the policy that they learn
_NOT_OF_AGENTS = {  # prefixes of keys; except the shared ones and `_ALSO_OF`
    "q_learning": ("loss.",), "q_unrolls": ("loss.", "population."),
    "r2d2": ("loss.", "replay.queue_size", "learner.max_lag", "record_chunks"), "dpg": ("loss.", "network."),
    "ppo": ("loss.",),
}  # fmt: skip
_ALSO_OF = {
    "q_learning": ("loss.lambda",), "r2d2": ("loss.lambda",), "q_unrolls": ("loss.lambda",),
    "ppo": tuple(
        f"loss.{name}" for name in (
            "lambda", "surrogate_clip", "baseline_cost", "entropy_cost", "entropy_cost_schedule",
        )
    ),
}  # fmt: skip


class Leaf(NamedTuple):
    """A key of a configuration."""

    key: str
    value: Any
    default: Any
    is_set: bool  # by the user, even to its default


def leaves(config: pydantic.BaseModel, prefix: str = "") -> Iterator[Leaf]:
    """Yields all keys of a configuration; those of its sections have dotted names."""
    for name, field in type(config).model_fields.items():
        key, value = prefix + (field.alias or name), getattr(config, name)
        if isinstance(value, pydantic.BaseModel):
            yield from leaves(value, f"{key}.")
        else:
            yield Leaf(key, value, field.default, name in config.model_fields_set)


def is_of_program(key: str, program: str, agent: str) -> bool:
    """Returns whether a program, with this agent in it, uses a key."""
    section, pair = key.partition(".")[0], f"{program}+{agent}"
    return all({program, pair} & {*_OF_PROGRAMS.get(name, (program,))} for name in (key, section))


def is_of_agent(key: str, agent: str) -> bool:
    """Returns whether an agent uses a key; one of the user's own may use all of them."""
    return key in (*_SHARED_BY_AGENTS, *_ALSO_OF.get(agent, ())) or not key.startswith(_NOT_OF_AGENTS.get(agent, ()))
