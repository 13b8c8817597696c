"""The README's river in one process: deterministic, with an exact policy lag.

    actor (weights of k updates ago) → chunks in memory → learner → weights

Made of the same stations as the distributed programs, placed as in the configured one. The fresh part of a batch is one
unroll of every environment; after u updates, the next batch's was played with weights version max(0, u − k), exactly.
With `replay.fraction` f there are (1 − f) B environments, and f B more chunks are drawn uniformly from the newest
`replay.size`, which include this update's. Several tasks share the environments equally. Same seed, same weights, bit
for bit on one machine.
"""

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import numpy as np

from impala import agents
from impala.acting import actors, policies
from impala.acting.windows import WindowWriter
from impala.agents import shared
from impala.config import Config
from impala.learning import server
from impala.learning.parameters import assign_weights
from impala.nodes import checking, parts, workers, working
from impala.programs import placements
from impala.replay import datasets
from impala.replay.memory import MemoryWindows
from impala.replay.windows import lengths, to_tensors
from impala.types import Chunk, Episode, Origin, Weights


class Update(NamedTuple):
    """One update of the learner, and what was played for it."""

    index: int
    frames: int
    batch: Chunk
    metrics: dict[str, float]
    episodes: list[Episode]


class _Playing:
    """Plays by a generator, `_steps`, which an exception of an environment, or an interrupt, ends.

    The next call then plays on with new episodes: `_begin_anew` makes the generator again, for another `_incarnation`.
    """

    def _play(self) -> list[Episode]:
        if self._steps is None:
            self._incarnation += 1
            self._begin_anew()
        try:
            return next(self._steps)
        except BaseException:
            self._steps = None
            raise


class Lockstep(_Playing):
    """Trains `config` step by step; iterate over `updates()`.

    Args:
      config: of a training run; there is one environment for each fresh chunk of a batch, whatever `actor` says.
      lag: k, updates between the weights that act and those that learn.
      environments: played instead of the configured ones: an `Environment` for each task, (1 − f) B copies in all.
      make_network: makes an actor-critic network for an `EnvironmentSpec`, instead of the configured one.
      correction: a V-based scheme of your own, instead of the configured one.
      incarnation: another number gives environments, policies and replay other random numbers.
    """

    def __init__(
        self, config: Config, *, lag: int = 0, environments: Sequence | None = None,
        make_network: Callable | None = None, correction: Callable | None = None, incarnation: int = 0,
    ):  # fmt: skip
        if lag < 0:
            raise ValueError(f"lag={lag}; expected a number of updates, 0 or more")
        self._config, self._lag, self._incarnation = config, lag, incarnation
        checking.check_lockstep(config)
        self._given, self._closing = environments, []
        self._environments = environments = environments or self._make_environments()
        num_games = sum(environment.num_environments for environment in environments)
        if num_games != config.num_fresh:
            raise ValueError(f"environments: {num_games} copies; expected {config.num_fresh}, a batch's fresh chunks")
        self.spec = spec = environments[0].spec
        make_network = make_network or functools.partial(agents.of(config).make_network, config)
        self.network = make_network(spec)
        # Without lag the network that learns also acts; otherwise a copy acts with the weights of k updates ago.
        self._acting = make_network(spec) if lag else self.network
        self._acting_variables = list(self._acting.trainable_variables)
        self.learner = agents.of(config).make_learner(config, self.network, *([correction] if correction else []))
        self._versions = collections.deque(maxlen=lag + 1)  # oldest first
        self._unroll: list[Chunk] = []
        self._replay: collections.deque[Chunk] = collections.deque(maxlen=config.replay.size)
        self._random = np.random.default_rng([config.seed, 1, incarnation])
        self.frames, self.num_episodes = 0, 0
        self._begin_acting()

    def _make_environments(self) -> list:
        num_tasks = len(self._config.environment.tasks)
        num_each = self._config.num_fresh // num_tasks
        return [parts.make_environment(self._config, num_each, task=task) for task in range(num_tasks)]

    def _begin_acting(self) -> None:
        """Begins new episodes and unrolls; nothing is played before `_play`."""
        config, outputs, steps = self._config, policies.network_outputs(self._acting), []
        self._closing = [environment.close for environment in self._environments]
        for task, environment in enumerate(self._environments):
            seed, n = parts.lane_seed(config, self._incarnation, 0, task), environment.num_environments
            behaviour = agents.behaviour_of_lane(config, self.spec, task * n, n, config.num_fresh)
            actor, close = placements.OF_PROGRAM[config.program](
                environment, outputs, lambda: self._acting_version,
                seed=seed, unroll_length=config.learner.unroll_length, sink=self._unroll.extend,
                origin=Origin(run=config.seed, actor=task, environment=0, incarnation=0, seq=0, task=task),
                # The actors share one network: the first updates its weights for all of them.
                sync_weights=self._sync_weights if task == 0 else lambda: self._acting_version,
                # A network that was handed in may have another core than the configured one, or none.
                behaviour=behaviour._replace(core_state_shape=self.network.core_state_shape),
            )  # fmt: skip
            steps.append(actor.steps(seed))
            self._closing.append(close)
        self._steps = actors.interleave(steps)

    def _begin_anew(self) -> None:
        for close in self._closing[len(self._environments) if self._given else 0 :]:  # what was given is played again
            close()
        self._unroll.clear()
        self._environments = self._given or self._make_environments()
        self._begin_acting()

    def close(self) -> None:
        """Closes environments and ends threads."""
        for close in self._closing:
            close()

    def _sync_weights(self) -> int:
        self._acting_version = self.learner.num_updates
        if self._lag:
            if not self._versions or self._versions[-1].version < self._acting_version:  # else an unroll begins anew
                self._versions.append(self.learner.weights())
            assign_weights(self._acting_variables, self._versions[0])
            self._acting_version = self._versions[0].version
        return self._acting_version

    def _next_batch(self) -> Chunk:
        batch = [datasets.marked(chunk, is_replayed=False) for chunk in self._unroll]
        if self._config.num_replayed:
            self._replay.extend(self._unroll)
            drawn = self._random.integers(len(self._replay), size=self._config.num_replayed)
            batch += [datasets.marked(self._replay[i], is_replayed=True) for i in drawn]
        self._unroll.clear()
        return datasets.stack(batch)

    def updates(self, total_frames: int | None = None) -> Iterator[Update]:
        """Yields after every update, until `total_frames` (by default the configured number) were trained on.

        A later call with a larger number continues where the last call ended.
        """
        total_frames = self._config.total_frames if total_frames is None else total_frames
        scheduled = agents.of(self._config).make_schedules(self._config, total_frames)
        finished: list[Episode] = []
        while self.frames < total_frames:
            while len(self._unroll) < self._config.num_fresh:
                finished += self._play()
            batch = self._next_batch()
            result = self.learner.update(batch, **scheduled(self.frames))
            self.frames += int(result.metrics["num_transitions"]) * self.spec.frames_per_step
            self.num_episodes += len(finished)
            yield Update(self.learner.num_updates, self.frames, batch, result.metrics, finished)
            finished = []


class ReplayLockstep(_Playing):
    """The same for an agent that replays: plays `config.steps_per_update` steps for each update, in this thread.

    Windows, or sequences, are kept in memory. The network that learns also acts, so decisions use the weights of the
    last update. The first update comes once `replay.min_size` transitions are stored. The environments of all actors
    are played here. Where a program draws by priority, each has its own ε, and new priorities are set before the next
    draw; without `replay.samples_per_insert` each transition is trained on once on average.

    Args:
      config: of a training run with a replay table.
    """

    def __init__(self, config: Config):
        self._config, agent, self._random = config, agents.of(config), np.random.default_rng([config.seed, 1])
        self._is_prioritised = is_prioritised = config.has_use_for("replay.priority_exponent")
        self._environment, self._finished = self._make_environment(), []
        n = self._environment.num_environments
        self.spec = self._environment.spec
        self.network = agent.make_network(config, self.spec)
        self.learner = agent.make_learner(config, self.network)
        self.frames, self.num_episodes, self._incarnation = 0, 0, 0
        self.replay = MemoryWindows(
            config.replay.size // config.window.fresh, n, lengths=lengths(agent.make_chunk_spec(config, self.spec)),
            priority_exponent=config.replay.priority_exponent if is_prioritised else 0.0,
        )  # fmt: skip
        self._begin_acting()

    def _begin_acting(self) -> None:
        """Begins new episodes; nothing is played before `_play`."""
        config, agent, n = self._config, agents.of(self._config), self._environment.num_environments
        if self._is_prioritised:
            ladder = agent.make_ladder(config)
            exploration = lambda frames: ladder  # noqa: E731
        else:
            exploration = agent.make_exploration(config, self.spec)
        seed, origin = parts.lane_seed(config, self._incarnation, 0, 0), parts.lane_origin(config, 0, 0, 0)
        behaviour = agent.make_behaviour(config, self.spec, explore=lambda: exploration(self.frames))
        outputs = policies.with_version(policies.network_outputs(self.network), lambda: self.learner.num_updates)
        policy = parts.make_policy(outputs, self.spec, n, seed=seed, behaviour=behaviour)
        where = dict(origin=origin, sink=self.replay, on_steps=self._count)
        if hasattr(agent, "make_writer"):
            writer = agent.make_writer(config, self.spec, n, behaviour=behaviour, **where)
        else:
            writer = WindowWriter(
                self.spec, n, length=config.agent.n_step, kept=behaviour.kept, **where,
                prioritise=agent.make_prioritise(config, self.network) if self._is_prioritised else None,
            )  # fmt: skip
        actor = actors.Actor(
            self._environment, policy, writer, lambda: self.learner.num_updates, unroll_length=config.window.fresh,
            origin=origin,
        )  # fmt: skip
        self._steps = actor.steps(seed)

    def _begin_anew(self) -> None:
        self.close()
        self._environment = self._make_environment()
        self._begin_acting()

    def _make_environment(self):
        config = self._config
        n = config.actor.num_actors * config.actor.num_environments
        return parts.make_environment(config, n, **parts.training_limits(config))

    def _count(self, num_steps: int) -> None:
        self.frames += num_steps * self.spec.frames_per_step

    def close(self) -> None:
        """Closes the environments."""
        self._environment.close()

    def updates(self, total_frames: int | None = None) -> Iterator[Update]:
        """Yields after every update, until `total_frames` (by default the configured number) were played."""
        replay, learner = self._config.replay, self._config.learner
        total = self._config.total_frames if total_frames is None else total_frames
        scheduled = agents.of(self._config).make_schedules(self._config, total)
        exponent = replay.importance_exponent if self._is_prioritised else None
        fresh, trained = self._config.window
        ratio = (replay.samples_per_insert or 1.0) * fresh / trained  # draws of each window
        while self.frames < total:
            self._finished += self._play()
            num_due = (self.replay.num_inserted - replay.min_size / fresh) * ratio
            while num_due >= self.learner.num_updates * learner.batch_size:
                drawn = self.replay.sample(learner.batch_size, self._random)
                batch = to_tensors(drawn, importance_exponent=exponent)
                result = self.learner.update(batch, **scheduled(self.frames))
                if self._is_prioritised:
                    priority = result.chunks["priority"]
                    is_sound = np.isfinite(priority) & (priority > 0)  # of an update that was skipped they may not be
                    self.replay.update(drawn["key"][is_sound], priority[is_sound])
                finished, self._finished = self._finished, []
                self.num_episodes += len(finished)
                yield Update(self.learner.num_updates, self.frames, batch, result.metrics, finished)


class ServedLockstep:
    """The same for a program with a parameter server: its `actor.num_actors` workers take turns.

    A worker plays an unroll, differentiates, and takes the server's parameters. From the second round on, each gradient
    of W workers is W − 1 updates stale, exactly. With a barrier all gradients of a round make one update.

    Args:
      config: of a training run with a parameter server. Here it has one shard, a barrier waits for all workers
        (`server.num_late` is 0), and each worker has a replay of its own (`replay.shared` is false).
    """

    def __init__(self, config: Config):
        self._config, self.spec = config, checking.check(config)
        num_workers, statistics = config.actor.num_actors, shared.make_statistics(config, self.spec)
        self._workers = [workers.make(config, self.spec, index) for index in range(num_workers)]
        self.network = self._workers[0].network
        self._server = server.ParameterServer(
            server.State(0, 0, [v.numpy() for v in self._workers[0].variables], [], statistics.initial()),
            functools.partial(shared.make_optimizer, config), agents.of(config).make_schedules(config),
            merge=statistics.merge,
            rules=working.rules_of(config)._replace(num_awaited=num_workers if config.server.barrier else None),
        )  # fmt: skip
        self._pushing = futures.ThreadPoolExecutor(num_workers)  # at a barrier, each waits for the others
        self._is_round, self._number = config.server.barrier, 0
        self.frames, self.num_episodes = 0, 0

    def updates(self, total_frames: int | None = None) -> Iterator[Update]:
        """Yields after every update, until `total_frames` (by default the configured number) were trained on.

        Schedules end where the configuration says, as the server's do.
        """
        total, finished, pushed = self._config.total_frames if total_frames is None else total_frames, [], []
        while self.frames < total:
            worker = self._workers[len(pushed) if self._is_round else self._number % len(self._workers)]
            while (batch := worker.batch()) is None:
                finished += worker.act()
            gradient = worker.differentiate(batch)
            pushed.append((worker, self._pushing.submit(self._server.push, self._push_of(worker, gradient))))
            self._number += 1
            if self._is_round and len(pushed) < len(self._workers):
                continue
            for one, verdict in pushed:
                one.answered(verdict.result())
                one.heed(np.array([self._server.target_number, 0]))
                one.assign(*self._server.read())
                if one.wants_target:
                    one.assign_target(*self._server.target())
            pushed, self.frames = [], self._server.frames
            self.num_episodes += len(finished)
            metrics = dict(zip(worker.metrics, gradient.metrics.tolist()))
            yield Update(self._server.version, self.frames, batch, metrics, finished)
            finished = []

    def _push_of(self, worker, gradient):
        num_frames = worker.num_transitions(gradient) * self.spec.frames_per_step
        return server.Push(
            worker.index, 0, self._number, worker.version, gradient.arrays, num_frames, gradient.is_finite,
            worker.is_outlier(gradient), worker.increments(),
        )  # fmt: skip

    def weights(self) -> Weights:
        """Returns the server's parameters, with the number of updates that made them."""
        version, _, arrays, _ = self._server.read()
        return Weights(version, arrays)

    def close(self) -> None:
        """Closes the environments and ends threads."""
        self._pushing.shutdown()
        for worker in self._workers:
            worker.close()


def of(config: Config):
    """Returns the configured program in lockstep.

    `Lockstep`; `ReplayLockstep` if it trains on replay alone, `ServedLockstep` if it has a parameter server.
    """
    if config.has_parameter_server:
        return ServedLockstep(config)
    return ReplayLockstep(config) if config.replays_alone else Lockstep(config)


def mean_return(updates: Iterator[Update], *, target: float | None = None, window: int = 100) -> float:
    """Trains to the end, or until the last `window` episodes' mean score reaches `target`; returns that mean."""
    scores: collections.deque[float] = collections.deque(maxlen=window)
    for update in updates:
        scores.extend(episode.score for episode in update.episodes)
        if target is not None and len(scores) == window and np.mean(scores) >= target:
            break
    return float(np.mean(scores)) if scores else float("nan")
