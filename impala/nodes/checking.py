"""Checks, before any process starts, that what a configuration names exists on this machine and fits together."""

from impala import agents, own
from impala.config import Config, ConfigError
from impala.nodes import own_parts
from impala.nodes.parts import make_environment
from impala.types import EnvironmentSpec

_FEWEST_TENSORS = 2  # of any network: those of its last layer


def check(config: Config) -> EnvironmentSpec:
    """Returns the environments' spec, after checks that `config` cannot make: that all exists here and fits together.

    Every environment is played for a few steps.

    Raises:
      ConfigError: an environment is unknown, cannot be made or does not return what it announces, several are not
        alike, the torso does not take their observations, or the correction does not take their actions; a part of the
        user's own cannot be imported, or does not do what is asked of it; there are more shards than tensors.
    """
    from impala import environments

    tasks, specs = config.environment.tasks, []
    if problems := [problem for name in tasks if (problem := environments.check_name(name))]:
        raise ConfigError(problems)
    for index in range(len(tasks)):
        specs.append(_try_environment(config, index))
    _check_alike(specs)
    if own.is_own(config.agent.name):
        own_parts.check_agent(config, specs[0])
    else:
        agents.of(config).check(config, specs[0])
    _check_length(config, specs[0])
    if config.own_parts or config.has_parameter_server and config.server.num_shards > _FEWEST_TENSORS:
        own_parts.try_out(config, specs[0])
    return specs[0]._replace(name=", ".join(tasks))


def check_lockstep(config: Config) -> None:
    """Refuses what `lockstep.Lockstep` does not train.

    Raises:
      ConfigError: the program learns from other things than unrolls, or several tasks cannot share the fresh chunks.
    """
    num_tasks = len(config.environment.tasks)
    if config.replays_alone or config.has_parameter_server:
        raise ConfigError([
            f"program={config.program} with agent.name={config.agent.name}; expected one that learns from "
            "unrolls (impala, seed, ga3c)"
        ])  # fmt: skip
    if config.num_fresh % num_tasks:
        raise ConfigError([
            f"learner.batch_size={config.learner.batch_size}: {config.num_fresh} fresh chunks a batch; in lockstep "
            f"expected a multiple of the {num_tasks} tasks"
        ])  # fmt: skip


def _try_environment(config: Config, task: int) -> EnvironmentSpec:
    from impala import environments
    from impala.environments import handed_in

    name = config.environment.tasks[task]
    try:
        environment = make_environment(config, task=task)
    except (Exception, SystemExit) as error:
        needs_place = own.is_own(name) or isinstance(error, (LookupError, AssertionError))
        reason = own_parts.told(error) if needs_place and not isinstance(error, ModuleNotFoundError) else error
        raise ConfigError([f"environment.name: {name!r} cannot be made: {reason}"]) from None
    try:
        fault = environments.fault(environment)
        problem = f"does not return what it announces: {fault}" if fault else ""
    except (Exception, SystemExit) as error:
        problem = f"fails when it is played: {own_parts.told(error)}"
    try:
        environment.close()
    except (Exception, SystemExit) as error:
        problem = problem or f"fails when it is closed: {own_parts.told(error)}"
    if problem:
        raise ConfigError([f"environment.name: {name!r} {problem}"])
    if name.startswith(handed_in.PREFIX) and config.num_fresh > 1:  # by a function that may return one object again
        try:
            make_environment(config, 2, task=task).close()
        except Exception as error:
            raise ConfigError([f"environment.name: {name!r} cannot be made twice: {error}"]) from None
    return environment.spec


def _check_length(config: Config, spec: EnvironmentSpec) -> None:
    """Refuses a run that ends before its replay holds what the first update waits for."""
    if not config.replays_alone:
        return
    num_frames = config.num_steps_before_learning * spec.frames_per_step
    if config.total_frames < num_frames:
        raise ConfigError([
            f"total_frames={config.total_frames}: the first update waits until {num_frames} were played, for "
            f"replay.min_size={config.replay.min_size}; expected more frames, or a smaller min_size"
        ])  # fmt: skip


def _check_alike(specs: list[EnvironmentSpec]) -> None:
    for other in specs[1:]:
        for field in ("actions", "observation", "parts", "num_stacked", "frames_per_step"):
            one_has, other_has = getattr(specs[0], field), getattr(other, field)
            if one_has != other_has:
                are_games = all(spec.name.startswith("atari:") for spec in (specs[0], other))
                remedy = "environment.action_set: full" if field == "actions" and are_games else "tasks that are alike"
                raise ConfigError([
                    f"environment.name: one network cannot play {specs[0].name} with {field} {one_has} and "
                    f"{other.name} with {other_has}; expected {remedy}"
                ])  # fmt: skip
