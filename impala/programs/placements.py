"""Where each program decides and where it writes, rebuilt in one process for `lockstep`.

A placement makes an actor as `parts.make_actor` does, for `outputs` whose weights have a `version`, and also returns a
function that ends its threads.
"""

from collections.abc import Callable

import numpy as np

from impala.acting import policies
from impala.nodes.parts import make_actor, make_policy


def impala(environment, outputs, version: Callable[[], int], **parts):
    """The actor has both policy and writer (programs/impala.py)."""
    return make_actor(environment, outputs, **parts), lambda: None


def ga3c(environment, outputs, version: Callable[[], int], **parts):
    """The network is asked through a prediction queue with one predictor (programs/ga3c.py)."""
    from impala.acting.predictors import Predictors

    outputs = policies.with_version(outputs, version)
    network = Predictors(outputs, max_environments=environment.num_environments, num_threads=1, queue_size=1)
    return make_actor(environment, network, version_per_step=True, **parts), network.crew.close


def seed(
    environment, outputs, version: Callable[[], int], *, seed: int, unroll_length: int, origin, sink, sync_weights,
    behaviour,
):  # fmt: skip
    """The network is asked through a gatherer; a lane has policy and writer (programs/seed.py)."""
    from impala.acting import actors, chunks, inference, lanes, remote

    spec, n = environment.spec, environment.num_environments
    gatherer = inference.Gatherer(policies.with_version(outputs, version), max_environments=n, timeout_seconds=60.0)
    policy = make_policy(gatherer, spec, n, seed=seed, behaviour=behaviour)
    writer = chunks.UnrollWriter(
        spec, n, unroll_length=unroll_length, origin=origin, sink=sink, behaviour=behaviour,
        version_per_step=True,
    )  # fmt: skip
    name = remote.LaneId(origin.actor, origin.environment, origin.incarnation, origin.task)
    lane = lanes.Lane(name, policy, writer, n, 0, unroll_length)
    actor = actors.Actor(
        environment, _InLane(lane), remote.NoWriter(), sync_weights, unroll_length=unroll_length, origin=origin
    )
    return actor, lambda: None


OF_PROGRAM = {"impala": impala, "seed": seed, "ga3c": ga3c}


class _InLane:
    """Stands in for a `remote.Client`, with the lane in the same process."""

    window, core_state, decides_elsewhere = np.zeros(0), (), True

    def __init__(self, lane):
        self._lane, self.decide = lane, lane.decide

    def observe(self, step) -> None:
        self._lane.observe(step)
