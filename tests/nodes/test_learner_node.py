"""The learner's node, run in this process on chunks that are made here."""

import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala.agents import actor_critic
from impala.launching import beats, processes
from impala.learning import checkpoints, groups
from impala.nodes import checking, feeding, learner_group
from impala.nodes.learner_node import LearnerNode
from impala.nodes.run import Run
from impala.nodes.trainer_node import Trainers
from impala.replay.memory_source import Memory
from impala.replay.prioritised import PrioritisedWindows
from impala.replay.sources import Source, Tables
from impala.replay.windows import Windows
from impala.types import Origin, chunk_spec, zeros


@pytest.fixture
def make_node(tmp_path, monkeypatch):
    """Makes a node whose chunks end with an error after seven, which stands for every exception of its loop."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    config = config_lib.load("configs/catch.yaml", {"learner.batch_size": 2})

    def make(error):
        run, queue = Run(tmp_path, os.getpid(), time.monotonic(), 0), SimpleNamespace(fill=lambda: 0.0)
        spec = checking.check(config)
        queue.chunks = lambda: chunks_that_end_with(error, 7, chunk_spec(spec, config.learner.unroll_length))
        return LearnerNode(config, spec, run, make_source=lambda place: feeding.from_memory(place, queue))

    return make


def chunks_that_end_with(error, num_chunks, spec):
    for n in range(num_chunks):
        yield zeros(spec)._replace(origin=np.array(Origin(0, 0, 0, 0, n), np.int64))
    raise error


def test_whatever_ends_a_learner_its_last_whole_update_is_saved(make_node, tmp_path):
    node = make_node(RuntimeError("the table is gone"))
    with pytest.raises(RuntimeError, match="the table is gone"):
        node.run()
    assert node.learner.num_updates == 3
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 3
    kept = actor_critic.make_network(node._config, checking.check(node._config))
    optimizer = actor_critic.make_learner(node._config, kept).optimizer
    checkpoints.Checkpoints(tmp_path / "checkpoints", network=kept, optimizer=optimizer).restore()
    for mine, theirs in zip(kept.trainable_variables, node.learner.network.trainable_variables):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_table_that_is_told_to_end_before_its_learner_is_no_failure(make_node, tmp_path, seconds):
    """Who signals a whole group of processes (`timeout`, systemd) ends the table as well, at the same moment."""
    node = make_node(RuntimeError("CANCELLED"))
    get = node._source.get

    def signalled(timeout_seconds):
        try:
            return get(timeout_seconds)
        except RuntimeError:
            threading.Timer(seconds, node.stop.set).start() if seconds else node.stop.set()
            raise

    node._source.get = signalled
    node.run()
    assert node.stop.facts["status"] == 0
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 3


def test_an_update_that_fails_changes_no_weight(make_node):
    """What a checkpoint holds after an exception is the last whole update."""
    node = make_node(RuntimeError("over"))
    while not node.step():
        pass
    before = [variable.numpy() for variable in node._variables()]
    batch = node._next_batch()
    with pytest.raises(tf.errors.OpError):
        node._update(batch._replace(a_tm1=tf.fill(batch.a_tm1.shape, 7)))
    assert node.learner.num_updates == 1
    for variable, value in zip(node._variables(), before):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_the_first_batches_of_updates_that_are_not_finite_are_kept_and_ten_in_a_row_end_the_run(make_node, tmp_path, monkeypatch):
    node = make_node(RuntimeError("over"))
    while not node.step():
        pass
    batch = node._next_batch()
    wrong = batch._replace(r_t=tf.fill(batch.r_t.shape, np.float32(np.nan)))
    monkeypatch.setattr(node, "_next_batch", lambda: wrong)
    node.run()
    facts = node.stop.facts
    assert facts["ends_run"] and facts["status"] == 1 and facts["last_words"].startswith("10 updates in a row had a loss")
    kept = sorted((tmp_path / "not_finite/0").iterdir())
    assert [path.name for path in kept] == ["000000.npz", "000001.npz", "000002.npz"]
    with np.load(kept[0]) as arrays:
        assert np.isnan(arrays["r_t"]).all() and arrays["a_tm1"].shape == tuple(batch.a_tm1.shape)
    assert checkpoints.read_state(tmp_path / "checkpoints")["updates"] == 11, "what was learned before is saved"


@pytest.mark.parametrize("kind", [Memory, Tables, Trainers, Windows, PrioritisedWindows])
def test_every_source_has_all_that_is_asked_of_one(kind):
    names = {name for name in vars(Source) if not name.startswith("_")}
    assert "is_full" in names and not {name for name in names if not callable(getattr(kind, name, None))}


def test_a_batch_that_waits_for_the_peers_while_the_own_queue_is_full_is_dropped_and_counted(make_node, monkeypatch):
    """Else actors that wait for room here would bring the peers nothing, and all would wait for ever."""
    node = make_node(RuntimeError("over"))
    are_all_ready, now = [False], [0.0]
    node._group = SimpleNamespace(
        index=0, size=2, agree=lambda *, is_ready, wants_end, counts: (are_all_ready[0], False, list(counts))
    )
    monkeypatch.setattr(node._relief, "_clock", lambda: now[0])

    def is_kept(seconds, fill):
        now[0] = seconds
        monkeypatch.setattr(node._source, "fill", lambda: fill)
        assert node._next_batch() is None
        return node._held is not None

    assert is_kept(0, 1.0) and is_kept(9, 1.0) and is_kept(11, 0.9), "for its turn, as long as no actor waits"
    assert not is_kept(12, 1.0) and not is_kept(13, 1.0), "one after the other, until the peers have theirs, too"
    assert node._own_counts()["dropped_chunks"] == 2, "its share of two batches of two"
    are_all_ready[0] = True
    assert node._next_batch() is not None
    are_all_ready[0] = False
    node._held = object()
    assert is_kept(14, 1.0) and is_kept(23, 1.0) and not is_kept(25, 1.0), "the next wait is counted from its own begin"


def test_a_peer_that_is_lost_before_the_first_update_is_told_to_the_launcher(monkeypatch):
    """The launcher then waits for the cause, such as a lost host."""

    def total(arrays):
        raise ConnectionError("learner 1 has ended")

    def finish(*ending):
        raise SystemExit(ending)

    monkeypatch.delenv(beats.ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(processes, "finish", finish)
    pulse, group = beats.Pulse("learner/0", threading.Event()), groups.Group(0, 2, groups.MemoryAllReduce(total), is_mean=True)
    with pytest.raises(SystemExit) as end:
        learner_group.share(group, [tf.Variable([1.0])], {}, pulse)
    assert end.value.code[0] == processes.EXIT_TRY_AGAIN and "another learner ended" in end.value.code[1]
    assert pulse.facts["lost_peer"]
