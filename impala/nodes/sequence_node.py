"""What runs in the process of central inference whose learner replays sequences."""

import threading
from collections.abc import Sequence

from impala import agents
from impala.config import Config
from impala.nodes import replaying
from impala.nodes.central_node import CentralNode
from impala.nodes.run import Run
from impala.types import EnvironmentSpec, Origin


class SequenceNode(CentralNode):
    """A `CentralNode` that writes sequences to a replay table, trains on those it draws, and updates their priorities.

    Every environment of all actors explores with a constant of its own. The run's frames are those that were played for
    all learners.

    Args:
      table: `reverb.Client` of the replay's server.
    """

    def __init__(
        self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, table, peers: Sequence[str] = (),
        first=None,
    ):  # fmt: skip
        self._table, self._sinks, self._counting = table, {}, threading.Lock()
        self._num_steps = 0  # played for this learner
        super().__init__(config, spec, run, index, peers=peers, first=first)
        learning = self.learning
        replaying.write_back_priorities(learning, self._source, config, index)
        replaying.count_frames(learning, "played_steps", lambda: self._num_steps)
        share = replaying.share_of(config)
        sizes = (share.num_fresh * num for num in (self._info.current_size, share.min_size))
        replaying.say_what_is_there(learning, *sizes, index if peers else None)

    def _unroll_length(self) -> int:
        return self._config.agent.period

    def _make_source(self, place):
        self._info = replaying.wait_for(self._table, place.stop)
        self._source = replaying.from_replay(place, self._table)
        return self._source

    def _make_behaviour(self, lane, num_environments: int):
        first = lane.actor * self._config.actor.num_environments + lane.first_environment
        return agents.behaviour_of_lane(self._config, self._spec, first, num_environments)

    def _make_writer(self, lane, num_environments: int):
        from impala.acting import windows
        from impala.replay import tables
        from impala.replay.windows import lengths

        config, agent = self._config, agents.of(self._config)
        sink = windows.TableWindows(
            self._table, tables.REPLAY, num_environments, lengths=lengths(agent.make_chunk_spec(config, self._spec)),
            should_stop=self._should_stop,
        )  # fmt: skip
        self._sinks[lane[:2]] = sink
        origin = Origin(
            run=config.seed, actor=lane.actor, environment=lane.first_environment, incarnation=lane.incarnation, seq=0,
            task=lane.task,
        )  # fmt: skip
        return agent.make_writer(
            config, self._spec, num_environments, origin=origin, sink=sink, on_steps=self._count,
            behaviour=self._behaviour,
        )  # fmt: skip

    def _should_stop(self) -> bool:
        return self.learning.stop.is_set() or self.learning.is_over

    def _count(self, num_steps: int) -> None:
        with self._counting:  # lanes step in threads of their own
            self._num_steps += num_steps

    def _blocked_fraction(self) -> float:
        return sum(sink.blocked_fraction() for sink in list(self._sinks.values()))
