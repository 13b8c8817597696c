"""R2D2: action values with a core, learned from replayed sequences (Kapturowski et al. 2019, openreview r1lyTjAqYX)."""

from collections.abc import Callable

from impala.agents import q_learning, shared
from impala.config import Config
from impala.types import Chunk, EnvironmentSpec, chunk_spec

EXPLORES_BEYOND_ITS_POLICY = True  # training episodes say less than evaluations
EXPLORATION = q_learning.EXPLORATION

check = q_learning.check
make_ladder = q_learning.make_ladder
make_schedules = shared.make_schedules


def length(config: Config) -> int:
    """Returns the number of transitions in a sequence, burn-in included."""
    return config.agent.burn_in + config.learner.unroll_length


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network of action values and its target copy, the same for the same seed."""
    return make_pair(config, spec, burn_in=config.agent.burn_in, on_cpu=on_cpu)


def make_pair(config: Config, spec: EnvironmentSpec, *, burn_in: int, on_cpu: bool = False):
    """Makes the `networks.q_sequences.WithTarget` of any agent whose values have a core, or may have one."""
    from impala.losses.rewards import REWARD_CLIPPING
    from impala.networks import cores, q_sequences, q_values, torsos

    network, seed, clip_reward = config.network, config.seed, REWARD_CLIPPING[config.loss.reward_clipping]

    def make():
        torso = torsos.make(
            network.torso, spec, hidden_sizes=network.hidden_sizes, normalisation=network.normalisation, seed=seed,
            bfloat16=shared.uses_bfloat16(config, on_cpu=on_cpu),
        )  # fmt: skip
        core = cores.make(network.core, spec.actions, size=network.core_size, clip_reward=clip_reward, seed=seed)
        return q_values.with_heads(torso, spec, core=core, is_dueling=config.agent.dueling, seed=seed)

    return q_sequences.WithTarget(make(), make(), num_stacked=spec.num_stacked, burn_in=burn_in)


def make_behaviour(
    config: Config, spec: EnvironmentSpec, *, greedy: bool = False, explore: Callable[[], float] | None = None
):
    """Makes the configured `acting.behaviours.Behaviour`; arguments as in `q_learning.make_behaviour`."""
    made = q_learning.make_behaviour(config, spec, greedy=greedy, explore=explore)
    return made._replace(core_state_shape=config.network.core_state_shape)


def make_prioritise(config: Config, network=None) -> Callable | None:
    """Returns what gives sequences first priorities, `acting.windows.Prioritise`; None if they are drawn uniformly.

    They are those that the learner would find if both its networks had the weights that acted.
    """
    from impala.losses import r2d2
    from impala.networks.q_sequences import Sequences

    burn_in = config.agent.burn_in
    if not config.replay.priority_exponent:
        return None
    if config.loss.correction != "n_step":
        return q_learning.prioritise_by(make_loss(config), lambda q: Sequences(q[burn_in:], q[burn_in:]))
    settings = _settings(config) | {"max_share": config.agent.priority_max_share}

    def prioritise(window):
        columns = (window.r_t, window.discount_t, window.is_first, *q_learning.taken_and_best(window))
        return r2d2.first_priorities(*(column[burn_in:] for column in columns), **settings)

    return prioritise


def make_chunk_spec(config: Config, spec: EnvironmentSpec, *, version_per_step: bool = False) -> Chunk:
    """Returns the `Chunk` of a sequence; a correction also needs the policy that acted."""
    state = config.network.core_state_shape
    chunk = chunk_spec(
        spec, length(config), state, kept=q_learning.kept_policy(config, spec), version_per_step=version_per_step
    )
    return chunk if state else chunk._replace(previous_action=(), previous_reward=())


def make_writer(config: Config, spec: EnvironmentSpec, num_environments: int, *, behaviour, **where):
    """Makes the `chunks.Writer` of sequences; its actor begins an unroll every `agent.period` steps.

    Args:
      behaviour: of its actor.
      where: `origin`, `sink` and `on_steps` of `acting.windows.WindowWriter`.
    """
    from impala.acting.sequences import SequenceWriter

    return SequenceWriter(
        spec, num_environments, length=length(config), burn_in=config.agent.burn_in, kept=behaviour.kept,
        prioritise=make_prioritise(config), **where,
    )  # fmt: skip


def make_learner(config: Config, network, *, group=None):
    """Composes loss, optimizer and learner as configured; the target network is renewed at its period."""
    return learner_of(config, network, make_loss(config), group=group)


def learner_of(config: Config, network, loss: Callable, *, group=None):
    """Returns the learner of a `make_pair`."""
    from impala.learning import learners

    learner = config.learner
    return learners.Learner(
        network, loss, shared.make_optimizer(config, network.trainable_variables),
        forward=network.on_sequences, max_grad_norm=learner.max_grad_norm, jit_compile=learner.jit_compile,
        after_update=[shared.renewing(network, config.agent.target_period)], group=group,
    )  # fmt: skip


def make_loss(config: Config):
    """Returns the configured loss."""
    return loss_of(config, burn_in=config.agent.burn_in, max_share=config.agent.priority_max_share)


def loss_of(config: Config, **settings):
    """Returns the loss of any agent that learns from sequences, with further `settings` of `losses.r2d2.r2d2`."""
    from impala.losses import r2d2

    correction = None if config.loss.correction == "n_step" else q_learning.make_correction(config.loss)
    return r2d2.r2d2(
        correction=correction, policy_epsilon=config.agent.policy_epsilon, reduction=config.loss.reduction,
        **_settings(config), **settings,
    )  # fmt: skip


def _settings(config: Config) -> dict:
    """Returns what losses and first priorities have in common."""
    agent, loss = config.agent, config.loss
    return dict(
        n_step=agent.n_step, rescales=agent.value_rescaling, discount=loss.discount,
        reward_clipping=loss.reward_clipping,
    )  # fmt: skip
