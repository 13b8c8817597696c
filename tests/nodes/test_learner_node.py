"""The learner's node, run in this process on chunks that are made here."""

import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala.agents import actor_critic
from impala.learning import checkpoints
from impala.nodes import parts
from impala.nodes.learner_node import LearnerNode
from impala.nodes.run import Run
from impala.types import Origin, chunk_spec, zeros


@pytest.fixture
def node(tmp_path, monkeypatch):
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    config = config_lib.load("configs/catch.yaml", {"learner.batch_size": 2})
    return LearnerNode(config, parts.check(config), Run(tmp_path, os.getpid(), time.monotonic(), 0), table=None)


def chunks_that_end_with(node, error, num_chunks):
    chunk = zeros(chunk_spec(node._spec, node._config.learner.unroll_length))
    for n in range(num_chunks):
        yield chunk._replace(origin=np.array(Origin(0, 0, 0, 0, n), np.int64))
    raise error


def test_whatever_ends_a_learner_its_last_whole_update_is_saved(node, tmp_path):
    """A feeder that fails stands for every exception of the loop."""
    node._make_feeder = lambda: node._feeder_of(
        lambda: chunks_that_end_with(node, RuntimeError("the table is gone"), 7), batch_size=2
    )
    with pytest.raises(RuntimeError, match="the table is gone"):
        node.run()
    assert node._learner.num_updates == 3
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 3
    kept = actor_critic.make_network(node._config, node._spec)
    optimizer = actor_critic.make_learner(node._config, kept).optimizer
    checkpoints.Checkpoints(tmp_path / "checkpoints", network=kept, optimizer=optimizer).restore()
    for mine, theirs in zip(kept.trainable_variables, node._learner.network.trainable_variables):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_an_update_that_fails_changes_no_weight(node):
    """What a checkpoint holds after an exception is the last whole update."""
    node._make_feeder = lambda: node._feeder_of(
        lambda: chunks_that_end_with(node, RuntimeError("over"), 7), batch_size=2
    )
    while not node.step():
        pass
    before = [variable.numpy() for variable in node._variables()]
    batch = node._next_batch()
    with pytest.raises(tf.errors.OpError):
        node._update(batch._replace(a_tm1=tf.fill(batch.a_tm1.shape, 7)))
    assert node._learner.num_updates == 1
    for variable, value in zip(node._variables(), before):
        np.testing.assert_array_equal(variable.numpy(), value)
