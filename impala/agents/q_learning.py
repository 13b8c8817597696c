"""Q-learning: action values learned from replayed n-step windows with a target network; acts ε-greedily in them."""

import functools
from collections.abc import Callable

import numpy as np

from impala import own
from impala.agents import shared
from impala.config import Config, ConfigError, LossConfig
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, chunk_spec

EXPLORES_BEYOND_ITS_POLICY = True  # training episodes say less than evaluations
EXPLORATION = "exploration_epsilon"  # the column of what `make_ladder` returns


def check(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses settings that do not fit together.

    Raises:
      ConfigError: the torso does not take the environment's observations, or its actions are not discrete.
    """
    shared.check_torso(config.network.torso, spec)
    if not isinstance(spec.actions, Discrete):
        raise ConfigError([
            f"agent.name: {config.agent.name!r} values every action, and {spec.name} has {spec.actions}; expected "
            "discrete actions"
        ])  # fmt: skip


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network of action values and its target copy, the same for the same seed."""
    from impala.networks import q_values

    def make():
        network = config.network
        return q_values.make(
            spec, torso=network.torso, hidden_sizes=network.hidden_sizes, normalisation=network.normalisation,
            is_dueling=config.agent.dueling, bfloat16=shared.uses_bfloat16(config, on_cpu=on_cpu), seed=config.seed,
        )  # fmt: skip

    return q_values.WithTarget(make(), make(), num_stacked=spec.num_stacked)


def make_behaviour(
    config: Config, spec: EnvironmentSpec, *, greedy: bool = False, explore: Callable[[], float] | None = None
):
    """Makes the configured `acting.behaviours.Behaviour`.

    Args:
      greedy: always take the best action.
      explore: returns the probability of a random action; by default that of evaluations.
    """
    from impala.acting import exploration

    epsilon = 0.0 if greedy else config.agent.evaluation_epsilon
    return exploration.epsilon_greedy(
        spec.actions, explore or (lambda: epsilon), keeps_values=config.has_use_for("replay.priority_exponent"),
        keeps_policy=_is_corrected(config),
    )  # fmt: skip


def make_exploration(config: Config, spec: EnvironmentSpec) -> Callable[[int], float]:
    """Returns frames → ε, one for all environments: constant until the first update, then linear, then constant."""
    agent, begin = config.agent, config.num_steps_before_learning * spec.frames_per_step

    def epsilon(frames: int) -> float:
        share = min(1.0, max(0.0, (frames - begin) / agent.epsilon_frames))
        return agent.epsilon_start + share * (agent.epsilon_end - agent.epsilon_start)

    return epsilon


def make_ladder(config: Config, count: int | None = None):
    """Returns the constant ε of every environment of all actors, in their order; or of `count` of them."""
    from impala.acting import exploration

    count = count or config.actor.num_actors * config.actor.num_environments
    return exploration.epsilon_ladder(
        count, base=config.agent.epsilon_base, exponent=config.agent.epsilon_exponent
    )  # fmt: skip


def make_prioritise(config: Config, network=None) -> Callable | None:
    """Returns what gives windows first priorities, `acting.windows.Prioritise`; None if they are drawn uniformly.

    They are the errors that the learner would find if all its networks had the weights that acted.
    """
    from impala.losses import q_learning
    from impala.networks.q_values import WindowStates

    loss, replay = config.loss, config.replay
    if not config.has_use_for("replay.priority_exponent") or not replay.priority_exponent:
        return None
    if _is_corrected(config):
        return prioritise_by(make_loss(config), lambda q: WindowStates(q_tm1=q[0], q=q, target_q=q))

    def prioritise(window):
        return q_learning.first_priorities(
            window.r_t, window.discount_t, window.is_first, *taken_and_best(window), discount=loss.discount,
            reward_clipping=loss.reward_clipping,
        )  # fmt: skip

    return prioritise


def taken_and_best(window) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values [T+1, N] of the action taken and of the best one, from what a `windows.Played` has kept."""
    q, action = window.kept[:2]
    return np.take_along_axis(q, action[..., None], axis=-1)[..., 0], q.max(axis=-1)


def prioritise_by(loss: Callable, outputs_of: Callable) -> Callable:
    """Returns an `acting.windows.Prioritise` that asks the learner's `loss`, whose correction needs μ.

    Args:
      outputs_of: the action values that acted, [T+1, N, A] → the loss's outputs.
    """
    from impala.traces import Traced

    def priority(q, columns):
        batch = Chunk(**dict.fromkeys(Chunk._fields, ()) | columns)
        return loss(outputs_of(q), batch)[1]["priority"]

    compiled = Traced(priority)

    def prioritise(window):
        q, action, log_mu = window.kept
        return compiled(q, dict(
            a_tm1=action[:-1], logits_tm1=log_mu[:-1], r_t=window.r_t, discount_t=window.discount_t,
            is_first=window.is_first, importance=np.ones(action.shape[1], np.float32),
        )).numpy()  # fmt: skip

    return prioritise


def make_chunk_spec(config: Config, spec: EnvironmentSpec, *, version_per_step: bool = False) -> Chunk:
    """Returns the `Chunk` of a window of `agent.n_step` transitions; a correction also needs the policy that acted."""
    chunk = chunk_spec(
        spec, config.agent.n_step, kept=kept_policy(config, spec), version_per_step=version_per_step
    )  # fmt: skip
    return chunk._replace(previous_action=(), previous_reward=())


def kept_policy(config: Config, spec: EnvironmentSpec) -> dict[str, ArraySpec]:
    """Returns the columns of a chunk that keep the policy that acted: those that the correction needs."""
    return {"logits_tm1": ArraySpec((spec.actions.num_actions,), np.float32)} if _is_corrected(config) else {}


def make_learner(config: Config, network, *, group=None):
    """Composes loss, optimizer and learner as configured; the target network is renewed at its period."""
    from impala.learning import learners

    learner = config.learner
    return learners.Learner(
        network,
        make_loss(config),
        shared.make_optimizer(config, network.trainable_variables),
        forward=_forward(config, network),
        max_grad_norm=learner.max_grad_norm,
        jit_compile=learner.jit_compile,
        after_update=[shared.renewing(network, config.agent.target_period)],
        group=group,
    )


def make_differentiator(config: Config, network):
    """Composes what computes gradients for a parameter server, as configured."""
    return shared.make_differentiator(config, network, make_loss(config), _forward(config, network))


def _forward(config: Config, network) -> Callable:
    return network.on_sequences if _is_corrected(config) else network.on_windows


def make_loss(config: Config):
    """Returns the configured loss."""
    from impala.losses import q_learning

    agent, loss = config.agent, config.loss
    errors = {
        "huber": functools.partial(q_learning.huber, threshold=agent.huber_threshold), "squared": q_learning.squared,
    }  # fmt: skip
    settings = dict(
        error=errors[agent.error], double=agent.double, discount=loss.discount, reward_clipping=loss.reward_clipping,
        reduction=loss.reduction,
    )  # fmt: skip
    if not _is_corrected(config):
        return q_learning.q_learning(**settings)
    return q_learning.corrected(make_correction(loss), policy_epsilon=agent.policy_epsilon, **settings)


def make_correction(loss: LossConfig) -> Callable:
    """Returns the configured Q-based scheme with its parameters."""
    from impala import corrections

    schemes, word = corrections.Q_SCHEMES | {"is": corrections.importance_sampling}, loss.correction
    return shared.bound(own.load(word) if own.is_own(word) else schemes[word], loss)


def _is_corrected(config: Config) -> bool:
    return config.loss.correction != "n_step"


make_schedules = shared.make_schedules
