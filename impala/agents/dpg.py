"""Deterministic policy gradients: a policy and the value of its actions, learned from replayed n-step windows.

It acts by the policy and Gaussian noise (Ape-X DPG, Horgan et al. 2018, arXiv:1803.00933, appendix D).
"""

from collections.abc import Callable

import numpy as np

from impala.agents import shared
from impala.config import Config, ConfigError
from impala.types import Chunk, Continuous, EnvironmentSpec, chunk_spec

EXPLORES_BEYOND_ITS_POLICY = True  # training episodes say less than evaluations
EXPLORATION = "exploration_noise"  # the column of what `make_ladder` returns


def check(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses settings that do not fit together.

    Raises:
      ConfigError: actions are not continuous, or observations are frames.
    """
    if not isinstance(spec.actions, Continuous):
        raise ConfigError([
            f"agent.name: 'dpg' moves along the gradient of an action's value, and {spec.name} has {spec.actions}; "
            "expected continuous actions"
        ])  # fmt: skip
    if spec.parts:
        parts = ", ".join(f"{name} {part.shape}" for name, part in spec.parts)
        raise ConfigError([
            f"agent.name: 'dpg' takes one array, and {spec.name} has observations of several parts ({parts}); expected "
            "another environment"
        ])  # fmt: skip
    if spec.num_stacked > 1 or len(spec.observation.shape) > 2:
        raise ConfigError([
            f"agent.name: 'dpg' takes observations that are numbers, and {spec.name} has frames of shape "
            f"{spec.observation.shape}; expected another environment"
        ])  # fmt: skip


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured networks and their target copies, the same for the same seed."""
    from impala.networks import dpg

    agent = config.agent
    sizes = dict(policy_sizes=agent.policy_sizes, value_sizes=agent.value_sizes)
    return dpg.WithTarget(*(dpg.make(spec, **sizes, seed=config.seed) for _ in range(2)))


def make_behaviour(
    config: Config, spec: EnvironmentSpec, *, greedy: bool = False, explore: Callable[[], float] | None = None
):
    """Makes the configured `acting.behaviours.Behaviour`; `explore` returns the σ of its noise, by default 0."""
    from impala.acting import exploration

    num_features = int(np.prod(spec.observation.shape))
    return exploration.gaussian(spec.actions, num_features, explore or (lambda: 0.0))


def make_ladder(config: Config, count: int | None = None) -> np.ndarray:
    """Returns the constant σ of every environment of all actors, or of `count`: the same for all, as published."""
    return np.full(count or config.actor.num_actors * config.actor.num_environments, config.agent.noise)


def make_prioritise(config: Config, network) -> Callable | None:
    """Returns what gives windows first priorities, `acting.windows.Prioritise`; None if they are drawn uniformly."""
    from impala.losses import q_learning

    loss, replay = config.loss, config.replay
    if not replay.priority_exponent:
        return None

    def prioritise(window):
        rows = [kept.reshape(-1, kept.shape[-1]) for kept in window.kept]  # observations and actions [(T+1)·N, …]
        taken, best = (values.reshape(window.is_first.shape) for values in network.values(*rows))
        return q_learning.first_priorities(
            window.r_t, window.discount_t, window.is_first, taken, best, discount=loss.discount,
            reward_clipping=loss.reward_clipping,
        )  # fmt: skip

    return prioritise


def make_chunk_spec(config: Config, spec: EnvironmentSpec, *, version_per_step: bool = False) -> Chunk:
    """Returns the `Chunk` of a window of `agent.n_step` transitions; nothing is kept of the decisions."""
    chunk = chunk_spec(spec, config.agent.n_step, kept={}, version_per_step=version_per_step)
    return chunk._replace(previous_action=(), previous_reward=())


def make_learner(config: Config, network, *, group=None):
    """Composes loss, optimizer and learner as configured; the target networks are renewed at their period."""
    from impala.learning import learners
    from impala.losses import dpg

    learner, agent, loss = config.learner, config.agent, config.loss
    return learners.Learner(
        network,
        dpg.dpg(
            discount=loss.discount, action_gradient_clip=agent.action_gradient_clip,
            reward_clipping=loss.reward_clipping, reduction=loss.reduction,
        ),
        shared.make_optimizer(config, network.trainable_variables),
        forward=network.on_windows,
        max_grad_norm=learner.max_grad_norm,
        jit_compile=learner.jit_compile,
        after_update=[shared.renewing(network, agent.target_period)],
        group=group,
    )  # fmt: skip


make_schedules = shared.make_schedules
