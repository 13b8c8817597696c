"""From a configuration to the stations around an agent: what nodes, lockstep and evaluation share."""

from collections.abc import Callable

import numpy as np

from impala.config import Config
from impala.types import EnvironmentSpec, Origin


def make_environment(
    config: Config, num_environments: int = 1, *, num_threads: int = 1, task: int = 0, first_seed: int | None = None,
    **how,
):  # fmt: skip
    """Makes the configured environments of one task, with further arguments of `environments.make`.

    `first_seed` is what they will be reset with: a kind whose reset is slow begins at once, while others are made.
    """
    from impala import environments

    environment = config.environment
    made = environments.make(
        environment.tasks[task], num_environments=num_environments, protocol=environment.protocol,
        action_set=environment.action_set, num_threads=num_threads, **how,
    )  # fmt: skip
    if first_seed is not None and hasattr(made, "begin_reset"):
        made.begin_reset(first_seed)
    return made


def training_limits(config: Config) -> dict[str, int]:
    """Returns arguments of `make_environment` for training alone: how long an episode may be, where that is a key."""
    has_limit = config.has_use_for("actor.max_episode_frames")
    return {"max_episode_frames": config.actor.max_episode_frames} if has_limit else {}


def lane_seed(config: Config, incarnation: int, actor: int, lane: int) -> int:
    """Returns a seed that is distinct for every lane of every actor in every launch."""
    return int(np.random.SeedSequence([config.seed, incarnation, actor, lane]).generate_state(1)[0] % 2**30)


def lane_origin(config: Config, incarnation: int, actor: int, lane: int) -> Origin:
    """Returns where the first chunk of a lane's first environment comes from."""
    return Origin(
        run=config.seed, actor=actor, environment=lane * config.actor.num_lane_environments, incarnation=incarnation,
        seq=0, task=config.task_of(actor, lane),
    )  # fmt: skip


def make_policy(outputs, spec: EnvironmentSpec, num_environments: int, *, seed: int, behaviour):
    """Makes the policy that remembers what the network behind `outputs` needs; arguments as in `acting.policies`."""
    from impala.acting import policies, recurrent

    kind = policies.FeedForwardPolicy if behaviour.core_state_shape is None else recurrent.RecurrentPolicy
    return kind(outputs, spec, num_environments, seed=seed, behaviour=behaviour)


def make_actor(
    environment, outputs, *, seed: int, unroll_length: int, origin: Origin, sink,
    behaviour, sync_weights: Callable[[], int] = lambda: 0, version_per_step: bool = False,
):  # fmt: skip
    """Composes policy, writer and actor around `environment`; the network behind `outputs` decides.

    Args:
      outputs, behaviour: see `acting.policies`.
      origin: of the first chunk of the first environment.
      sink: takes the chunks of an unroll.
      sync_weights: see `acting.actors`.
      version_per_step: see `chunks.UnrollWriter`.
    """
    from impala.acting import actors, chunks

    spec, n = environment.spec, environment.num_environments
    return actors.Actor(
        environment,
        make_policy(outputs, spec, n, seed=seed, behaviour=behaviour),
        chunks.UnrollWriter(
            spec, n, unroll_length=unroll_length, origin=origin, sink=sink, behaviour=behaviour,
            version_per_step=version_per_step,
        ),  # fmt: skip
        sync_weights,
        unroll_length=unroll_length,
        origin=origin,
    )
