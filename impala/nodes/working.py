"""A worker: it acts with a copy of the parameters, and differentiates what it played."""

from collections.abc import Sequence

from impala import agents
from impala.config import Config
from impala.nodes.parts import lane_seed, make_actor, make_environment
from impala.types import Chunk, EnvironmentSpec, Episode, Origin, zeros


class Worker:
    """Plays one worker's environments in lanes and turns what they played into gradients.

    Args:
      index: of the worker.
      incarnation: of its process.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, index: int, incarnation: int = 0):
        from impala.acting import actors, policies
        from impala.learning.weights import assign_weights

        self._config, self.index, self._assign_weights = config, index, assign_weights
        agent, actor = agents.of(config), config.actor
        self.network = agent.make_network(config, spec, on_cpu=True)
        self._differentiator = agent.make_differentiator(config, self.network)
        self._schedules = agent.make_schedules(config)
        self._chunks: list[Chunk] = []
        self.version = self._frames = 0  # of the parameters
        outputs, behaviour = policies.network_outputs(self.network), agent.make_behaviour(config, spec)
        self.lanes, loops, self._closing = [], [], []
        for lane in range(actor.num_lanes):
            task, seed = config.task_of(index, lane), lane_seed(config, incarnation, index, lane)
            environment = make_environment(config, actor.num_lane_environments, actor.num_lane_threads, task)
            first = lane * actor.num_lane_environments
            self.lanes.append(make_actor(
                environment, outputs, seed=seed, unroll_length=config.learner.unroll_length, behaviour=behaviour,
                origin=Origin(config.seed, index, first, incarnation, 0, task), sink=self._chunks.extend,
                sync_weights=lambda: self.version,
            ))  # fmt: skip
            loops.append(self.lanes[-1].steps(seed))
            self._closing.append(environment.close)
        self._steps = actors.interleave(loops)
        # Traced before anything is played, so that the names of its metrics are known.
        blank = zeros(agent.make_chunk_spec(config, spec))
        self._differentiator(self._stacked([blank] * config.learner.batch_size), **self._scheduled())

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of a gradient's metrics."""
        return self._differentiator.metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of a gradient's columns."""
        return self._differentiator.columns

    @property
    def variables(self) -> list:
        """The parameters, in the order of a gradient's arrays."""
        return self._differentiator.variables

    def assign(self, version: int, frames: int, arrays: Sequence) -> None:
        """Takes over parameters; the schedules of the loss go by `frames`, those trained on to make them."""
        from impala.types import Weights

        self._assign_weights(self.variables, Weights(version, arrays))
        self.version, self._frames = version, frames

    def act(self) -> list[Episode]:
        """Steps one lane's environments once; returns the episodes that ended."""
        return next(self._steps)

    def batch(self) -> Chunk | None:
        """Returns what all lanes played, once each has ended its unroll."""
        if len(self._chunks) < self._config.learner.batch_size:
            return None
        batch = self._stacked(self._chunks)
        self._chunks.clear()
        return batch

    def differentiate(self, batch: Chunk):
        """Returns the `learning.differentiators.Gradient` of a batch."""
        return self._differentiator(batch, **self._scheduled())

    def num_transitions(self, gradient) -> int:
        """Returns how many transitions a gradient was computed on."""
        return int(round(float(gradient.metrics[self.metrics.index("num_transitions")])))

    def close(self) -> None:
        """Closes the environments."""
        for close in self._closing:
            close()

    def _scheduled(self) -> dict[str, float]:
        """Returns those hyper-parameters that are the loss's; the others are the server's."""
        scheduled = self._schedules(self._frames)
        return {name: value for name, value in scheduled.items() if name not in ("learning_rate", "epsilon")}

    def _stacked(self, chunks: Sequence[Chunk]) -> Chunk:
        from impala.replay import datasets

        return datasets.stack([datasets.marked(chunk, is_replayed=False) for chunk in chunks])
