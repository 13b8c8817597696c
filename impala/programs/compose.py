"""From a configuration to stations: what distributed programs, lockstep and evaluation share."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from impala.config import OF_DISCRETE_ACTIONS, Config, ConfigError, LossConfig
from impala.types import Discrete, EnvironmentSpec, Origin


def make_environment(
    config: Config, num_environments: int = 1, num_threads: int = 1, task: int = 0, *, with_picture: bool = False
):
    """Makes the configured environments of one task; see `environments.make`."""
    from impala import environments

    environment = config.environment
    return environments.make(
        environment.tasks[task], num_environments=num_environments, protocol=environment.protocol,
        action_set=environment.action_set, num_threads=num_threads, with_picture=with_picture,
    )  # fmt: skip


def check(config: Config) -> EnvironmentSpec:
    """Returns the environments' description, after what a model cannot check: what exists here and fits together.

    Every environment is played for a few steps.

    Raises:
      ConfigError: an environment is unknown, cannot be made or does not return what it announces, several are not
        alike, the torso does not take their observations, or the correction their actions.
    """
    from impala import environments

    tasks, specs = config.environment.tasks, []
    if problems := [problem for name in tasks if (problem := environments.check_name(name))]:
        raise ConfigError(problems)
    for index in range(len(tasks)):
        specs.append(_try_environment(config, index))
    _check_alike(specs)
    _check_torso(config.network.torso, specs[0])
    _check_actions(config.loss.correction, specs[0])
    return specs[0]._replace(name=", ".join(tasks))


def _try_environment(config: Config, task: int) -> EnvironmentSpec:
    from impala import environments

    name = config.environment.tasks[task]
    try:
        environment = make_environment(config, task=task)
    except (Exception, SystemExit) as error:
        raise ConfigError([f"environment.name: {name!r} cannot be made: {error}"]) from None
    try:
        fault = environments.fault(environment)
    except (Exception, SystemExit) as error:
        raise ConfigError([f"environment.name: {name!r} fails where it is played: {_told(error)}"]) from None
    finally:
        environment.close()
    if fault:
        raise ConfigError([f"environment.name: {name!r} does not return what it announces: {fault}"])
    return environment.spec


def _told(error: Exception) -> str:
    """Returns an error and the line that raised it: the environment is its user's to mend."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"


def _check_alike(specs: list[EnvironmentSpec]) -> None:
    for other in specs[1:]:
        for field in ("actions", "observation", "num_stacked", "frames_per_step"):
            one_has, other_has = getattr(specs[0], field), getattr(other, field)
            if one_has != other_has:
                are_games = all(spec.name.startswith("atari:") for spec in (specs[0], other))
                remedy = "environment.action_set: full" if field == "actions" and are_games else "tasks that are alike"
                raise ConfigError([
                    f"environment.name: one network cannot play {specs[0].name} with {field} {one_has} and "
                    f"{other.name} with {other_has}; expected {remedy}"
                ])  # fmt: skip


def _check_torso(torso: str, spec: EnvironmentSpec) -> None:
    shape = spec.observation.shape
    takes = {"mlp": "anything", "minatar": "boards [height, width, channels]"}.get(torso, "stacked frames")
    is_frame, is_board = len(shape) == 2 and spec.num_stacked > 1, len(shape) == 3 and spec.num_stacked == 1
    if not {"mlp": True, "minatar": is_board}.get(torso, is_frame):
        expected = "minatar or mlp" if is_board else "shallow, nature, resnet or mlp" if is_frame else "mlp"
        raise ConfigError([
            f"network.torso: {torso!r} takes {takes}, and {spec.name} has observations of shape {shape}; "
            f"expected {expected}"
        ])  # fmt: skip


def _check_actions(correction: str, spec: EnvironmentSpec) -> None:
    if correction in OF_DISCRETE_ACTIONS and not isinstance(spec.actions, Discrete):
        raise ConfigError([
            f"loss.correction: {correction!r} is defined for discrete actions only, and {spec.name} has "
            f"{spec.actions}; expected another correction"
        ])  # fmt: skip


def make_network(config: Config, spec: EnvironmentSpec, *, on_cpu: bool = False):
    """Makes the configured network, the same for the same seed; with a target copy where the loss wants one.

    `on_cpu` computes in float32 what `network.bfloat16` would make slower there.
    """
    from impala import networks
    from impala.losses.actor_critic import REWARD_CLIPPING

    def make():
        network = config.network
        return networks.make(
            spec, torso=network.torso, hidden_sizes=network.hidden_sizes, normalisation=network.normalisation,
            core=network.core, core_size=network.core_size, clip_reward=REWARD_CLIPPING[config.loss.reward_clipping],
            popart_step=config.loss.popart_step if config.loss.popart else None,
            num_tasks=len(config.environment.tasks), bfloat16=network.bfloat16 and not on_cpu, seed=config.seed,
        )  # fmt: skip

    return networks.WithTarget(make(), make()) if has_target_network(config.loss) else make()


def make_policy(outputs, spec: EnvironmentSpec, num_environments: int, *, core_state_shape=None, seed, greedy=False):
    """Makes the policy that remembers what the network behind `outputs` needs."""
    from impala.acting import policies

    if core_state_shape is None:
        return policies.Policy(outputs, spec, num_environments, seed=seed, greedy=greedy)
    return policies.RecurrentPolicy(
        outputs, spec, num_environments, core_state_shape=core_state_shape, seed=seed, greedy=greedy
    )


def evaluation_seed(config: Config, *counts: int) -> int:
    """Returns the seed to evaluate a run with, another for other `counts`; never one of training (`lane_seed`)."""
    drawn = int(np.random.SeedSequence([config.seed, len(counts), *counts]).generate_state(1)[0])
    return 2**30 + drawn % (2**30 - 64)  # environments take the numbers that follow


def play(
    network, config: Config, *, num_episodes: int, greedy: bool, seed: int, task: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float]:  # fmt: skip
    """Plays episodes of a task in up to 16 environments at once and returns their raw scores; see `acting.episodes`."""
    from impala.acting import episodes, policies

    num_environments = max(n for n in range(1, 17) if num_episodes % n == 0)
    environment = make_environment(config, num_environments, num_threads=2, task=task)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, num_environments, seed=seed, greedy=greedy,
        core_state_shape=network.core_state_shape,
    )  # fmt: skip
    try:
        return episodes.play(environment, policy, num_episodes=num_episodes, seed=seed, should_stop=should_stop)
    finally:
        environment.close()


def lane_seed(config: Config, incarnation: int, actor: int, lane: int) -> int:
    """Returns a seed that is distinct for every lane of every actor in every launch."""
    return int(np.random.SeedSequence([config.seed, incarnation, actor, lane]).generate_state(1)[0] % 2**30)


def watch(network, config: Config, *, greedy: bool, seed: int, task: int = 0) -> Iterator[tuple[np.ndarray, float]]:
    """Plays an episode of a task; yields after every step what a person sees, RGB [H, W, 3], and the score so far."""
    from impala.acting import policies

    environment = make_environment(config, task=task, with_picture=True)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, 1, seed=seed, greedy=greedy,
        core_state_shape=network.core_state_shape,
    )  # fmt: skip
    try:
        step, score = environment.reset(seed), 0.0
        yield environment.picture(), score
        while not step.is_last[0]:
            policy.observe(step)
            environment.send(policy.decide().action)
            step = environment.receive()
            score += float(step.reward[0])
            yield environment.picture(), score
    finally:
        environment.close()


def make_actor(
    environment, outputs, *, seed: int, unroll_length: int, origin: Origin, sink,
    sync_weights: Callable[[], int] = lambda: 0, core_state_shape=None, version_per_step: bool = False,
):  # fmt: skip
    """Composes policy, writer and actor around `environment`; the network behind `outputs` decides.

    Args:
      outputs: see `acting.policies`.
      origin: of the first chunk of the first environment.
      sink: takes the chunks of an unroll.
      sync_weights: see `acting.actors`.
      version_per_step: see `chunks.UnrollWriter`.
    """
    from impala.acting import actors, chunks

    spec, n = environment.spec, environment.num_environments
    return actors.Actor(
        environment,
        make_policy(outputs, spec, n, seed=seed, core_state_shape=core_state_shape),
        chunks.UnrollWriter(
            spec, n, unroll_length=unroll_length, origin=origin, sink=sink, core_state_shape=core_state_shape,
            version_per_step=version_per_step,
        ),  # fmt: skip
        sync_weights,
        unroll_length=unroll_length,
        origin=origin,
    )


def make_learner(config: Config, network, correction: Callable | None = None, *, group=None):
    """Composes loss, correction, optimizer and learner as configured, or with another V-based `correction`.

    `group` are the learners that it updates together with.
    """
    from impala.learning import learners, optimizers

    learner = config.learner
    optimizer = optimizers.make(
        learner.optimizer, network.trainable_variables, epsilon=learner.epsilon, adam_beta1=learner.adam_beta1,
        rmsprop_decay=learner.rmsprop_decay, rmsprop_momentum=learner.rmsprop_momentum,
    )  # fmt: skip
    return learners.Learner(
        network,
        make_loss(config.loss, network.distribution, correction),
        optimizer,
        max_grad_norm=learner.max_grad_norm,
        jit_compile=learner.jit_compile,
        after_update=_jobs_after_update(config, network),
        group=group,
    )


def make_group(config: Config, index: int, addresses: Sequence[str]):
    """Composes the `gradients.Group` of learners that have met at `addresses`, of which this one is at `index`.

    On one machine without GPUs the sum goes through its memory, else through TensorFlow's collectives.
    """
    import tensorflow as tf

    from impala.launching.shared_sum import SharedSum
    from impala.learning import gradients

    is_one_machine = len({address.rpartition(":")[0] for address in addresses}) == 1
    if is_one_machine and not tf.config.get_visible_devices("GPU"):
        all_reduce = gradients.ThroughArrays(SharedSum(index, len(addresses), f"impala-learners-{addresses[0]}"))
    else:
        all_reduce = gradients.Collectives(index, addresses)
    return gradients.Group(index, len(addresses), all_reduce, is_mean=config.loss.reduction == "mean")


def _jobs_after_update(config: Config, network) -> list[Callable]:
    """What the configured loss wants done to the network after an update; see `learners.Result`."""
    from impala.losses.popart import COLUMNS

    def renew(result):
        if result.num_updates % config.loss.target_period == 0:
            network.renew()

    def observe_targets(result):
        if result.applied:
            network.observe_targets(*(result.chunks[name] for name in ("task", *COLUMNS)))

    return [renew] * has_target_network(config.loss) + [observe_targets] * config.loss.popart


def make_schedules(config: Config, total_frames: int | None = None) -> Callable[[int], dict[str, float]]:
    """Returns frames → keyword arguments of `Learner.update`, by schedules that end at `learner.learning_rate_frames`.

    Else at `total_frames`, the configured ones by default.
    """
    from impala.learning.optimizers import SCHEDULES

    learner, loss = config.learner, config.loss
    total = learner.learning_rate_frames or (config.total_frames if total_frames is None else total_frames)
    schedules = {
        "learning_rate": SCHEDULES[learner.learning_rate_schedule](learner.learning_rate, total),
        "entropy_cost": SCHEDULES[loss.entropy_cost_schedule](loss.entropy_cost, total),
        "epsilon": SCHEDULES["constant"](learner.epsilon, total),
    }
    return lambda frames: {name: schedule(frames) for name, schedule in schedules.items()}


def has_target_network(loss: LossConfig) -> bool:
    """Returns whether the configured scheme compares the policy with an older copy of the network."""
    from impala import losses

    word = loss.correction
    return word in losses.POLICY_TERMS and losses.POLICY_TERMS[word].has_target_network


def make_loss(loss: LossConfig, distribution, correction: Callable | None = None):
    """Returns the configured loss over actions of `distribution`, with its correction or another V-based one."""
    from impala import losses
    from impala.losses.actor_critic import actor_critic

    make = functools.partial(_bound(actor_critic, loss), terms=make_terms(loss), distribution=distribution)
    correction = correction or make_correction(loss)
    return losses.popart(make, correction) if loss.popart else make(correction)


def make_terms(loss: LossConfig):
    """Returns the terms of the loss of the configured word, their parameters bound; IMPALA's for a V-based scheme."""
    from impala import losses

    word = loss.correction
    return _bound(losses.POLICY_TERMS[word].make, loss)() if word in losses.POLICY_TERMS else losses.Terms()


def make_correction(loss: LossConfig):
    """Returns the V-based scheme of the configured word, its parameters bound."""
    from impala import corrections, losses

    word = loss.correction
    name = losses.POLICY_TERMS[word].correction if word in losses.POLICY_TERMS else word
    return _bound(corrections.SCHEMES[name], loss)


def _bound(function: Callable, loss: LossConfig) -> Callable:
    """Binds those parameters of `function` that the configuration has under the same name."""
    names = inspect.signature(function).parameters.keys() & type(loss).model_fields.keys() - {"correction"}
    return functools.partial(function, **{name: getattr(loss, name) for name in names})
