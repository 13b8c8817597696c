"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846), by the rules of IMPALA's appendix F.

Several members train side by side, each with a learner or parameter server and actors of its own. After
`burn_in_frames`, and then every `period_episodes` episodes, a member looks at one other, drawn at random:

    exploit   if the other is fitter by more than `threshold`, take its weights, optimizer and hyper-parameters
    explore   in any case, with `probability`, multiply or divide each hyper-parameter by `factor`

Hyper-parameters begin at the configured values or, with a `spread` above 1, within that factor of them. Members read
each other's checkpoints, which also hold their fitness: none waits for another, and a resumed population continues
where it was.

Fitness is the mean return of the last 100 episodes of each task, human-normalised if human scores exist
(`monitoring.scores`); the paper's is of 5,000 episodes, and capped at 1 for one game, too. `threshold` is in its unit,
that of returns where there are no human scores. A period has at least as many episodes as fitness is of, so that who
has copied another is judged by its own. A hyper-parameter (learning rate, entropy cost, the optimizer's ε) evolves as a
factor on its configured and scheduled value. If a member has several learners, the first one decides and tells the
others; if it has a parameter server, that applies what the optimizer needs, and tells its workers what the loss needs.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from impala.config import Config
from impala.monitoring.logs import CsvLog
from impala.nodes.run import Run

_FITNESS_EPISODES = 100
COLUMNS = ("frames", "updates", "wall_seconds", "episodes", "fitness", "other", "other_fitness", "is_copied")


def members(config: Config, run: Run) -> Iterator[tuple[Config, Run]]:
    """Yields configuration and run of each member; what is given, if there is no population."""
    if config.population.size == 1:
        yield config, run
        return
    for member in range(config.population.size):
        yield config.member(member), run._replace(folder=run.folder / config.member_name(member), member=member)


class Member:
    """One member of a population; the node that has its `Head` holds it.

    Args:
      config: of the population.
      index: of the member.
      folder: of the whole run, which holds a folder for each member.
      state: of the checkpoint resumed from, or {}.
    """

    def __init__(self, config: Config, index: int, folder: Path, state: dict[str, Any]):
        self._population, self._index = config.population, index
        kept = state.get("population", {})
        random = np.random.default_rng([config.seed, index, 0, 4])
        drawn = {name: self._population.spread ** random.uniform(-1, 1) for name in evolving(config)}
        self.factors = drawn | kept.get("factors", {})
        self._num_episodes, self._count = kept.get("num_episodes", 0), kept.get("count", 0)
        self._of_tasks = np.array(kept.get("task_episodes", [0] * len(config.environment.tasks)))
        self._seed, self._others = config.seed, _others(config, index, folder)
        path = folder / config.member_name(index) / "population.csv"
        self._log = CsvLog(path, (*COLUMNS, *self.factors), last=dict(updates=state["updates"]) if state else {})

    def is_due(self, *, frames: int, episodes: Sequence[int]) -> bool:
        """Returns whether it is time to evolve, after so many episodes of each task."""
        is_grown, period = frames >= self._population.burn_in_frames, self._population.period_episodes
        is_judged = min(episodes - self._of_tasks) >= _FITNESS_EPISODES
        return is_grown and is_judged and sum(episodes) - self._num_episodes >= period

    def evolve(
        self, row: dict[str, Any], episodes: Sequence[int], fitness: float | None, copy: Callable[[Path], dict]
    ) -> None:
        """Looks at another member, copies it if it is fitter, and changes the hyper-parameters.

        Args:
          row: the present frames, updates, wall_seconds and episodes.
          episodes: of each task.
          fitness: of this member.
          copy: takes over weights and optimizer from a folder of checkpoints; returns the state that goes with them.
        """
        import tensorflow as tf

        from impala.learning import checkpoints

        random = np.random.default_rng([self._seed, self._index, self._count, 3])
        other = int(random.choice(list(self._others)))
        state = checkpoints.read_state(self._others[other]) or {}
        theirs = state.get("population", {})
        is_fitter = theirs.get("fitness") is not None and (
            fitness is None or theirs["fitness"] > fitness + self._population.threshold
        )
        if is_fitter:
            try:
                # From the newest sound checkpoint, which need not be the one whose fitness was read.
                self.factors |= copy(self._others[other]).get("population", {}).get("factors", {})
            except (OSError, RuntimeError, tf.errors.OpError) as error:
                logging.warning("member %d cannot be copied: %s", other, error)
                is_fitter = False
        for name in self.factors:
            if random.random() < self._population.probability:
                self.factors[name] *= self._population.factor ** random.choice([-1, 1])
        self._num_episodes, self._count = row["episodes"], self._count + 1
        self._of_tasks = np.array(episodes)
        self._log.write(
            row | dict(fitness=fitness, other=other, other_fitness=theirs.get("fitness"), is_copied=int(is_fitter))
            | self.factors
        )  # fmt: skip

    def state(self, fitness: float | None) -> dict[str, Any]:
        """Returns what the member's checkpoint must hold, for itself and for the others."""
        return dict(
            population=dict(
                fitness=fitness, factors=self.factors, num_episodes=self._num_episodes, count=self._count,
                task_episodes=self._of_tasks.tolist(),
            )
        )  # fmt: skip


def evolving(config: Config) -> tuple[str, ...]:
    """Returns which hyper-parameters evolve: of those that are configured, the ones that the agent has."""
    from impala import agents

    return tuple(name for name in config.population.parameters if name in agents.of(config).make_schedules(config)(0))


def scaled(scheduled: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """Returns the scheduled values times a member's factors."""
    return {name: value * factors.get(name, 1.0) for name, value in scheduled.items()}


def are_others_done(config: Config, index: int, folder: Path) -> bool:
    """Returns whether the checkpoints of all members but `index` have reached `total_frames`."""
    from impala.learning import checkpoints

    states = [checkpoints.read_state(checkpoint) or {} for checkpoint in _others(config, index, folder).values()]
    return all(state.get("frames", 0) >= config.total_frames for state in states)


def _others(config: Config, index: int, folder: Path) -> dict[int, Path]:
    """Returns where the other members' checkpoints are."""
    others = (other for other in range(config.population.size) if other != index)
    return {other: folder / config.member_name(other) / "checkpoints" for other in others}
