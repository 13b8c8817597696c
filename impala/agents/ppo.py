"""Proximal policy optimisation: a policy and a value, trained several times on each iteration's unrolls."""

import functools
from collections.abc import Callable

import numpy as np

from impala.agents import actor_critic, shared
from impala.agents.actor_critic import EXPLORES_BEYOND_ITS_POLICY, make_behaviour, make_chunk_spec  # noqa: F401
from impala.config import Config, ConfigError
from impala.types import EnvironmentSpec


def check(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses settings that do not fit together.

    Raises:
      ConfigError: the torso does not take the environment's observations, or stacked frames are to be normalised.
    """
    shared.check_torso(config.network.torso, spec)
    if config.agent.normalise_observations and spec.num_stacked > 1:
        raise ConfigError([
            f"agent.normalise_observations=True: {spec.name} has stacked frames of shape {spec.observation.shape}; "
            "expected false, network.normalisation is for frames"
        ])  # fmt: skip


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network, the same for the same seed; see `agents.actor_critic`."""
    from impala.networks import running, separate

    if config.agent.separate_networks:
        network = separate.make(
            spec, torso=config.network.torso, hidden_sizes=config.network.hidden_sizes,
            normalisation=config.network.normalisation, bfloat16=shared.uses_bfloat16(config, on_cpu=on_cpu),
            seed=config.seed,
        )  # fmt: skip
    else:
        network = actor_critic.make_network(config, spec, on_cpu=on_cpu)
    return running.Normalised(network, spec.observation.shape) if config.agent.normalise_observations else network


def make_learner(config: Config, network, *, group=None):
    """Composes a learner for `make_batches`' batches; in a run, worker and server each do one half of its update."""
    from impala.learning import learners

    return learners.Learner(
        network, make_loss(config, network), shared.make_optimizer(config, network.trainable_variables),
        max_grad_norm=config.learner.max_grad_norm, jit_compile=config.learner.jit_compile, group=group,
    )  # fmt: skip


def make_differentiator(config: Config, network):
    """Composes what computes gradients for a parameter server, as configured."""
    return shared.make_differentiator(config, network, make_loss(config, network))


def make_loss(config: Config, network):
    """Returns the configured loss."""
    from impala.losses.ppo import ppo

    agent, loss = config.agent, config.loss
    return ppo(
        loss.correction, distribution=network.distribution, surrogate_clip=loss.surrogate_clip,
        value_clip=agent.value_clip, kl_target=agent.kl_target, kl_hinge=agent.kl_hinge,
        baseline_cost=loss.baseline_cost, entropy_cost=loss.entropy_cost, reduction=loss.reduction,
        clip_rho=1.0 + loss.surrogate_clip, clip_c=1.0 + loss.surrogate_clip,
    )  # fmt: skip


def make_schedules(config: Config, total_frames: int | None = None) -> Callable[[int], dict[str, float]]:
    """Returns frames → keyword arguments of an update: those of `agents.actor_critic`, and the clip."""
    from impala.learning.optimizers import SCHEDULES

    schedules = actor_critic.make_schedules(config, total_frames)
    clip = SCHEDULES[config.agent.clip_schedule](config.loss.surrogate_clip, shared.schedule_end(config, total_frames))
    return lambda frames: schedules(frames) | dict(surrogate_clip=clip(frames))


def make_statistics(config: Config, spec: EnvironmentSpec):
    """Returns the `learning.statistics.Statistics` that workers share."""
    from impala.learning.statistics import Statistics
    from impala.losses.ppo_clip import adapted_penalty

    agent = config.agent
    return Statistics(
        num_features=int(np.prod(spec.observation.shape)) if agent.normalise_observations else 0,
        returns_discount=config.loss.discount if agent.scale_rewards else None,
        beta=agent.kl_beta if config.loss.correction == "penalty" else None,
        adapt=functools.partial(
            adapted_penalty, target=agent.kl_target, tolerance=agent.kl_tolerance, factor=agent.kl_factor
        ),
    )  # fmt: skip


def use_statistics(network, statistics, state) -> None:
    """Gives the network the moments of observations, if it normalises by them."""
    if statistics.num_features:
        network.assign(*statistics.observation_moments(state))


def make_batches(config: Config, network, spec: EnvironmentSpec, index: int, incarnation: int):
    """Returns the `learning.epochs.Epochs` of a worker."""
    from impala import corrections
    from impala.learning import epochs
    from impala.losses.rewards import REWARD_CLIPPING

    agent, loss = config.agent, config.loss
    plan = epochs.Plan(
        agent.num_epochs, agent.num_value_epochs, agent.num_minibatches, agent.normalise_advantages
    )  # fmt: skip


    def advantages(values, rewards, discounts, valid):
        return corrections.SCHEMES["td_lambda"](
            v_tm1=values[:-1], v_t=values[1:], r_t=rewards, discount_t=loss.discount * discounts,
            log_rho_tm1=np.zeros_like(valid), mask_t=valid, lambda_=loss.lambda_,
        )  # fmt: skip

    return epochs.Epochs(
        network, plan, advantages, clip_reward=REWARD_CLIPPING[loss.reward_clipping],
        num_stacked=spec.num_stacked, statistics=make_statistics(config, spec), seed=(config.seed, index, incarnation),
    )  # fmt: skip
