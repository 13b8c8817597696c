"""What runs in the process of a learner whose batches all come from a replay table that others fill."""

from collections.abc import Sequence

from impala.config import Config
from impala.nodes import replaying
from impala.nodes.learner_node import LearnerNode
from impala.nodes.run import Run
from impala.nodes.side_jobs import PeriodicJob
from impala.nodes.with_learner import WithLearner
from impala.types import EnvironmentSpec

_LOOK_SECONDS = 0.5


class ReplayNode(WithLearner):
    """A `LearnerNode` that trains on windows from its own replay table and tells it their new priorities.

    The run's frames are those of the windows that entered the tables of all learners.

    Args:
      table: `reverb.Client` of the replay's server.
    """

    def __init__(
        self, config: Config, spec: EnvironmentSpec, run: Run, index: int = 0, *, table, peers: Sequence[str] = ()
    ):  # fmt: skip
        self.learning = learning = LearnerNode(
            config, spec, run, index, make_source=self._make_source, table=table, peers=peers
        )
        info = replaying.wait_for(table, learning.stop)
        self._first = info.rate_limiter_info.insert_stats.completed  # more than 0 if a kept table was read
        self._num_inserted = 0
        min_size = replaying.share_of(config).min_size
        replaying.say_what_is_there(learning, info.current_size, min_size, index if peers else None)
        replaying.write_back_priorities(learning, self._source, config, index)
        replaying.count_frames(learning, "inserted_windows", lambda: self._num_inserted)
        learning.jobs.append(PeriodicJob(_LOOK_SECONDS, self._look))

    def _make_source(self, place, table):
        self._source = replaying.from_replay(place, table)
        return self._source

    def _look(self) -> None:
        if (num_inserted := self._source.num_inserted()) is not None:
            self._num_inserted = num_inserted - self._first
