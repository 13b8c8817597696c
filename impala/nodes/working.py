"""A worker: it acts with a copy of the parameters, and computes gradients from what it played."""

import functools
from collections.abc import Sequence

import numpy as np

from impala import agents
from impala.agents import shared
from impala.config import Config
from impala.nodes import exchanging, population
from impala.nodes.closing import close_all
from impala.nodes.parts import lane_origin, lane_seed, make_actor, make_environment
from impala.types import Chunk, EnvironmentSpec, Episode, zeros


def rules_of(config: Config):
    """Returns the configured `learning.server.Rules`."""
    from impala.learning.server import Rules

    settings, awaited = config.server, config.actor.num_actors - config.server.num_late
    return Rules(
        settings.max_staleness, awaited if settings.barrier else None, is_mean=config.loss.reduction == "mean",
        target_period=config.agent.target_period if config.replays_alone else None,
        num_optimizers=1 if settings.shared_optimizer else config.actor.num_actors,
    )  # fmt: skip


class BaseWorker:
    """What all workers have: a copy of the network, what computes gradients, and lanes that act.

    Args:
      index: of the worker.
      incarnation: of its process.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, index: int, incarnation: int = 0):
        from impala.learning.parameters import assign_weights

        self._config, self._spec, self.index, self._incarnation = config, spec, index, incarnation
        self._assign_weights = assign_weights
        agent = agents.of(config)
        self.network = agent.make_network(config, spec, on_cpu=True)
        self._differentiator = agent.make_differentiator(config, self.network)
        self._schedules = agent.make_schedules(config)
        self.version = self._frames = 0  # of the parameters
        self._newest_target, self._num_replaced = 0, 0
        self._factors = dict.fromkeys(population.evolving(config), 1.0)
        self.lanes, self._environments, self._steps = [], [], iter(())

    @property
    def facts(self) -> exchanging.Facts:
        """What the server must know of its gradients."""
        computes = self._differentiator
        return exchanging.Facts(
            exchanging.configuration_of(self._config), exchanging.parameters_of(self.variables), list(computes.metrics),
            list(computes.columns), computes.width,
        )  # fmt: skip

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of a gradient's metrics."""
        return self._differentiator.metrics

    @property
    def variables(self) -> list:
        """The parameters, in the order of a gradient's arrays."""
        return self._differentiator.variables

    def assign(self, version: int, frames: int, arrays: Sequence, statistics) -> None:
        """Takes over parameters; `frames`, counted when they were made, is what the loss's schedules depend on."""
        from impala.types import Weights

        self._assign_weights(self.variables, Weights(version, arrays))
        self.version, self._frames = version, frames

    def heed(self, settings: np.ndarray) -> None:
        """Takes over the settings of an `exchanging.Answer`."""
        self._newest_target, num_replaced = int(settings[0]), int(settings[1])
        self._factors = dict(zip(self._factors, settings[2:].tolist()))
        if num_replaced != self._num_replaced:
            self._num_replaced = num_replaced
            self.forget()

    def forget(self) -> None:
        """Leaves what is under way: the next parameters are another member's of the population."""

    def act(self) -> list[Episode]:
        """Goes on to the next pause of one lane's loop (see `Actor.steps`); returns the episodes that ended."""
        return next(self._steps)

    def batch(self):
        """Returns the next batch to differentiate, or None until more was played."""
        raise NotImplementedError

    def differentiate(self, batch):
        """Returns the `learning.differentiators.Gradient` of a batch."""
        return self._differentiator(batch, **self._scheduled())

    def num_transitions(self, gradient) -> int:
        """Returns how many transitions the run is to count with a gradient."""
        raise NotImplementedError

    def increments(self):
        """Returns what to add to the statistics since the last call."""
        return np.zeros(0)

    def is_outlier(self, gradient) -> bool:
        """Returns whether a gradient is to be refused for its loss."""
        return False

    def answered(self, verdict: int) -> None:
        """Takes the server's verdict on its last gradient."""

    is_dated = False  # whether it has gone without an answer for so long that it should join again
    wants_target = False  # whether it is time for `assign_target`

    def assign_target(self, number: int, arrays: Sequence) -> None:
        """Takes over the parameters of θ⁻, the server's `number`th."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the environments."""
        close_all(self._environments)

    def _scheduled(self) -> dict[str, float]:
        """Returns those hyper-parameters that are the loss's; the others are the server's."""
        scheduled = population.scaled(self._schedules(self._frames), self._factors)
        return {name: value for name, value in scheduled.items() if name not in ("learning_rate", "epsilon")}


class Worker(BaseWorker):
    """Plays one worker's environments in lanes and turns each unroll of theirs into gradients."""

    def __init__(self, config: Config, spec: EnvironmentSpec, index: int, incarnation: int = 0):
        from impala.acting import actors, policies

        super().__init__(config, spec, index, incarnation)
        agent, actor = agents.of(config), config.actor
        self._statistics, self._chunks, self._sent = shared.make_statistics(config, spec), [], np.zeros(0)
        outputs, behaviour = policies.network_outputs(self.network), agent.make_behaviour(config, spec)
        loops = []
        for lane in range(actor.num_lanes):
            task, seed = config.task_of(index, lane), lane_seed(config, incarnation, index, lane)
            n, num_threads = actor.num_lane_environments, actor.num_lane_threads
            environment = make_environment(config, n, num_threads=num_threads, task=task, first_seed=seed)
            self.lanes.append(make_actor(
                environment, outputs, seed=seed, unroll_length=config.learner.unroll_length, behaviour=behaviour,
                origin=lane_origin(config, incarnation, index, lane), sink=self._keep,
                sync_weights=lambda: self.version,
            ))  # fmt: skip
            loops.append(self.lanes[-1].steps(seed))
            self._environments.append(environment)
        self._steps = actors.interleave(loops)
        make_batches = functools.partial(shared.make_batches, config, self.network, spec, index, incarnation)
        self._batches, self._to_come, self._place = make_batches(), None, 0  # batches of the iteration under way
        # Traced before anything is played, so that the names of its metrics are known.
        blank = self._stacked([zeros(agent.make_chunk_spec(config, spec))] * config.learner.batch_size)
        self._differentiator(next(iter(make_batches()(blank))), **self._scheduled())

    def assign(self, version: int, frames: int, arrays: Sequence, statistics) -> None:
        """See `BaseWorker`; moments are taken over once an iteration is over, the penalty's coefficient at once."""
        super().assign(version, frames, arrays, statistics)
        self._batches.newest = statistics
        if self._to_come is None:
            self._adopt()

    def batch(self):
        """Returns the next batch to differentiate, or None until each lane has ended its unroll.

        At a barrier all workers' iterations end at the same updates, and a batch has the same place in all of them: a
        worker that came late, since its process had to start again, or that a round went on without, leaves out what
        the others have had.
        """
        iteration, place = divmod(self.version, self._batches.num_batches)
        if self._to_come is not None:
            batch = None
            if iteration == self._iteration:
                batch = self._batch_at(place)
            elif (iteration, place) == (self._iteration + 1, 0) and self._place == self._batches.num_batches:
                next(self._to_come, None)  # to the end: there it measures how far the policy has moved
            if batch is not None:
                return batch
            self._to_come = None
            self._adopt()
        if len(self._chunks) < self._config.learner.batch_size:
            return None
        self._iteration, self._place = iteration, 0
        self._to_come = iter(self._batches(self._stacked(self._chunks), measures_kl=place == 0))
        self._chunks.clear()
        return self._batch_at(place)

    def _batch_at(self, place: int):
        """Returns the batch of a place in the iteration, or the next one if that is later; None at the end."""
        num_left_out = max(0, place - self._place)
        for _ in range(num_left_out):
            next(self._to_come)
        if num_left_out:
            self._batches.drop_kl()  # β was adapted by the others'
        self._place += num_left_out + 1
        return next(self._to_come, None)

    def forget(self) -> None:
        """See `BaseWorker`; the rest of an iteration would train a policy that it was not played by."""
        self._to_come = None
        self._batches.take()

    def num_transitions(self, gradient) -> int:
        """Returns how many transitions a gradient was computed on."""
        return int(round(float(gradient.metrics[self.metrics.index("num_transitions")])))

    def increments(self):
        """Returns what to add to the statistics since the last call."""
        self._sent = self._batches.take()
        return self._sent

    def answered(self, verdict: int) -> None:
        """Keeps a refused gradient's increments for the next one, unless they are not finite."""
        from impala.learning.server import Verdict

        is_in = verdict in (Verdict.ACCEPTED, Verdict.REPEATED)  # what is repeated was accepted, its answer lost
        if not is_in and np.isfinite(self._sent).all():
            self._batches.put_back(self._sent)

    def _keep(self, chunks: Sequence[Chunk]) -> None:
        from impala.acting.chunks import check_finite

        for chunk in chunks:
            check_finite(chunk)
        self._chunks.extend(chunks)

    def _adopt(self) -> None:
        self._batches.state = self._batches.newest
        shared.use_statistics(self._config, self.network, self._statistics, self._batches.state)

    def _stacked(self, chunks: Sequence[Chunk]) -> Chunk:
        from impala.replay import datasets

        return datasets.stack([datasets.marked(chunk, is_replayed=False) for chunk in chunks])
