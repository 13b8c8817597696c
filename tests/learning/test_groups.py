"""K learners that update together, each in a process of its own, against one learner with all chunks."""

import re
import signal
import socket
import subprocess
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala.learning import groups
from impala.losses import q_learning
from impala.networks import q_values
from impala.replay import memory, windows
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, chunk_spec
from tests import warm
from tests.learning import group_worker

ONE_MACHINE, SEVERAL = ("localhost",) * 4, ("127.0.0.1", "localhost", "localhost")  # as far as their names tell


def free_addresses(count, hosts=ONE_MACHINE):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    addresses = [f"{host}:{each.getsockname()[1]}" for host, each in zip(hosts, sockets)]
    for each in sockets:
        each.close()
    return addresses


def run_group(num_learners, mode, folder, hosts):
    """Returns the processes and the paths of what they write."""
    addresses, paths = free_addresses(num_learners, hosts), [folder / f"{index}.npz" for index in range(num_learners)]
    processes = [
        warm.Popen(
            ["-m", "tests.learning.group_worker", str(index), ",".join(addresses), mode, str(path)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index, path in enumerate(paths)
    ]  # fmt: skip
    return processes, paths


@pytest.mark.parametrize("hosts", [pytest.param(ONE_MACHINE, marks=pytest.mark.soak), SEVERAL])
@pytest.mark.parametrize("num_learners, mode", [pytest.param(2, "sum", marks=pytest.mark.soak), (3, "mean")])
def test_k_learners_are_one(tmp_path, num_learners, mode, hosts):
    """Same weights after 15 updates on the same batches, same metrics, and a bad share skips the update for all."""
    processes, paths = run_group(num_learners, mode, tmp_path, hosts)
    alone = group_worker.make_learner(mode, "adam" if mode == "sum" else "rmsprop")
    expected = group_worker.train(alone, poisoned_share=True)
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-2000:]
    results = [dict(np.load(path)) for path in paths]
    for result in results:
        assert result["weights"].tobytes() == results[0]["weights"].tobytes(), "all learners hold the same, bit for bit"
        np.testing.assert_allclose(result["weights"], expected["weights"], atol=1e-5)
        assert not result["applied"][7] and result["applied"].sum() == group_worker.NUM_UPDATES - 1
        np.testing.assert_array_equal(result["versions"], expected["versions"])
        np.testing.assert_array_equal(result["is_replayed"], expected["is_replayed"])
        np.testing.assert_array_equal(result["metrics"], results[0]["metrics"])
    names = sorted(alone.update(group_worker.batch_of(0), 0.0).metrics)
    # Ratios and roots are means over learners, not over the whole batch, and a fraction of chunks is weighted with rows.
    not_compared = (
        "effective_sample_size", "advantage_std", "explained_variance", "value_correction", "replayed_fraction",
    )  # fmt: skip
    compared = [i for i, name in enumerate(names) if name not in not_compared]
    metrics, metrics_alone = (m[expected["applied"]][:, compared] for m in (results[0]["metrics"], expected["metrics"]))
    np.testing.assert_allclose(metrics, metrics_alone, rtol=1e-3, atol=1e-4)


def test_a_missing_peer_is_named_and_a_wait_can_be_ended(tmp_path):
    """TensorFlow alone would wait for an hour, and hear no signal."""
    waiting, ended = ([*free_addresses(2)] for _ in range(2))
    commands = [
        ["-m", "tests.learning.group_worker", "0", ",".join(addresses), "wait", "-"]
        for addresses in (waiting, ended)
    ]
    patient, told = (
        warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    )
    assert told.stdout.readline() == "WAITING\n"
    time.sleep(2.0)
    told.send_signal(signal.SIGTERM)
    started = time.monotonic()
    told.communicate(timeout=60)
    assert told.returncode == -signal.SIGTERM and time.monotonic() - started < 5.0, "after 6 s it would have been 75"
    _, errors = patient.communicate(timeout=60)
    assert patient.returncode == 75
    assert f"the learners did not meet: no answer from 1 at {waiting[1]} within 6 s; start again" in errors


@pytest.mark.parametrize("mode, hosts, limit", [
    pytest.param("die", ONE_MACHINE, 2.0, marks=pytest.mark.soak), pytest.param("die", SEVERAL, 2.0, marks=pytest.mark.soak),
    pytest.param("freeze", ONE_MACHINE, 15.0, marks=pytest.mark.soak), ("freeze", SEVERAL, 15.0),
])  # fmt: skip
def test_a_frozen_or_dead_peer_is_noticed_in_seconds(tmp_path, mode, hosts, limit):
    """Before that, what the first learner restored reaches the others, and they agree on whose turn it is."""
    (first, second), _ = run_group(2, mode, tmp_path, hosts)
    output, errors = first.communicate(timeout=120)
    second.send_signal(signal.SIGKILL)
    second.communicate()
    lost = re.search(r"LOST ([\d.]+) another learner ended or froze", output)
    assert lost and float(lost[1]) < limit, (mode, output, errors[-2000:])
    assert "DIFFER learner 0 holds other weights than its peers" in output
    assert f"NUMBERS [5.0, {2.0**40}]" in output
    assert "AGREED (True, False, []) (False, True, [1.0, 20.0])" in output


class InTwoThreads:
    """A sum over two threads, for `groups.MemoryAllReduce`."""

    def __init__(self):
        self._barrier, self._shares = threading.Barrier(2, timeout=60), {}

    def of(self, index):
        def total(arrays):
            self._shares[index] = [np.asarray(array) for array in arrays]
            self._barrier.wait()
            sums = [a + b for a, b in zip(self._shares[0], self._shares[1])]
            self._barrier.wait()
            return sums

        return groups.MemoryAllReduce(total)


def computed(loss, observation, target, importance):
    """Returns what a learner makes of a batch: gradient, metrics and columns. Q is linear, and the first action taken."""
    weights, count = tf.Variable(tf.ones([3, 2])), len(observation)
    batch = Chunk(*[()] * len(Chunk._fields))._replace(
        a_tm1=tf.zeros([1, count], tf.int32), r_t=tf.constant(target)[None], discount_t=tf.ones([1, count]),
        importance=tf.constant(importance),
    )  # fmt: skip
    with tf.GradientTape() as tape:
        q = tf.constant(observation) @ weights
        value, metrics = loss(q_values.Windows(q, q, q, tf.ones([count], tf.int32)), batch)
    columns = tf.cast(metrics.pop("priority")[None], tf.float64)
    return tape.gradient(value, [weights]), metrics, columns


def combined(shares, *, is_mean):
    """Returns what each of two learners gets for the share that it `computed`."""
    sums, found = InTwoThreads(), {}

    def learn(index):
        group = groups.Group(index, 2, sums.of(index), is_mean=is_mean)
        found[index] = group.combine(*shares[index])

    threads = [threading.Thread(target=learn, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return [found[index] for index in range(2)]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_weights_of_importance_are_shares_of_the_largest_of_all_learners(reduction):
    """Q-learning on eight windows drawn by priority: two learners with four each, and one with all of them."""
    random, importance = np.random.default_rng(0), np.float32([0.5, 1, 2, 0.25, 3, 1, 4, 0.5])
    observation, target = random.normal(size=(8, 3)).astype(np.float32), random.normal(size=8).astype(np.float32)
    loss = q_learning.q_learning(error=q_learning.squared, discount=0.0, reward_clipping="none", reduction=reduction)
    columns_of = (observation, target, importance)
    shares = [computed(loss, *(column[rows] for column in columns_of)) for rows in (slice(0, 4), slice(4, 8))]
    (expected,), metrics, columns = computed(loss, *columns_of)
    for gradients, of_both, of_all in combined(shares, is_mean=reduction == "mean"):
        np.testing.assert_allclose(gradients[0], expected, rtol=1e-5)
        assert of_both["importance_max"] == metrics["importance_max"] == 4.0
        assert float(of_both["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-5)
        np.testing.assert_allclose(of_all, columns, rtol=1e-6)


SPEC = EnvironmentSpec("numbers", ArraySpec((3,), np.float32), Discrete(2))


def table_of(observation, reward, priority):
    """A table of windows of one step."""
    lengths = windows.lengths(chunk_spec(SPEC, 1, kept={})._replace(previous_action=(), previous_reward=()))
    table = memory.MemoryWindows(100, 1, lengths=lengths, priority_exponent=0.6)
    row = dict(is_first=np.bool_(False), a_tm1=np.int32(0), discount_t=np.float32(1), weights_version=np.int64(0),
               origin=np.zeros(6, np.int64))  # fmt: skip
    for x, r, p in zip(observation, reward, priority):
        table.write([row | dict(observation=x, r_t=np.float32(0))])
        table.write([row | dict(observation=x, r_t=r)])
        table.end_windows(np.array([True]), np.array([p]))
    return table


def drawn(table, keys, exponent=0.4):
    """Returns observation, reward and importance of windows with these keys, as if the table had drawn them."""
    chance = SimpleNamespace(choice=lambda count, size, p: np.array(keys))
    batch = windows.to_chunk(table.sample(len(keys), chance), importance_exponent=exponent)
    return batch.observation[0], batch.r_t[0], batch.importance


def test_learners_with_a_table_each_are_one_learner_with_all_that_these_hold():
    """Half of it in each of two equal tables: a window is drawn twice as likely from one of half the size."""
    random = np.random.default_rng(1)
    observation, reward = random.normal(size=(4, 3)).astype(np.float32), random.normal(size=4).astype(np.float32)
    content = observation, reward, np.array([0.1, 1.0, 3.0, 0.5])
    loss = q_learning.q_learning(error=q_learning.squared, discount=0.0, reward_clipping="none")
    of_each, of_all = ([0, 1, 1, 3], [2, 2, 0, 3]), [0, 1, 1, 3, 4 + 2, 4 + 2, 4 + 0, 4 + 3]
    shares = [computed(loss, *drawn(table_of(*content), keys)) for keys in of_each]
    everything = table_of(*(np.concatenate([column, column]) for column in content))
    (expected,), metrics, columns = computed(loss, *drawn(everything, of_all))
    for gradients, of_both, priorities in combined(shares, is_mean=False):
        np.testing.assert_allclose(gradients[0], expected, rtol=1e-5)
        np.testing.assert_allclose(of_both["importance_max"], metrics["importance_max"], rtol=1e-6)
        np.testing.assert_allclose(priorities, columns, rtol=1e-6)
    (unweighted,), *_ = computed(loss, *drawn(everything, of_all, exponent=0.0))
    assert np.abs(unweighted - expected).max() > 0.1, "the weights make a difference"
