"""A3C in lockstep and through real processes: staleness, barrier, shards; it resumes, learns, survives; what it refuses."""

import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, lockstep
from impala import config as config_lib
from impala.acting.remote import Refused
from impala.learning.server import Push
from impala.nodes import checking, exchanging, server_node, workers
from impala.nodes.run import Run
from tests.programs.running import (
    WHOLE_OR_RESUMED,
    ended,
    evaluated_and_exported,
    mean_staleness,
    node,
    restarts,
    rows,
    run,
    start,
    wait_for,
    wait_until_it_trains,
)

A3C = ["train", "--config", "configs/a3c_catch.yaml"]
ALONG_FIRST = {"previous_action", "previous_reward", "weights_version", "origin", "is_replayed"}  # [B, …]; others [T, B, …]
SMALL = {"actor.num_environments": 4, "actor.num_lanes": 1, "learner.batch_size": 4, "target_return": None}


def config(**overrides):
    return config_lib.load("configs/a3c_catch.yaml", SMALL | {k.replace("__", "."): v for k, v in overrides.items()})


def played(configuration, num_updates):
    training = lockstep.of(configuration)
    updates = [update for _, update in zip(range(num_updates), training.updates())]
    training.close()
    return training.weights().arrays, updates


@pytest.mark.parametrize("num_workers", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_a_gradient_is_as_many_updates_stale_as_there_are_other_workers(num_workers):
    _, updates = played(config(actor__num_actors=num_workers), 20)
    stale = [update.index - 1 - int(update.batch.weights_version.numpy().max()) for update in updates]
    assert stale == [min(index, num_workers - 1) for index in range(20)]


def test_two_workers_with_a_barrier_are_one_with_twice_the_environments():
    """The loss is a sum, so that the two gradients add up to that of all chunks."""
    two = config(actor__num_actors=2, server__barrier=True, learner__learning_rate_schedule="constant")
    training = lockstep.of(two)
    worker_batches, differentiate = [], {}
    for worker in training._workers:
        differentiate[worker.index] = worker.differentiate
        worker.differentiate = lambda batch, worker=worker: (worker_batches.append(batch), differentiate[worker.index](batch))[1]
    ours = [update for _, update in zip(range(10), training.updates())]
    training.close()
    assert ours[-1].index == 10 and training.frames == ours[-1].frames
    # The same chunks in one batch, by a learner that has them all.
    network = agents.of(two).make_network(two, training.spec)
    learner = agents.of(two).make_learner(two, network)
    for first, second in zip(worker_batches[::2], worker_batches[1::2]):
        both = type(first)(*(
            () if isinstance(a, tuple) else tf.concat([a, b], axis=0 if name in ALONG_FIRST else 1)
            for name, a, b in zip(first._fields, first, second)
        ))  # fmt: skip
        learner.update(both, learning_rate=two.learner.learning_rate, entropy_cost=two.loss.entropy_cost, epsilon=two.learner.epsilon)
    for one, other in zip(learner.weights().arrays, training.weights().arrays):
        np.testing.assert_allclose(one, other, atol=1e-6)
    assert learner.num_updates == 10


def test_a_gradient_is_the_sum_over_its_steps():
    """Every step twice, in environments that stand beside their likes, gives twice the gradient."""
    made = config(learner__max_grad_norm=1e6)
    worker = workers.make(made, checking.check(made), 0)
    worker.assign(0, 0, [v.numpy() for v in worker.variables], np.zeros(0))
    while (batch := worker.batch()) is None:
        worker.act()
    twice = type(batch)(*(
        () if isinstance(array, tuple) else tf.repeat(array, 2, axis=0 if name in ALONG_FIRST else 1)
        for name, array in zip(batch._fields, batch)
    ))  # fmt: skip
    once, doubled = (worker.differentiate(what).arrays for what in (batch, twice))
    assert max(np.abs(gradient).max() for gradient in once) > 1e-3
    for one, two in zip(once, doubled):
        np.testing.assert_allclose(two, 2 * one, rtol=1e-4, atol=1e-5)
    closed = []
    worker._environments = [SimpleNamespace(close=lambda: 1 / 0), *worker._environments, SimpleNamespace(close=lambda: closed.append(1))]
    worker.close()
    assert closed, "whatever another one raises"


def test_behind_a_terminal_the_return_is_0_as_in_the_papers_algorithm():
    """One worker's gradient is that of algorithm S3 of Mnih et al. 2016, written forward, of an unroll of 6 steps.

        R_i = r_i + γ r_{i+1} + … up to the terminal, or to the end of the unroll and γ^k V(s_{i+k}) from there
        Σ_i −log π(a_i|s_i) (R_i − V(s_i)) + (R_i − V(s_i))² − β H(π(·|s_i)),   R_i and the V of the advantage constant

    Environment 0 ends an episode with its third step, and its fourth leads across the reset; 1 ends one with its last;
    2 loses a life with its second, where nothing is reset.
    """
    made = config(learner__batch_size=3, actor__num_environments=3, learner__unroll_length=6, loss__baseline_cost=2.0,
                  loss__entropy_cost=0.05, learner__max_grad_norm=1e6)  # fmt: skip
    worker = workers.make(made, checking.check(made), 0)
    worker.assign(0, 0, [v.numpy() for v in worker.variables], np.zeros(0))
    while (batch := worker.batch()) is None:
        worker.act()
    random = np.random.default_rng(0)
    rewards = random.uniform(-1, 1, size=(6, 3)).astype(np.float32)
    discount, is_first = np.ones((6, 3), np.float32), np.zeros((7, 3), bool)
    discount[2, 0] = discount[5, 1] = discount[1, 2] = 0.0
    is_first[4, 0] = True
    observation = random.normal(size=batch.observation.shape).astype(np.float32)
    actions = random.integers(3, size=(6, 3)).astype(np.int32)
    batch = batch._replace(r_t=rewards, discount_t=discount, is_first=is_first, observation=observation, a_tm1=actions)

    def gradient(episodes):
        """Returns the textbook's: of each episode its environment, first and last step, and whether it ends there."""
        with tf.GradientTape() as tape:
            logits, values = worker.network(observation, is_first)[:2]
            log_pi, loss = tf.nn.log_softmax(logits), 0.0
            for lane, first, last, is_terminal in episodes:
                for i in range(first, last + 1):
                    bootstrap = 0.0 if is_terminal else float(values[last + 1, lane])
                    ahead = [*rewards[i : last + 1, lane], bootstrap]
                    error = sum(0.99**k * r for k, r in enumerate(ahead)) - values[i, lane]
                    loss += -log_pi[i, lane, actions[i, lane]] * tf.stop_gradient(error) + error**2
                    loss += 0.05 * tf.reduce_sum(tf.exp(log_pi[i, lane]) * log_pi[i, lane])
        return tape.gradient(loss, worker.variables)

    ours = worker.differentiate(batch).arrays
    episodes = [(0, 0, 2, True), (0, 4, 5, False), (1, 0, 5, True), (2, 0, 1, True), (2, 2, 5, False)]
    for one, other in zip(ours, gradient(episodes), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for index, episode in enumerate(episodes):
        others = [*episodes[:index], (*episode[:3], not episode[3]), *episodes[index + 1 :]]
        assert max(np.abs(one - other).max() for one, other in zip(ours, gradient(others))) > 0.01, "it matters"
    worker.close()


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """A run of one shard in shared memory; or the last row of one of two shards over RPC, resumed by that one."""
    folder = tmp_path_factory.mktemp("runs") / "a3c"
    return folder, *ended(request.param, folder, *A3C, first=["--server.transport", "rpc", "--server.num-shards", "2"])


def test_it_learns_catch_and_ends_by_itself(runs):
    folder, interrupted, _ = runs
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"])
    assert (last["repeated_gradients"], last["nonfinite_gradients"], last["stale_gradients"]) == ("0", "0", "0")
    since_it_was_resumed = int(last["updates"]) - int(interrupted["updates"])
    assert int(last["accepted_gradients"]) == since_it_was_resumed, "each is an update"


def test_it_is_evaluated_and_exported(runs, tmp_path):
    evaluated_and_exported(runs[0], tmp_path / "model", {"logits", "value"})


def test_its_staleness_is_that_of_two_workers(runs):
    """While both work, each update of one falls into exactly one gradient's time of the other, whatever their speeds."""
    folder, _, _ = runs
    assert mean_staleness(folder) == pytest.approx(1.0, abs=0.1)
    assert {row["staleness_expected"] for row in rows(folder)} <= {"", "1"}
    busy = [float(row["server_busy_fraction"]) for row in rows(folder)]
    assert all(0.0 <= share <= 1.0 for share in busy) and max(busy) > 0.0


@pytest.mark.soak
def test_it_learns_catch_with_an_lstm(tmp_path):
    """Its core's state goes on from unroll to unroll in each worker."""
    result = run(*A3C, "--run", tmp_path / "run", "--network.core", "lstm", "--network.core-size", 32, "--target-return", 0.6)
    assert result.returncode == 0 and float(rows(tmp_path / "run")[-1]["return_mean"]) >= 0.6, result.stderr


@pytest.mark.soak
def test_a_worker_killed_while_it_works_harms_nobody_and_comes_back(tmp_path):
    folder = tmp_path / "run"
    process = start(*A3C, "--run", folder, "--target-return", 2, "--total-frames", 10**9)
    wait_until_it_trains(folder)
    os.kill(node(process, "actor/1").pid, signal.SIGKILL)
    wait_for(lambda: restarts(folder), 60, "it is started again")
    before = int(rows(folder)[-1]["updates"])
    wait_for(lambda: int(rows(folder)[-1]["updates"]) > before + 50, 60, "training goes on")
    played = len(_episodes(folder))
    wait_for(lambda: {row["actor"] for row in _episodes(folder)[played:]} == {"0", "1"}, 60, "both workers play")
    process.terminate()
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert rows(folder)[-1]["nonfinite_gradients"] == "0"
    assert [row["node"] for row in restarts(folder)] == ["actor/1"]


def _episodes(folder):
    from impala.monitoring.logs import read_csv

    return read_csv(folder / "episodes.csv")


@pytest.fixture
def shard(tmp_path, monkeypatch):
    import threading

    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    made = config()
    node = server_node.ServerNode(made, checking.check(made), Run(tmp_path, os.getpid(), time.monotonic(), 0))
    facts = exchanging.Facts(exchanging.configuration_of(made), exchanging.parameters_of(node.network.trainable_variables), ["num_transitions"], ["weights_version", "oldest_version", "is_replayed", "task", "num_valid"], 4)
    return node, facts


def test_a_worker_with_another_network_or_configuration_is_refused_by_name(shard):
    node, facts = shard
    (name, shape), *others = facts.parameters
    for changed, words in (
        (facts._replace(configuration=facts.configuration | {"loss.discount": "0.5"}), r"worker 1 has loss.discount=0.5; expected 0.99, as the server has"),
        (facts._replace(parameters=[(name, (shape[0] + 1, *shape[1:])), *others]), r"worker 1 has parameter .* of shape \[65, 3\]; expected .* of \[64, 3\]"),
        (facts._replace(parameters=others), "worker 1 has parameter"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=words):
            node.join(1, tuple(changed))
    version, frames, arrays, statistics, settings = node.join(1, tuple(facts))
    assert settings.tolist() == [0, 0, 1, 1, 1], "the number of θ⁻, that of takeovers, and factors of a population"
    assert (version, frames) == (0, 0) and [a.shape for a in arrays] == [tuple(shape) for _, shape in facts.parameters]


def test_room_for_a_checkpoint_counts_the_optimizer_of_each_worker(tmp_path, monkeypatch):
    import threading

    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    from impala.learning.checkpoints import Checkpoints

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    made = config(server__shared_optimizer=False, actor__num_actors=40)
    node = server_node.ServerNode(made, checking.check(made), Run(tmp_path, os.getpid(), time.monotonic(), 0))
    saved = Checkpoints(tmp_path / "other", **node._trackables).save(1, {})
    size = sum(file.stat().st_size for file in saved.glob("tensors*"))
    assert 200_000 < size < node.head._checkpoint_bytes() < 2 * size


@pytest.mark.parametrize("key, value", [("total_frames", 70), ("actor__num_actors", 3), ("loss__discount", 0.5)])
def test_a_worker_that_is_refused_says_why_in_a_line(shard, tmp_path, key, value):
    from impala.launching.processes import UsageError
    from impala.launching.rpc.client import Client
    from impala.launching.rpc.server import Server
    from impala.nodes.worker_node import WorkerNode

    node, _ = shard
    server = Server()
    server.Bind("join", node.join)
    server.Start()
    other = config(**{key: value})
    worker = WorkerNode(other, checking.check(other), Run(tmp_path, os.getpid(), time.monotonic(), 0), 1, servers=[Client(server.address)])
    with pytest.raises(UsageError, match=rf"^worker 1 has {key.replace('__', '.')}={value}; expected [\d.]+, as the server has$"):
        worker.run()
    server.Stop()


def test_every_shard_ends_at_the_runs_frames_or_when_it_is_told(tmp_path, monkeypatch):
    import threading

    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    monkeypatch.setattr(lp, "stop_event", threading.Event)
    made = config(server__num_shards=2, total_frames=40)
    node = server_node.ShardNode(made, checking.check(made), Run(tmp_path, os.getpid(), time.monotonic(), 0), 1)
    arrays = [variable.numpy() for variable in node.network.trainable_variables]
    for told, expected in ((False, [0, 0, 4]), (True, [0, 4])):
        node._begun.clear()
        node.begin(0, 0, arrays, [])
        verdicts = []
        for number in range(len(expected)):
            if told and number == 1:
                node.end()
            verdicts.append(int(node.server.push(Push(0, 0, number, number, [0 * array for array in arrays], 20))))
        assert verdicts == expected, "accepted, then ended"


def test_a_push_of_a_stranger_or_of_other_arrays_is_refused(shard):
    node, facts = shard
    _, _, arrays, statistics, _ = node.join(0, tuple(facts))
    assert statistics.size == 0
    sent = [np.array([0, 20, 1]), statistics, np.full(1, 20, np.float32), np.zeros((5, 4)), *(np.zeros_like(array) for array in arrays)]
    with pytest.raises(Refused, match="worker 3 has not joined"):
        node.push((3, 0), 1, *sent)
    for wrong in (sent[:-1], [*sent[:-1], sent[-1].astype(np.float64)], [*sent[:-1], sent[-1][None]]):
        with pytest.raises(Refused, match="worker 0: arrays .*; expected those of its shard"):
            node.push((0, 0), 1, *wrong)
    answer, _, _, *parameters = node.push((0, 0), 1, *sent)
    assert answer.tolist() == [0, 1, 20] and len(parameters) == len(arrays)
    answer, *_ = node.push((0, 0), 1, *sent)
    assert answer.tolist() == [2, 1, 20], "repeated"
    assert node.frames() == node.server.frames == 20


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.batch_size": 16}, "learner.batch_size=16: with program=a3c a worker's gradient is of one chunk of each of its environments; expected actor.num_environments, 32"),
        ({"server.max_staleness": -1}, "server.max_staleness: got -1; input should be greater than or equal to 0"),
        ({"server.max_staleness": 1, "server.barrier": True}, "server.max_staleness=1: with server.barrier none is stale; expected null"),
        ({"server.num_late": 1}, "server.num_late=1; expected 0 without a barrier"),
        ({"server.shared_optimizer": False, "server.barrier": True}, "server.shared_optimizer=False: with server.barrier an update is of all workers' gradients; expected true"),
        ({"loss.correction": "laser"}, "loss.correction=laser: not with program=a3c, whose workers send gradients: no trajectory is replayed"),
        ({"loss.correction": "clear"}, "loss.correction=clear: not with program=a3c"),
        ({"loss.correction": "impact"}, "loss.correction=impact: not with program=a3c"),
        ({"loss.popart": True}, "loss.popart=True: not with program=a3c"),
        ({"learner.num_learners": 2}, "learner.num_learners=2: not with program=a3c; expected 1"),
        ({"replay.fraction": 0.5}, "replay.fraction=0.5: not with program=a3c; expected 0.0"),
        ({"loss.correction": "weighted_is", "server.barrier": True}, "server.barrier=True: weighted_is compares the chunks of a whole batch, of which each of the 2 workers has a share; expected another loss.correction, or 1 worker"),
        ({"program": "impala", "server.barrier": True}, "server.barrier=True: not with program=impala; expected False"),
        ({"agent.name": "q_learning"}, "agent.name='q_learning': not with program=a3c; expected actor_critic"),
    ],
)
def test_what_a3c_cannot_do_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/a3c_catch.yaml", overrides)
    assert words in str(caught.value)


def test_more_shards_than_tensors_are_refused_before_anything_starts(tmp_path):
    result = run(*A3C, "--run", tmp_path / "run", "--server.num-shards", 9)
    assert result.returncode == 2
    assert result.stderr == "server.num_shards=9: more than the 8 tensors of the network; expected at most 8\n"
    assert not (tmp_path / "run").exists()
