"""From a configuration to the source of a learner's batches."""

from collections.abc import Callable
from typing import NamedTuple

from impala import agents
from impala.config import Config
from impala.nodes.run import Run
from impala.nodes.side_jobs import Recorder
from impala.types import EnvironmentSpec


class Place(NamedTuple):
    """The learner that a source feeds."""

    config: Config
    spec: EnvironmentSpec
    run: Run
    index: int  # of the learner
    stop: object  # the node's `Pulse`
    device: str  # where batches go
    num_updates: Callable[[], int]  # done so far


def from_tables(place: Place, table):
    """Makes the source of chunks that actors write into this learner's Reverb server; `table` is its client."""
    from impala.replay import checks, sources

    config, run, num_learners = place.config, place.run, place.config.learner.num_learners
    origins = checks.ExpectedOrigins(
        config.seed, run.incarnation, config.actor.num_actors, config.actor.num_environments,
        len(config.environment.tasks),
    )  # fmt: skip
    return sources.Tables(
        table,
        num_fresh=config.num_fresh // num_learners,
        num_replayed=config.num_replayed // num_learners,
        replay_size=config.replay_size_each,
        checks=checks.Checks(
            agents.of(config).make_chunk_spec(config, place.spec), place.spec.actions, origins,
            # An actor may have fetched weights from a peer that has finished the update still under way here.
            lambda: place.num_updates() + (num_learners > 1),
        ),
        **_of_feeder(place),
    )  # fmt: skip


def from_memory(place: Place, queue):
    """Makes the source of chunks that are written in the learner's own process."""
    from impala.replay.memory_source import Memory

    learner = place.config.learner
    return Memory(queue, batch_size=learner.batch_size // learner.num_learners, **_of_feeder(place))


def _of_feeder(place: Place) -> dict:
    config = place.config
    is_recorded = config.record_chunks and place.index == 0
    return dict(
        num_prefetched=config.num_prefetched_batches,
        device=place.device,
        num_updates=place.num_updates,
        max_lag=config.learner.max_lag if config.learner.num_learners == 1 else None,  # a group: see `LearnerNode`
        record=Recorder(place.run.folder / "chunks", config.record_chunks) if is_recorded else None,
    )
