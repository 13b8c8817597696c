"""What is learned; choose one agent: heads, choice of actions and what is kept of them, loss, jobs after an update.

An agent is a module of this folder. It never asks in which process something happens, and has

    check(config, spec)                                 refuses settings that do not fit together
    make_network(config, spec, on_cpu=…)                with whatever else the loss needs, such as a target copy
    make_behaviour(config, spec, greedy=…)              `acting.behaviours.Behaviour`
    make_chunk_spec(config, spec, version_per_step=…)   what its batches are made of
    make_learner(config, network, group=…)              `learning.learners.Learner`
    make_schedules(config, total_frames)                frames → keyword arguments of `Learner.update`
    EXPLORES_BEYOND_ITS_POLICY                          whether `target_return` looks at evaluations

One that explores beyond its policy also has what its programs, named in brackets, use of these:

    make_behaviour(…, explore=…)                        explore: () → how much each environment explores
    make_exploration(config, spec)                      frames → how much all lanes explore (programs/dqn.py, gorila.py)
    make_ladder(config, count=…)                        how much each environment explores (programs/apex.py), [N]
    make_prioritise(config, network)                    `acting.windows.Prioritise`, or None (programs/apex.py)
    EXPLORATION                                         the metrics column that shows it

and, if its windows are sequences,

    make_writer(config, spec, n, behaviour=…, …)        `acting.sequences.SequenceWriter` (programs/seed.py)

One whose gradients may be computed in one process and applied in another also has

    make_differentiator(config, network)                `learning.differentiators.Differentiator` (programs/a3c.py)

and may have, if an iteration's unrolls make several batches, or workers share more than parameters,

    make_batches(config, network, spec, index, incarnation)   `learning.epochs.Epochs` of a worker (programs/dppo.py)
    make_statistics(config, spec)                       `learning.statistics.Statistics`
    use_statistics(network, statistics, state)          gives the network those that it uses

`members` returns which of all these the configured program asks for, `settings` which settings of the agent it reads.

To add one, write a module with these, name it in `config.uses.AGENTS` and give it a section in `config.sections`. Or
keep it in a package of your own, as a module, class instance or namespace: `agent.name: package.module:name`.
"""

import importlib
from typing import Any

from impala import own
from impala.config import Config

_MOST_ACTORS = 100  # whose exploration is written into each row

MEMBERS = (
    "check", "make_network", "make_behaviour", "make_chunk_spec", "make_learner", "make_schedules",
    "EXPLORES_BEYOND_ITS_POLICY",
)  # fmt: skip


def of(config: Config) -> Any:
    """Returns the configured agent."""
    name = config.agent.name
    return own.load(name) if own.is_own(name) else importlib.import_module(f"impala.agents.{name}")


def members(config: Config) -> tuple[str, ...]:
    """Returns the names of what the configured program asks its agent for."""
    found = MEMBERS + (("make_differentiator",) if config.has_parameter_server else ())
    if not config.replays_alone:
        return found
    if not config.has_use_for("replay.priority_exponent"):
        return (*found, "make_exploration", "EXPLORATION")
    writes = "make_writer" if config.has_central_inference else "make_prioritise"
    return (*found, "make_ladder", writes, "EXPLORATION")


def settings(config: Config) -> tuple[str, ...]:
    """Returns the names of those settings of the agent that the configured program reads; whole numbers above 0."""
    if not config.replays_alone:
        return ()
    length = "period" if config.has_central_inference else "n_step"
    return (length, "target_period") if config.has_parameter_server else (length,)


def behaviour_of_lane(config: Config, spec, first: int, num_environments: int, count: int | None = None):
    """Returns the `acting.behaviours.Behaviour` of environments that step together, numbered over all actors.

    Where each explores with its own constant, these take theirs from the agent's `make_ladder`. The environments of
    each task have a ladder of their own, since lanes play the tasks in turn (`Config.task_of`).

    Args:
      first: number of the first of these environments.
      count: of all environments; by default those of all actors.
    """
    agent, num_tasks = of(config), len(config.environment.tasks)
    if not hasattr(agent, "make_ladder"):
        return agent.make_behaviour(config, spec)
    count = count or config.actor.num_actors * config.actor.num_environments
    lane, rest = divmod(first, num_environments)
    rank = lane // num_tasks * num_environments + rest  # among the environments of this task
    rungs = agent.make_ladder(config, count // num_tasks)[rank : rank + num_environments]
    return agent.make_behaviour(config, spec, explore=lambda: rungs)


def exploration_columns(config: Config) -> list:
    """Returns a list of one function, which returns metrics columns: how much environments explore.

    They are the mean of the environments' exploration constants and, if these differ, the first, middle and last rung,
    and the mean of each actor's (of more than a hundred, of the first 99 and the last). Returns [] where environments
    have no exploration constants of their own.
    """
    agent = of(config)
    if not hasattr(agent, "make_ladder") or not config.has_use_for("agent.epsilon_base"):
        return []
    num_actors, num_lane = config.actor.num_actors, config.actor.num_lane_environments
    num_tasks, name = len(config.environment.tasks), agent.EXPLORATION
    rungs = agent.make_ladder(config, num_actors * config.actor.num_environments // num_tasks)
    columns = {name: float(rungs.mean())}
    if rungs[0] != rungs[-1]:
        places = {"first": 0, "middle": len(rungs) // 2, "last": -1}
        columns |= {f"{name}_{place}": float(rungs[index]) for place, index in places.items()}
        of_lanes = rungs.reshape(-1, num_lane).repeat(num_tasks, axis=0)  # as `behaviour_of_lane` shares them out
        means = of_lanes.reshape(num_actors, -1).mean(axis=1)
        shown = means if len(means) <= _MOST_ACTORS else [*means[: _MOST_ACTORS - 1], means[-1]]
        columns[f"{name}_actors"] = " ".join(f"{mean:.3g}" for mean in shown)
    return [lambda: columns]
