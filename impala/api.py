"""IMPALA in three lines, for scripts and notebooks; it trains in this process, in lockstep.

from impala import Impala
agent = Impala("CartPole-v1", correction="vtrace").learn(total_steps=300_000)
print(agent.evaluate(episodes=10))
"""

import collections
import numbers
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from impala import config as config_lib
from impala import environments, lockstep
from impala.agents import shared
from impala.config import uses
from impala.learning import checkpoints
from impala.monitoring import evaluations
from impala.monitoring.tasks import WINDOW
from impala.nodes import checking, playing

# Vectors: the settings of configs/cartpole.yaml. MinAtar: those of configs/lab. Atari: wide batches for one process.
_VECTORS = {
    "network.torso": "mlp", "learner.unroll_length": 20, "learner.batch_size": 16, "learner.learning_rate": 3e-3,
    "loss.reward_clipping": "none", "loss.baseline_cost": 0.005,
}  # fmt: skip
_MINATAR = {
    "network.torso": "minatar", "learner.unroll_length": 20, "learner.batch_size": 32, "learner.learning_rate": 1e-3,
}  # fmt: skip
_ATARI = _MINATAR | {"network.torso": "shallow", "learner.learning_rate": 5e-4}
_DEFAULTS = {"atari": _ATARI, "minatar": _MINATAR}  # by the part of the name before the colon


class Evaluation(NamedTuple):
    """Mean score, half the width of its 95 % interval, and the scores."""

    mean: float
    half_interval: float
    scores: list[float]


def _name_of(environment) -> str:
    if isinstance(environment, str):
        return environment
    from impala.environments import handed_in

    try:
        return handed_in.name_of(environment)
    except ValueError as error:
        raise config_lib.ConfigError([f"Impala: {error}"]) from None


def _not_of_this_process(name: str, token: str | None) -> str | None:
    """Returns an error if the environment `name` was handed in to another process, whose `token` it is, else None."""
    from impala.environments import handed_in

    if name.startswith(handed_in.PREFIX) and (token != handed_in.TOKEN or environments.check_name(name)):
        return f"its environment, {name!r}, was handed in as a class or a function, which no file holds"
    return None


_NOT_HERE = {  # (what changes nothing, what is expected)
    "population.size": (1, "1"), "learner.num_learners": (1, "1"), "target_return": (None, "learn(target_return=…)"),
    "evaluator.num_episodes": (0, "evaluate(episodes=…)"),
}  # fmt: skip


def _refuse_what_nobody_reads(config: config_lib.Config) -> None:
    """Raises ConfigError if a key is set that one process has no use for: several members or learners, an evaluator."""
    leaves = {leaf.key: leaf for leaf in uses.leaves(config)}
    lines = [
        f"Impala: {key}={leaves[key].value}: all is done in this process; expected {expected}"
        for key, (nothing, expected) in _NOT_HERE.items()
        if key in leaves and leaves[key].is_set and leaves[key].value != nothing
    ]
    if lines:
        raise config_lib.ConfigError(lines)


def _queue_of(overrides: dict) -> dict:
    """Returns a queue as large as the batch: a configuration is refused without one, though nothing here uses it."""
    learner = overrides.get("learner")
    size = overrides.get("learner.batch_size", learner.get("batch_size") if isinstance(learner, dict) else None)
    agent = overrides.get("agent.name", "actor_critic")
    is_of_it = isinstance(size, numbers.Integral) and uses.is_of_agent("replay.queue_size", str(agent))
    return {"replay.queue_size": max(32, int(size))} if is_of_it else {}


def _plain(value):
    """Returns a value with Python's numbers in place of NumPy's, which a configuration does not take."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


class Impala:
    """An IMPALA agent for `environment`.

    Args:
      environment: `atari:<game>`, `minatar:<game>`, one of `environments.OWN`, a gymnasium id; or a `gymnasium.Env`
        class, a function that makes one, or a result of `gymnasium.make`. Copies are made and stepped in this process.
      correction: a name of `impala.corrections.SCHEMES` or of `impala.losses.POLICY_TERMS`, or `package.module:name` of
        your own.
      lag: updates by which the acting weights are older than the learning ones; exact.
      seed: same seed, same agent.
      overrides: any key of a configuration, e.g. {"learner.learning_rate": 1e-3}.

    Raises:
      ConfigError: the environment or a key is unknown, or a value is out of range; in `learn` and
        `evaluate`, too.
    """

    def __init__(self, environment, *, correction: str = "vtrace", lag: int = 0, seed: int = 0, overrides=None):
        if callable(correction):
            raise config_lib.ConfigError([
                f"Impala: correction={correction!r}; expected a word, or 'package.module:name' of your own; a function "
                "itself goes into lockstep.Lockstep(config, correction=…)"
            ])  # fmt: skip
        if not isinstance(overrides or {}, Mapping) or not all(isinstance(key, str) for key in overrides or {}):
            line = f"Impala: overrides={overrides!r}; expected a dict by key, like {{'learner.learning_rate': 1e-3}}"
            raise config_lib.ConfigError([line])
        overrides, environment = _plain(overrides or {}), _name_of(environment)
        defaults, agent = _DEFAULTS.get(environment.partition(":")[0], _VECTORS), overrides.get("agent.name")
        if isinstance(agent, str):
            defaults = {key: x for key, x in defaults.items() if uses.is_of_agent(key, agent)}
        chosen = _plain({"environment.name": environment, "loss.correction": correction, "seed": seed})
        config = config_lib.build({}, defaults | _queue_of(overrides) | chosen | overrides)
        _refuse_what_nobody_reads(config)
        for line in config_lib.without_effect(config):
            if "total_frames" not in line:  # `learn` is told how long
                print(f"NOTE: {line}", file=sys.stderr)
        for line in shared.notes(config, checking.check(config)):
            print(f"NOTE: {line}", file=sys.stderr)
        self._begin(config, lag)

    def _begin(self, config: config_lib.Config, lag: int, incarnation: int = 0) -> None:
        if not isinstance(lag, numbers.Integral) or lag < 0:
            raise config_lib.ConfigError([f"Impala: lag={lag!r}; expected a whole number of updates, 0 or more"])
        try:
            checking.check_lockstep(config)
        except config_lib.ConfigError as error:
            line = f"Impala: {error.lines[0]}; `impala evaluate` and `impala export` take runs of all programs"
            raise config_lib.ConfigError([line]) from None
        self.config, self._lag, self._is_member = config, int(lag), False
        self._lockstep = lockstep.Lockstep(config, lag=self._lag, incarnation=incarnation)
        self._scores: collections.deque[float] = collections.deque(maxlen=WINDOW)

    @property
    def network(self):
        """The network that learns."""
        return self._lockstep.network

    def learn(self, total_steps: int, *, target_return: float | None = None, on_update=None) -> "Impala":
        """Trains on `total_steps` more agent steps, or until the last 100 episodes' mean score reaches the target.

        By default the learning rate falls linearly to 0, from the first call's start to the end of this one. If several
        calls follow each other, give `learner.learning_rate_frames`, the frames of all of them, or
        `learner.learning_rate_schedule: constant`, in `overrides`.

        Args:
          on_update: called with every `lockstep.Update`.
        """
        if target_return is not None and not (isinstance(target_return, numbers.Real) and np.isfinite(target_return)):
            raise config_lib.ConfigError([f"learn: target_return={target_return!r}; expected a number, or None"])
        if not (isinstance(total_steps, numbers.Real) and 0 <= total_steps < float("inf")):
            raise config_lib.ConfigError([f"learn: total_steps={total_steps!r}; expected a number of agent steps"])
        if self._is_member:
            line = "learn: a member of a population, whose learning rate and other settings have evolved since its "
            line += "configuration; expected evaluate, or impala train on the population"
            raise config_lib.ConfigError([line])
        step_frames = self._lockstep.spec.frames_per_step
        for update in self._lockstep.updates(self._lockstep.frames + total_steps * step_frames):
            self._scores.extend(episode.score for episode in update.episodes)
            if on_update:
                on_update(update)
            if target_return is not None and len(self._scores) == WINDOW and np.mean(self._scores) >= target_return:
                break
        return self

    def evaluate(self, episodes: int = 10, *, greedy: bool = False, task: int = 0) -> Evaluation:
        """Plays episodes with seeds that training never uses; samples actions, or takes the likeliest with `greedy`.

        The seeds are the same in every call: the same weights play the same episodes again.
        `task` is the number of the environment, if the agent was trained on several.
        """
        if not isinstance(episodes, numbers.Integral) or episodes < 1:
            raise config_lib.ConfigError([f"evaluate: episodes={episodes!r}; expected a whole number, 1 or more"])
        if task not in range(tasks := len(self.config.environment.tasks)):
            raise config_lib.ConfigError([f"evaluate: task={task!r}; expected one of {tasks} tasks, counted from 0"])
        seed = playing.evaluation_seed(self.config)
        scores = playing.play(self.network, self.config, num_episodes=episodes, greedy=greedy, seed=seed, task=task)
        return Evaluation(*evaluations.interval(scores), scores)

    def save(self, path: str | Path) -> Path:
        """Writes configuration, weights and optimizer into the folder `path`, replacing an agent there; returns it.

        Raises:
          ConfigError: `path` holds a run, whose checkpoints would be lost, or TensorFlow would find nothing there.
        """
        if not str(path) or any((Path(path) / name).exists() for name in ("lock", "launches.json", "metrics.csv")):
            held = "holds a run of impala train" if str(path) else "is no name"
            raise config_lib.ConfigError([f"save: {str(path)!r} {held}; expected another folder"])
        path = Path(path)
        config_lib.refuse_patterns(path.resolve(), "save:")
        path.mkdir(parents=True, exist_ok=True)
        from impala.environments import handed_in

        state = dict(frames=self._lockstep.frames, lag=self._lag, process=handed_in.TOKEN)
        with tempfile.TemporaryDirectory(dir=path, prefix="saving-") as folder:
            new = Path(folder)
            self._checkpoints(new).save(self._lockstep.learner.num_updates, state)
            (new / "config.yaml").write_text(config_lib.dump(self.config))
            for entry in [*new.iterdir()]:  # other files in the folder stay
                if (path / entry.name).is_dir():
                    (path / entry.name).replace(new / f"old-{entry.name}")  # removed with `new`, once all is in place
                entry.replace(path / entry.name)
        return path

    @classmethod
    def load(cls, path: str | Path, environment=None) -> "Impala":
        """Returns the agent that `save` wrote to `path`, or a run's newest checkpoint, ready to play or to learn on.

        If a run's newest checkpoint is damaged, the one before it is taken, with a line on stderr.

        Args:
          environment: the class or function that the agent was made with, if any: files hold names only.

        Raises:
          ConfigError: there is no agent at `path`, its program replays alone or has a parameter server, or its
            environment has to be handed in again.
          NoSoundCheckpoint: there is one, but all its checkpoints are damaged.
          OtherNetwork: its environment has other observations or actions.
        """
        from impala.environments import handed_in

        path = Path(path)
        if not any((path / "checkpoints").glob("[0-9]*")):
            raise config_lib.ConfigError([f"{path}: holds no agent; expected a folder that Impala.save wrote"])
        state = checkpoints.read_state(path / "checkpoints") or {}  # `_begin` needs the lag
        agent = cls.__new__(cls)
        config = config_lib.load(path / "config.yaml")
        if environment is not None:
            config = config_lib.build(config_lib.as_data(config), {"environment.name": _name_of(environment)})
        token, tasks = handed_in.TOKEN if environment is not None else state.get("process"), config.environment.tasks
        if problems := [problem for name in tasks if (problem := _not_of_this_process(name, token))]:
            raise config_lib.ConfigError([f"{path}: {problems[0]}; expected Impala.load({str(path)!r}, ENVIRONMENT)"])
        checking.check(config)
        # By its updates: what it learns from now on is not what it has learned from.
        agent._begin(config, state.get("lag", 0), incarnation=state.get("updates", 0))
        # Read-only: a process may be training there, and only it may rename damaged checkpoints.
        state = agent._checkpoints(path).restore(report=lambda line: print(line, file=sys.stderr), read_only=True)
        agent._lockstep.learner.num_updates, agent._lockstep.frames = state["updates"], state["frames"]
        agent._is_member = "population" in state
        return agent

    def _checkpoints(self, path: Path) -> checkpoints.Checkpoints:
        learner = self._lockstep.learner
        return checkpoints.Checkpoints(path / "checkpoints", network=self.network, optimizer=learner.optimizer)
