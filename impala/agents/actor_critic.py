"""Actor-critic: a policy and a value, learned by V-trace or another scheme of `--loss.correction`."""

import functools
from collections.abc import Callable

from impala import own
from impala.agents import shared
from impala.config import OF_DISCRETE_ACTIONS, Config, ConfigError, LossConfig
from impala.types import Chunk, Discrete, EnvironmentSpec, chunk_spec

EXPLORES_BEYOND_ITS_POLICY = False  # actions are drawn from the policy that is learned


def check(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses settings that do not fit together.

    Raises:
      ConfigError: the torso does not take the environment's observations, or the correction does not take its actions.
    """
    shared.check_torso(config.network.torso, spec)
    correction = config.loss.correction
    if correction in OF_DISCRETE_ACTIONS and not isinstance(spec.actions, Discrete):
        raise ConfigError([
            f"loss.correction: {correction!r} is defined for discrete actions only, and {spec.name} has "
            f"{spec.actions}; expected another correction"
        ])  # fmt: skip


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network, the same for the same seed; with a target copy if the loss needs one.

    With `on_cpu` it is for the processor, whatever GPU is there; where that has no bfloat16, it computes in float32.
    """
    from impala import networks
    from impala.losses.rewards import REWARD_CLIPPING

    def make():
        network = config.network
        return networks.make(
            spec, torso=network.torso, hidden_sizes=network.hidden_sizes, normalisation=network.normalisation,
            core=network.core, core_size=network.core_size, clip_reward=REWARD_CLIPPING[config.loss.reward_clipping],
            popart_step=config.loss.popart_step if config.loss.popart else None,
            num_tasks=len(config.environment.tasks), bfloat16=shared.uses_bfloat16(config, on_cpu=on_cpu),
            seed=config.seed,
        )  # fmt: skip

    return networks.WithTarget(make(), make()) if has_target_network(config.loss) else make()


def make_behaviour(config: Config, spec: EnvironmentSpec, *, greedy: bool = False):
    """Makes the configured `acting.behaviours.Behaviour`: actions are drawn from the policy, which explores."""
    from impala.acting import behaviours

    return behaviours.sampled(spec.actions, greedy=greedy, core_state_shape=config.network.core_state_shape)


def make_chunk_spec(config: Config, spec: EnvironmentSpec, *, version_per_step: bool = False) -> Chunk:
    """Returns the `types.chunk_spec` of what is kept to train on."""
    behaviour = make_behaviour(config, spec)
    return chunk_spec(
        spec, config.learner.unroll_length, behaviour.core_state_shape, kept=behaviour.kept,
        version_per_step=version_per_step,
    )  # fmt: skip


def make_learner(config: Config, network, correction: Callable | None = None, *, group=None):
    """Composes loss, correction, optimizer and learner as configured, or with another V-based `correction`.

    `group` is the group of learners that it updates together with.
    """
    from impala.learning import learners

    return learners.Learner(
        network, make_loss(config.loss, network.distribution, correction),
        shared.make_optimizer(config, network.trainable_variables), max_grad_norm=config.learner.max_grad_norm,
        jit_compile=config.learner.jit_compile, after_update=_jobs_after_update(config, network), group=group,
    )  # fmt: skip


def make_differentiator(config: Config, network, correction: Callable | None = None):
    """Composes what computes gradients for a parameter server, as configured; see `make_learner`."""
    return shared.make_differentiator(config, network, make_loss(config.loss, network.distribution, correction))


def _jobs_after_update(config: Config, network) -> list[Callable]:
    """Returns what the configured loss needs done to the network after an update; see `learners.Result`."""
    from impala.losses.popart import COLUMNS

    def observe_targets(result):
        if result.applied:
            network.observe_targets(*(result.chunks[name] for name in ("task", *COLUMNS)))

    jobs = [shared.renewing(network, config.loss.target_period)] if has_target_network(config.loss) else []
    return [*jobs, observe_targets] if config.loss.popart else jobs


def make_schedules(config: Config, total_frames: int | None = None) -> Callable[[int], dict[str, float]]:
    """Returns frames → keyword arguments of `Learner.update`.

    The schedules end at `learner.learning_rate_frames` if it is set, else at `total_frames`, by default `config`'s.
    """
    from impala.learning.optimizers import SCHEDULES

    loss, of_optimizer = config.loss, shared.make_schedules(config, total_frames)
    entropy_cost = SCHEDULES[loss.entropy_cost_schedule](loss.entropy_cost, shared.schedule_end(config, total_frames))
    return lambda frames: of_optimizer(frames) | dict(entropy_cost=entropy_cost(frames))


def has_target_network(loss: LossConfig) -> bool:
    """Returns whether the configured scheme compares the policy with an older copy of the network."""
    from impala import losses

    word = loss.correction
    return word in losses.POLICY_TERMS and losses.POLICY_TERMS[word].has_target_network


def make_loss(loss: LossConfig, distribution, correction: Callable | None = None):
    """Returns the configured loss over actions of `distribution`, with its correction or another V-based one."""
    from impala import losses
    from impala.losses.actor_critic import actor_critic

    make = functools.partial(shared.bound(actor_critic, loss), terms=make_terms(loss), distribution=distribution)
    correction = correction or make_correction(loss)
    return losses.popart(make, correction) if loss.popart else make(correction)


def make_terms(loss: LossConfig):
    """Returns the loss's terms for the configured word, their parameters bound; IMPALA's if it is a V-based scheme."""
    from impala import losses

    word = loss.correction
    return shared.bound(losses.POLICY_TERMS[word].make, loss)() if word in losses.POLICY_TERMS else losses.Terms()


def make_correction(loss: LossConfig):
    """Returns the V-based scheme for the configured word, its parameters bound."""
    from impala import corrections, losses

    word = loss.correction
    name = losses.POLICY_TERMS[word].correction if word in losses.POLICY_TERMS else word
    return shared.bound(own.load(name) if own.is_own(name) else corrections.SCHEMES[name], loss)
