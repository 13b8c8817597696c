"""Gorila: DQN with a parameter server, bit for bit where there is one bundle; then real processes."""

import functools
import os
import threading
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import pytest

from impala import cli, lockstep
from impala import config as config_lib
from impala.agents import q_learning, shared
from impala.learning import server as servers
from impala.monitoring.logs import read_csv
from impala.nodes import checking, exchanging, workers, working
from impala.nodes.worker_node import WorkerNode
from impala.types import Origin
from tests.programs.running import (
    END_SECONDS,
    WHOLE_OR_RESUMED,
    ended,
    evaluated_and_exported,
    mean_staleness,
    node,
    refused,
    restarts,
    rows,
    run,
    start,
    wait_for,
    wait_until_it_trains,
)

GORILA = ["train", "--config", "configs/gorila_catch.yaml", "--evaluator.period-seconds", "1", "--agent.target-period", "100"]
SMALL = {
    "environment.name": "catch", "network.torso": "mlp", "learner.optimizer": "adagrad", "learner.learning_rate": 0.01,
    "learner.learning_rate_schedule": "constant", "actor.num_environments": 4, "actor.num_lanes": 1,
    "replay.size": 300, "replay.min_size": 100, "replay.samples_per_insert": 4, "learner.batch_size": 8,
    "agent.target_period": 30, "agent.epsilon_frames": 300, "seed": 3,
}  # fmt: skip


def config(program="gorila", **overrides):
    return config_lib.build({}, SMALL | {"program": program} | {k.replace("__", "."): v for k, v in overrides.items()})


def played(configuration, num_updates):
    training = lockstep.of(configuration)
    updates = [update for _, update in zip(range(num_updates), training.updates())]
    weights = training.weights() if configuration.program == "gorila" else training.learner.weights()
    training.close()
    return weights.arrays, updates


@pytest.mark.parametrize("more", [
    {}, pytest.param({"agent__double": True, "agent__n_step": 3}, marks=pytest.mark.soak),
    pytest.param({"loss__correction": "retrace", "agent__n_step": 3}, marks=pytest.mark.soak),
])  # fmt: skip
def test_one_bundle_without_staleness_is_dqn_with_adagrad_bit_for_bit(more):
    dqn, of_dqn = played(config("dqn", **more), 200)
    ours, of_ours = played(config(server__max_staleness=0, server__outlier_deviations=None, **more), 200)
    assert [update.frames for update in of_ours] == [update.frames for update in of_dqn]
    for one, other in zip(ours, dqn, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(ours[0]).sum() > 0 and len({update.metrics["loss"] for update in of_ours}) > 100


def test_frames_are_those_that_all_bundles_played_and_each_is_as_stale_as_there_are_others():
    made = config(actor__num_actors=3)
    training = lockstep.of(made)
    updates = [update for _, update in zip(range(60), training.updates())]
    training.close()
    per_worker = 60 / 3 * 8 / 4
    assert updates[-1].frames == pytest.approx(3 * (100 + per_worker), abs=3 * 8)
    stale = training._server.staleness
    assert stale[2] == 58 and sum(stale.values()) == 60 and max(stale) == 2


def test_the_target_is_that_of_a_multiple_of_its_period_on_every_bundle():
    made = config(actor__num_actors=2)
    training = lockstep.of(made)
    copies = {0: [v.numpy() for v in training._workers[0].variables]}
    for update, _ in zip(training.updates(), range(100)):
        if update.index % 30 == 0:
            copies[update.index] = training.weights().arrays
        for worker in training._workers:
            newest = worker.version // 30 * 30
            for one, other in zip(worker.network.target_variables, copies[newest], strict=True):
                np.testing.assert_array_equal(one.numpy(), other)
    training.close()
    assert sorted(copies) == [0, 30, 60, 90]
    assert any((a != b).any() for a, b in zip(copies[30], copies[60]))


def test_where_a_shard_has_an_older_target_than_another_it_is_asked_again():
    made = config(actor__num_actors=2)
    worker = workers.make(made, checking.check(made), 0)
    arrays = [variable.numpy() for variable in worker.variables]
    worker.heed(np.array([2.0, 0.0]))
    worker.assign(60, 0, arrays, None)
    half = len(arrays) // 2
    shards = [SimpleNamespace(tensors=range(half)), SimpleNamespace(tensors=range(half, len(arrays)))]
    for numbers, is_new in (((2, 1), False), ((1, 2), False), ((2, 2), True)):
        servers_of = []
        for number, shard in zip(numbers, shards):
            answer = futures.Future()
            answer.set_result((number, [number * np.ones_like(arrays[tensor]) for tensor in shard.tensors]))
            servers_of.append(SimpleNamespace(futures=SimpleNamespace(target=lambda answer=answer: answer)))
        node = SimpleNamespace(_worker=worker, _shards=shards, _servers=servers_of, _stop=threading.Event())
        WorkerNode._fetch_target(node)
        assert worker.wants_target != is_new, numbers
        assert [float(np.max(v)) for v in worker.network.target_variables] == half * [numbers[0]] + (len(arrays) - half) * [numbers[1]]
    worker.close()


@pytest.mark.parametrize("is_shared, num_filled", [(False, 300), (True, 100)])
def test_exploration_falls_from_the_first_update_on(is_shared, num_filled):
    """Each of three bundles fills its replay with 100 transitions before, or all together do."""
    made = config(actor__num_actors=3, replay__shared=is_shared)
    epsilon = q_learning.make_exploration(made, checking.check(made))
    assert epsilon(num_filled) == made.agent.epsilon_start > epsilon(num_filled + 1)
    assert epsilon(num_filled + 300) == pytest.approx(made.agent.epsilon_end)


def test_the_server_refuses_an_outlier_and_counts_its_steps_with_the_next_gradient():
    made = config(server__outlier_deviations=4.0)
    worker = workers.make(made, checking.check(made), 0)
    worker.assign(0, 0, [v.numpy() for v in worker.variables], None)
    server = servers.ParameterServer(
        servers.State(0, 0, [v.numpy() for v in worker.variables], []), functools.partial(shared.make_optimizer, made),
        shared.make_schedules(made), rules=working.rules_of(made),
    )  # fmt: skip
    seen = []
    for number, is_outlier in enumerate((False, True, False)):
        while (batch := worker.batch()) is None:
            worker.act()
        gradient = worker.differentiate(batch)
        steps = worker.num_transitions(gradient)
        verdict = server.push(servers.Push(0, 0, number, worker.version, gradient.arrays, steps, True, is_outlier))
        worker.answered(verdict)
        worker.assign(*server.read())
        seen.append((verdict.name, steps))
    assert [name for name, _ in seen] == ["ACCEPTED", "OUTLIER", "ACCEPTED"]
    assert seen[2][1] >= seen[1][1] > 0 and server.frames == seen[0][1] + seen[2][1]
    counts = server.counts
    assert counts[servers.Verdict.ACCEPTED] == server.version == 2 and counts[servers.Verdict.OUTLIER] == 1
    worker.close()


def test_the_worker_says_which_loss_is_an_outlier_and_the_server_refuses_it(shard):
    """A batch whose rewards are a thousand times as large, sent as a worker sends it."""
    node, made = shard(server__outlier_deviations=4.0, loss__reward_clipping="none")
    worker = workers.make(made, checking.check(made), 0)
    facts = worker.facts._replace(parameters=node._mine.parameters)  # in one process layers get other names
    version, frames, arrays, statistics, _ = node.join(0, tuple(facts))
    worker.assign(version, frames, arrays, statistics)
    shards = exchanging.shards_of(made, [tuple(v.shape) for v in worker.variables], facts, 0)

    def request(number, *sent):
        answer = node.push((0, 0), number, *sent)
        return SimpleNamespace(wait=lambda seconds: True, result=lambda: answer)

    exchange = exchanging.Exchange([request], shards, [version], frames_per_step=1, should_stop=lambda: False)
    for loss in np.random.default_rng(0).normal(1.0, 0.1, size=1_000):
        worker._outliers(float(loss))
    while (batch := worker.batch()) is None:
        worker.act()
    before = node.server.read()[2]
    gradient = worker.differentiate(batch._replace(r_t=1_000.0 + batch.r_t))
    answer = exchange(gradient, worker.num_transitions(gradient), worker.increments(), worker.is_outlier(gradient))
    assert answer.verdict == servers.Verdict.OUTLIER and answer.version == 0
    for one, other in zip(before, node.server.read()[2]):
        np.testing.assert_array_equal(one, other)
    gradient = worker.differentiate(batch)
    answer = exchange(gradient, worker.num_transitions(gradient), worker.increments(), worker.is_outlier(gradient))
    assert answer.verdict == servers.Verdict.ACCEPTED and answer.version == 1
    arrays = [0 * array for array in node.server.read()[2]]
    for number in (5, 5):  # the second time as if the answer had been lost
        node.server.push(servers.Push(0, 0, number, 1, arrays, 20))
    node._log()
    row = node.status()
    counted = [row[f"{verdict}_gradients"] for verdict in ("accepted", "outlier", "repeated", "stale", "nonfinite")]
    assert counted == [2, 1, 1, 0, 0]
    worker.close()


def test_a_bundle_takes_the_newest_parameters_before_its_first_gradient():
    """It may have filled its replay for minutes: a gradient at the parameters of its join would be too old."""
    made = config()
    worker = workers.make(made, checking.check(made), 0)
    worker.assign(0, 0, [v.numpy() for v in worker.variables], None)
    seen = [worker.is_dated]
    for _ in range(3):
        while worker.batch() is None:
            worker.act()
        seen.append(worker.is_dated)
    assert seen == [False, True, False, False]
    worker.close()


@pytest.fixture
def shard(tmp_path, monkeypatch):
    """Returns a function that makes a server and its configuration."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp

    from impala.nodes import server_node
    from impala.nodes.run import Run

    monkeypatch.setattr(lp, "stop_event", threading.Event)

    def make(**overrides):
        made = config(**overrides)
        return server_node.ServerNode(made, checking.check(made), Run(tmp_path, os.getpid(), time.monotonic(), 0)), made

    return make


@pytest.mark.parametrize("verdict, is_counted", [("ACCEPTED", True), ("REPEATED", True), ("STALE", False)])
def test_steps_go_with_the_next_gradient_unless_one_was_accepted(verdict, is_counted):
    """One that the server had before, since its answer was lost, was accepted."""
    made = config()
    worker = workers.make(made, checking.check(made), 0)
    worker.assign(0, 0, [v.numpy() for v in worker.variables], None)
    sent = []
    for _ in range(2):
        while (batch := worker.batch()) is None:
            worker.act()
        sent.append(worker.num_transitions(worker.differentiate(batch)))
        worker.answered(servers.Verdict[verdict])
        worker.assign(0, 1, [v.numpy() for v in worker.variables], None)
    worker.close()
    assert sent[0] >= 100, "as many are played before the first"
    assert sent[1] < 20 if is_counted else sent[1] >= sent[0]


@pytest.fixture(scope="module", params=WHOLE_OR_RESUMED)
def runs(request, tmp_path_factory):
    """Two bundles and one shard to the end at once, or with two shards until Ctrl-C first."""
    folder = tmp_path_factory.mktemp("runs") / "gorila"
    return folder, *ended(request.param, folder, *GORILA, "--checkpoint-period-seconds", 2, first=["--server.num-shards", "2"])


def test_it_learns_catch_and_ends_by_itself(runs):
    folder, interrupted, result = runs
    last = rows(folder)[-1]
    assert int(last["updates"]) > int(interrupted["updates"])
    assert float(last["evaluation_mean"]) >= 0.9
    assert (last["repeated_gradients"], last["nonfinite_gradients"], last["stale_gradients"]) == ("0", "0", "0")
    assert mean_staleness(folder) == pytest.approx(1.0, abs=0.15)
    assert int(last["target_copies"]) == int(last["updates"]) // 100 > 1


@pytest.mark.soak
def test_it_is_evaluated_and_exported(runs, tmp_path):
    evaluated_and_exported(runs[0], tmp_path / "model", {"q"})


def test_a_run_that_has_ended_can_be_rolled_back_and_one_that_trains_cannot(runs, tmp_path, capsys):
    import fcntl
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(runs[0], folder)
    numbers = sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    assert len(numbers) > 1
    with (folder / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (line,) = refused(capsys, "rollback", folder, "--updates", 1)
        assert "is training; expected a run that has ended" in line
    (line,) = refused(capsys, "rollback", folder, "--updates", 10**9)
    assert "expected fewer than --updates" in line
    assert cli.main(["rollback", str(folder), "--updates", "1"]) == 0
    assert f"goes on from update {numbers[-2]:,}, not {numbers[-1]:,}" in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.parametrize("keys", [[], ["--server.num-shards", 2, "--server.shared-optimizer", "false"]])
def test_a_run_that_was_rolled_back_trains_on(tmp_path, keys):
    """From the update that was said, with θ⁻ and each worker's optimizer as they were then."""
    command = [*GORILA, "--run", tmp_path / "run", "--checkpoint-period-seconds", 1, "--target-return", 2, *keys]
    assert run(*command, "--total-frames", 8_000).returncode == 0
    numbers = sorted(int(path.name) for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdigit())
    assert run("rollback", tmp_path / "run", "--updates", 1).returncode == 0
    result = run(*command, "--total-frames", 12_000)
    assert result.returncode == 0 and f": update {numbers[-2]:,}, " in result.stdout, result.stdout + result.stderr
    last = rows(tmp_path / "run")[-1]
    assert int(last["updates"]) > numbers[-1] and last["nonfinite_gradients"] == "0"
    assert int(last["target_copies"]) == int(last["updates"]) // 100


def test_with_one_table_for_all_each_bundle_draws_what_both_have_played(tmp_path):
    import reverb

    from impala.nodes import replaying
    from impala.nodes.bundling import TableReplay
    from impala.nodes.feeding import Place
    from impala.nodes.run import Run

    made = config(actor__num_actors=2, replay__shared=True)
    spec, stop = checking.check(made), threading.Event()
    server = reverb.Server(replaying.make_tables(made, spec, is_limited=False), port=None)
    run_ = Run(tmp_path, os.getpid(), time.monotonic(), 0)
    bundles = []
    for index in range(2):
        place = Place(made, spec, run_, index, stop, "/cpu:0", lambda: 10**9)
        bundles.append(workers.make(made, spec, index, replay=TableReplay(place, server.localhost_client())))
        bundles[-1].assign(0, 0, [v.numpy() for v in bundles[-1].variables], None)
    while bundles[0]._replay.num_inserted <= bundles[0]._replay.num_first == made.replay.min_size / 2:
        bundles[0].act()
    began = time.monotonic()
    assert [bundles[0].batch() for _ in range(10)] == 10 * [None] and time.monotonic() - began < 1, "it waited for the other one"
    drawn, deadline = ([], []), time.monotonic() + 60
    while min(map(len, drawn)) < 5:
        assert time.monotonic() < deadline
        for bundle, batches in zip(bundles, drawn):
            if (batch := bundle.batch()) is None:
                bundle.act()
            else:
                batches.append(batch.origin.numpy()[:, Origin._fields.index("actor")])
    assert all({*np.concatenate(batches).tolist()} == {0, 1} for batches in drawn)
    assert min(bundle._replay.num_inserted for bundle in bundles) > 10
    assert TableReplay(place, server.localhost_client()).num_first == 0, "one that comes back beside a full table"
    stop.set()
    for bundle in bundles:
        bundle.close()
    server.stop()


@pytest.mark.soak
def test_with_one_table_for_all_it_learns_too(tmp_path):
    folder = tmp_path / "run"
    result = run(*GORILA, "--run", folder, "--replay.shared", "true")
    assert result.returncode == 0, result.stderr
    assert float(rows(folder)[-1]["evaluation_mean"]) >= 0.95


@pytest.mark.soak
def test_a_bundle_killed_while_it_works_harms_nobody_and_comes_back(tmp_path):
    """It takes its replay along: its next life fills one of its own before its first gradient."""
    folder = tmp_path / "run"
    process = start(*GORILA, "--run", folder, "--target-return", 2, "--total-frames", 10**9)
    wait_until_it_trains(folder, 200)
    other, server = node(process, "actor/0"), node(process, "server/0")
    node(process, "actor/1").kill()
    wait_for(lambda: restarts(folder), 60, "its death is noticed")
    before = int(rows(folder)[-1]["updates"])
    wait_for(lambda: int(rows(folder)[-1]["updates"]) > before + 50, 60, "training goes on")
    played = len(read_csv(folder / "episodes.csv"))
    wait_for(lambda: {row["actor"] for row in read_csv(folder / "episodes.csv")[played:]} >= {"0", "1"}, 60, "both play")
    seen = len(rows(folder))
    wait_for(lambda: any(row["staleness_mean"] and 0.8 < float(row["staleness_mean"]) < 1.2 for row in rows(folder)[seen:]), 60, "both send gradients")
    assert other.is_running() and server.is_running()
    process.terminate()
    output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 0, errors
    last = rows(folder)[-1]
    assert (last["repeated_gradients"], last["nonfinite_gradients"], last["stale_gradients"]) == ("0", "0", "0")
    assert [(row["node"], row["cause"], row["lost_frames"]) for row in restarts(folder)] == [("actor/1", "ended with signal 9", "0")]


@pytest.mark.parametrize("overrides, words", [
    ({"server.barrier": True}, "server.barrier=True: not with program=gorila; expected False"),
    ({"replay.samples_per_insert": None}, "replay.samples_per_insert=null: one process acts and learns with program=gorila; expected a number"),
    ({"server.outlier_deviations": 0}, "server.outlier_deviations: got 0; input should be greater than 0"),
    ({"agent.name": "actor_critic"}, "agent.name='actor_critic': not with program=gorila; expected q_learning"),
    ({"network.core": "lstm"}, "network.core=lstm: not with program=gorila; expected none"),
])  # fmt: skip
def test_what_gorila_cannot_do_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        config_lib.load("configs/gorila_catch.yaml", overrides)
    assert words in str(caught.value)
