"""DPPO in lockstep and through real processes: the barrier, what workers share; it resumes and learns; what it refuses."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, cli, distributions, lockstep, networks
from impala import config as config_lib
from impala.agents import shared
from impala.learning import checkpoints
from impala.nodes import checking, workers, working
from impala.replay import datasets
from impala.types import zeros
from tests.programs.running import (
    WHOLE_OR_RESUMED,
    ended,
    interrupted_and_resumed,
    node,
    restarts,
    rows,
    run,
    wait_for,
)

DPPO = ["train", "--config", "configs/dppo_catch.yaml"]
SMALL = {"actor.num_environments": 4, "actor.num_lanes": 1, "learner.batch_size": 4, "learner.unroll_length": 12,
         "agent.num_minibatches": 1, "agent.num_epochs": 3, "target_return": None, "learner.learning_rate_schedule": "constant"}  # fmt: skip
SHARED = ["--loss.correction", "penalty", "--agent.num-value-epochs", "2", "--agent.normalise-observations", "true", "--agent.scale-rewards", "true"]


def config(**overrides):
    return config_lib.load("configs/dppo_catch.yaml", SMALL | {k.replace("__", "."): v for k, v in overrides.items()})


@pytest.mark.parametrize("name, word", [
    ("catch", "clip"), pytest.param("catch", "penalty", marks=pytest.mark.soak), ("pendulum", "penalty"),
])  # fmt: skip
def test_w_workers_are_one_with_all_their_transitions(name, word):
    """Whole passes, so that a minibatch is all that a worker has: the mean of gradients is the gradient of the mean."""
    made = config_lib.load(f"configs/dppo_{name}.yaml", SMALL | {
        "actor.num_actors": 3, "agent.normalise_advantages": "none", "agent.normalise_observations": False,
        "agent.scale_rewards": False, "loss.correction": word, "learner.max_grad_norm": 1e6,
    })  # fmt: skip
    training = lockstep.of(made)
    agent = agents.of(made)
    network = agent.make_network(made, training.spec)
    alone = agent.make_differentiator(made, network)
    optimizer = shared.make_optimizer(made, network.trainable_variables)
    optimizer.learning_rate.assign(made.learner.learning_rate)
    batches, originals = [], {worker.index: worker.differentiate for worker in training._workers}
    for worker in training._workers:
        worker.differentiate = lambda batch, worker=worker: (batches.append(batch), originals[worker.index](batch))[1]
    updates = list(zip(range(9), training.updates()))
    training.close()
    together = {"previous_action", "previous_reward", "weights_version", "origin", "is_replayed"}
    valid = []
    for index in range(9):
        of_round = batches[3 * index : 3 * index + 3]
        valid.append([batch.valid_t.sum() for batch in of_round])
        # Each worker's gradient is a mean over its own valid transitions; Pendulum's 108 steps have no reset among them.
        weights = [batch.valid_t if name == "pendulum" else batch.valid_t / batch.valid_t.sum() / 3 for batch in of_round]
        one = type(of_round[0])(**{
            field: () if isinstance(parts[0], tuple) else parts[0] if field in ("trains", "beta")
            else np.concatenate(parts, axis=0 if field in together else 1)
            for field, parts in ((field, [getattr(batch, field) for batch in of_round]) for field in of_round[0]._fields)
        })  # fmt: skip
        one = one._replace(valid_t=np.concatenate(weights, axis=1))
        gradient = alone(one, surrogate_clip=made.loss.surrogate_clip, entropy_cost=made.loss.entropy_cost)
        optimizer.apply_gradients(zip([tf.constant(array) for array in gradient.arrays], network.trainable_variables))
    assert np.all(np.array(valid) == 48) if name == "pendulum" else np.any(np.array(valid) < 48)
    for one, other in zip(training.weights().arrays, network.trainable_variables):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-6)
    assert updates[-1][1].index == 9


def test_beta_and_moments_are_those_of_all_workers_together():
    made = config(actor__num_actors=2, loss__correction="penalty", agent__num_value_epochs=1, agent__normalise_observations=True,
                  agent__scale_rewards=True, learner__learning_rate=0.05)  # fmt: skip
    training = lockstep.of(made)
    seen, betas = [], []
    batches = [[], []]
    for worker in training._workers:
        inner = worker._batches.__call__

        def spied(unroll, worker=worker, inner=inner, **how):
            batches[worker.index].append(np.asarray(unroll.observation)[:12].reshape(48, -1))
            return inner(unroll, **how)

        worker._batches = _Spy(worker._batches, spied)
    for _, update in zip(range(12), training.updates()):
        betas.append(float(update.batch.beta))
        seen.append(update.batch.trains.tolist())
    everything = np.concatenate([x for of_worker in batches for x in of_worker]).astype(float)
    statistics = agents.of(made).make_statistics(made, training.spec)
    state = training._server.statistics
    mean, deviation = statistics.observation_moments(state)
    np.testing.assert_allclose(mean, everything.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(deviation, np.sqrt(everything.var(axis=0) + 1e-8), rtol=1e-9)
    assert seen == 3 * [[1, 0], [1, 0], [1, 0], [0, 1]]
    assert betas[:4] == [1.0] * 4 and betas[4] == 2.0, "such steps move the policy far: β doubles, once an iteration"
    for worker in training._workers:
        ours = [variable.numpy() for variable in worker.network.statistics]
        assert ours[0].shape == training.spec.observation.shape and np.abs(ours[0]).sum() > 0
    training.close()


def test_without_value_epochs_beta_is_adapted_by_the_next_iterations_first_gradient_and_used_from_its_second_on():
    made = config(actor__num_actors=2, loss__correction="penalty", learner__learning_rate=0.05)
    training = lockstep.of(made)
    n = training._workers[0]._batches.num_batches
    betas = [float(update.batch.beta) for _, update in zip(range(2 * n), training.updates())]
    assert betas == [1.0] * (n + 1) + [2.0] * (n - 1)
    training.close()


def test_an_update_waits_for_all_workers_but_those_that_may_be_late():
    made = config(actor__num_actors=3, server__num_late=1)
    assert working.rules_of(made).num_awaited == 2 and working.rules_of(config(actor__num_actors=3)).num_awaited == 3


CLIPPED = dict(loss__surrogate_clip=0.4, total_frames=1000, learner__learning_rate_schedule="linear", loss__entropy_cost=0.0, learner__max_grad_norm=1e6)


@pytest.mark.parametrize("word, expected", [("linear", [0.4, 0.2, 0.0]), ("constant", [0.4, 0.4, 0.4])])
def test_the_clip_falls_with_the_learning_rate_if_it_is_to(word, expected):
    made = config(agent__clip_schedule=word, **CLIPPED)
    schedules = agents.of(made).make_schedules(made)
    assert [schedules(frames)["surrogate_clip"] for frames in (0, 500, 1000)] == pytest.approx(expected)
    assert [schedules(frames)["learning_rate"] for frames in (0, 500, 1000)] == pytest.approx([1e-3, 5e-4, 0.0])


def test_a_workers_gradient_is_of_the_clip_at_the_frames_of_its_parameters():
    """All 48 transitions have A = 1; half of them are 1.3 times as likely as when they were played, half 1.05 times.

    The first are beyond 1 + ε from 250 frames on and the others from 875 on: they have no gradient.
    """
    made = config(agent__clip_schedule="linear", **CLIPPED)
    worker = workers.make(made, checking.check(made), 0)
    arrays, state = [v.numpy() for v in worker.variables], worker._batches.newest
    worker.assign(0, 0, arrays, state)
    while (batch := worker.batch()) is None:
        worker.act()
    is_taken, now = tf.one_hot(batch.a_tm1, 3), tf.nn.softmax(worker.network(batch.observation, batch.is_first).logits)
    taken_now = tf.reduce_sum(is_taken * now, axis=-1)
    taken_then = taken_now / np.where(np.arange(48) % 2, np.float32(1.3), np.float32(1.05))
    others_then = now * ((1 - taken_then) / (1 - taken_now))[..., None]
    then = tf.math.log(tf.where(is_taken > 0, taken_then[..., None], others_then)).numpy()
    ones = np.ones((1, 48), np.float32)
    batch = batch._replace(logits_tm1=then, advantage_tm1=ones, valid_t=ones, trains=np.array([1, 0], np.float32))
    norms = []
    for frames, clip in ((0, 0.4), (500, 0.2), (900, 0.04), (1000, 0.0)):
        worker.assign(0, frames, arrays, state)
        with tf.GradientTape() as tape:
            log_pi = tf.nn.log_softmax(worker.network(batch.observation, batch.is_first).logits)
            ratio = tf.exp(tf.reduce_sum(is_taken * (log_pi - then), axis=-1))
            loss = -tf.reduce_mean(tf.minimum(ratio, tf.clip_by_value(ratio, 1 - clip, 1 + clip)))
        expected = tape.gradient(loss, worker.variables, unconnected_gradients="zero")
        for one, other in zip(worker.differentiate(batch).arrays, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
        norms.append(float(tf.linalg.global_norm(expected)))
    worker.close()
    assert norms[0] > 1.2 * norms[1] > 0.1 and norms[2:] == [0.0, 0.0]


PRESETS = {
    "ppo_paper": dict(  # Schulman et al. 2017, table 5: α falls from 1 to 0 over 40 M frames
        torso="shallow", num_epochs=3, clips=[0.1, 0.05, 0.0], normalises=False,
        # c1 = 1 of (V − v)², which is 3² here, and c2 = 0.01 of the entropy.
        loss=1.0 * 9.0 - 0.01 * np.log(6), loss_of_values_that_move=1.0 * 2.5**2 - 0.01 * np.log(6),
    ),
    "ppo_baselines": dict(  # openai/baselines, ppo2/defaults.py and model.py
        torso="nature", num_epochs=4, clips=[0.1, 0.1, 0.1], normalises=True, epsilon=1e-5,
        # vf_coef = 0.5 of ½ (V − v)²; values that moved by 0.5 count as if by 0.1.
        loss=0.5 * 4.5 - 0.01 * np.log(6), loss_of_values_that_move=0.5 * 0.5 * 2.9**2 - 0.01 * np.log(6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_plain_ppo_are_what_was_published(name):
    """What worker and server make of the files, not what stands in them; of 8 actors that play 128 steps."""
    expected, made = PRESETS[name], config_lib.load(f"configs/{name}.yaml")
    agent, spec, num_actors = agents.of(made), checking.check(made), made.actor.num_actors * made.actor.num_environments
    chunk = zeros(agent.make_chunk_spec(made, spec))
    assert (num_actors, made.learner.batch_size, len(chunk.r_t)) == (8, 8, 128)
    assert working.rules_of(made).num_awaited == 1, "one worker"

    # Minibatches of 32 × 8, of all transitions in each pass. With r = 1 and V = 2 throughout, δ = 1 + 0.99 · 2 − 2.
    played = datasets.stack([chunk._replace(r_t=1.0 + chunk.r_t, discount_t=1.0 + chunk.discount_t, v_behaviour_tm1=2.0 + chunk.v_behaviour_tm1)] * 8)
    network = lambda frames, is_first: networks.Outputs(tf.zeros([1, 8, 6]), tf.fill([1, 8], 2.0))  # noqa: E731
    batches = list(shared.make_batches(made, network, spec, 0, 0)(played))
    assert [batch.a_tm1.shape for batch in batches] == expected["num_epochs"] * 4 * [(1, 256)]
    gae = [(1 + 0.99 * 2 - 2) * sum((0.99 * 0.95) ** k for k in range(1 + n)) for n in range(128)]
    of_pass = np.concatenate([batch.target_tm1[0] for batch in batches[:4]])
    np.testing.assert_allclose(np.sort(of_pass), np.repeat(2 + np.array(gae), 8), rtol=1e-5)
    for batch in batches:
        advantage = batch.target_tm1 - 2
        if expected["normalises"]:
            advantage = (advantage - advantage.mean()) / advantage.std()
        np.testing.assert_allclose(batch.advantage_tm1, advantage, atol=1e-4)
        assert batch.trains.tolist() == [1, 1]

    schedules, frames = agent.make_schedules(made), (0, 20_000_000, 40_000_000)
    assert [schedules(f)["learning_rate"] for f in frames] == pytest.approx([2.5e-4, 1.25e-4, 0.0])
    assert [schedules(f)["surrogate_clip"] for f in frames] == pytest.approx(expected["clips"])
    optimizer = shared.make_optimizer(made, [tf.Variable(1.0)])
    assert type(optimizer) is tf.keras.optimizers.legacy.Adam and optimizer.beta_1 == 0.9 and optimizer.beta_2 == 0.999
    if "epsilon" in expected:  # the paper says nothing of it
        assert float(optimizer.epsilon) == pytest.approx(expected["epsilon"])
    assert (made.network.torso, made.learner.max_grad_norm) == (expected["torso"], 0.5)

    # A policy of six equal actions that has not moved, no advantages, and values that are 3 away from their targets.
    loss = agent.make_loss(made, SimpleNamespace(distribution=distributions.of(spec.actions)))
    still = batches[0]._replace(advantage_tm1=np.zeros((1, 256), np.float32), target_tm1=np.full((1, 256), 5.0, np.float32))
    for value, number in ((2.0, expected["loss"]), (2.5, expected["loss_of_values_that_move"])):
        total, _ = loss(networks.Outputs(tf.zeros([1, 256, 6]), tf.fill([1, 256], value)), still)
        assert float(total) == pytest.approx(number, rel=1e-5)
    # Of those that are twice as likely and better than expected, no more than 1 + 0.1 counts.
    likely = still._replace(advantage_tm1=np.ones((1, 256), np.float32), target_tm1=np.full((1, 256), 2.0, np.float32), a_tm1=np.zeros((1, 256), np.int32))
    logits = np.zeros((1, 256, 6), np.float32)
    logits[..., 0] = np.log(2.5)  # 2.5 / (2.5 + 5) = 2/6
    _, metrics = loss(networks.Outputs(tf.constant(logits), tf.fill([1, 256], 2.0)), likely)
    assert float(metrics["policy_loss"]) == pytest.approx(-1.1, rel=1e-5)


class _Spy:
    def __init__(self, inner, call):
        self.__dict__.update(_inner=inner, _call=call)

    def __call__(self, unroll, **how):
        return self._call(unroll, **how)

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __setattr__(self, name, value):
        setattr(self._inner, name, value)


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """The penalty with all that is shared and one shard to the end at once, or with two shards until Ctrl-C first."""
    folder = tmp_path_factory.mktemp("runs") / "dppo"
    return folder, *ended(request.param, folder, *DPPO, *SHARED, first=["--server.num-shards", "2"])


@pytest.mark.soak
def test_a_worker_that_is_killed_is_waited_for_and_comes_back_alone(tmp_path):
    folder = tmp_path / "dppo"

    def kill_a_worker(process):
        node(process, "actor/1").kill()
        wait_for(lambda: restarts(folder), 60, "its death is noticed")
        time.sleep(1.2)  # a row of metrics later
        stands_at = int(rows(folder)[-1]["updates"])
        wait_for(lambda: int(rows(folder)[-1]["updates"]) > stands_at + 20, 60, "both go on")

    more = dict(first=["--server.num-shards", "2"], meanwhile=kill_a_worker)
    interrupted, _ = interrupted_and_resumed(folder, *DPPO, *SHARED, **more)
    assert [(row["node"], row["cause"], row["lost_frames"]) for row in restarts(folder)] == [("actor/1", "ended with signal 9", "0")]
    assert (interrupted["nonfinite_gradients"], interrupted["stale_gradients"]) == ("0", "0")
    assert int(interrupted["repeated_gradients"]) <= 1, "one that waited at the barrier at most"


def test_it_learns_catch_and_ends_by_itself(runs):
    folder, interrupted, result = runs
    last = rows(folder)[-1]
    assert float(last["return_mean"]) >= 0.9
    assert int(last["updates"]) > int(interrupted["updates"])
    assert (last["repeated_gradients"], last["nonfinite_gradients"], last["stale_gradients"]) == ("0", "0", "0")
    assert {row["staleness_max"] for row in rows(folder)} <= {"0", ""}


def test_what_is_shared_goes_on_where_it_stood_and_is_saved_with_the_network(runs, capsys):
    folder, _, _ = runs
    state = checkpoints.read_state(folder / "checkpoints")
    made = config_lib.load(folder / "config.yaml")
    from impala.nodes import checking

    spec = checking.check(made)
    network, statistics = agents.of(made).make_network(made, spec), agents.of(made).make_statistics(made, spec)
    saved = tf.Variable(statistics.initial())
    optimizer = shared.make_optimizer(made, network.trainable_variables)
    checkpoints.Checkpoints(folder / "checkpoints", network=network, optimizer=optimizer, statistics=saved).restore(read_only=True)
    count = saved.numpy()[2]
    # One observation a step, resets included, of both launches, each of which ended within an iteration of 1,280 steps.
    assert 0 <= count - state["frames"] * 10 / 9 <= 2 * 1280
    mean, deviation = statistics.observation_moments(saved.numpy())
    for variable, moment in zip(network.statistics, (mean, deviation)):
        np.testing.assert_allclose(variable.numpy().reshape(-1), moment, rtol=1e-6, atol=1e-7)
    betas = [float(row["penalty"]) for row in rows(folder)]
    assert betas[-1] == statistics.beta(saved.numpy()) and set(betas) != {made.agent.kl_beta}, "it adapts"
    assert cli.main(["evaluate", str(folder), "--episodes", "64"]) == 0
    assert float(capsys.readouterr().out.split("±")[0].split()[-1]) >= 0.8


@pytest.mark.soak
def test_it_learns_catch_with_an_lstm(tmp_path):
    """Backpropagation through time is truncated at an unroll's start, where each worker's state goes on."""
    result = run(*DPPO, "--run", tmp_path / "run", "--network.core", "lstm", "--network.core-size", 32, "--target-return", 0.6)
    assert result.returncode == 0 and float(rows(tmp_path / "run")[-1]["return_mean"]) >= 0.6, result.stderr


@pytest.mark.soak
def test_a_late_worker_is_not_waited_for(tmp_path):
    """Three workers: with D = 1 updates are of the first two gradients that come, and the third is late."""
    folder = tmp_path / "run"
    result = run(*DPPO, "--run", folder, "--actor.num-actors", 3, "--server.num-late", 1, "--total-frames", 12_000, "--target-return", "null")
    assert result.returncode == 0, result.stderr
    last = rows(folder)[-1]
    assert int(last["updates"]) > 40 and int(last["stale_gradients"]) > 0 and last["staleness_max"] == "0"


@pytest.mark.parametrize("overrides, words", [
    ({"server.num_late": 2}, "server.num_late=2; expected less than the 2 workers"),
    ({"server.barrier": False}, "server.barrier=False: with program=dppo all workers' gradients make one; expected true"),
    ({"agent.num_minibatches": 7}, "agent.num_minibatches=7 does not divide a worker's 640 transitions of an iteration; expected a divisor"),
    ({"network.core": "lstm", "agent.num_minibatches": 64}, "agent.num_minibatches=64 does not divide a worker's 32 unrolls of an iteration; expected a divisor"),
    ({"agent.num_epochs": 0}, "agent.num_epochs=0; expected 1 or more"),
    ({"network.core": "lstm", "agent.separate_networks": True}, "agent.separate_networks=True: not with a network.core"),
    ({"loss.correction": "vtrace"}, "loss.correction=vtrace: not with agent.name=ppo; expected clip, penalty"),
    ({"loss.clip_rho": 2.0}, "loss.clip_rho=2.0: not with agent.name=ppo; expected no such key"),
    ({"server.max_staleness": 3}, "server.max_staleness=3: with server.barrier none is stale; expected null"),
    ({"agent.name": "actor_critic"}, "agent.name='actor_critic': not with program=dppo; expected ppo"),
    ({"program": "a3c"}, "agent.num_epochs"),
])  # fmt: skip
def test_what_dppo_cannot_do_is_refused(overrides, words):
    if overrides == {"program": "a3c"}:
        overrides = {"program": "a3c", "agent.num_epochs": 3}
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/dppo_catch.yaml", overrides)
    assert words in str(caught.value)


def test_moments_of_frames_are_refused_in_one_line(tmp_path):
    result = run("train", "dppo_pong", "--run", tmp_path / "run", "--agent.normalise-observations", "true")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "agent.normalise_observations=True: atari:pong has stacked frames of shape (84, 84); expected false" in result.stderr
