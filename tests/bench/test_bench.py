"""Every part of the bench runs, all in one other process; `impala bench` takes one for each. Figures are not judged."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
from concurrent import futures

import numpy as np
import pytest

from impala import agents, bench
from impala import config as config_lib
from impala.bench import central_inference, frames, parameter_server, parts, schemes, traffic, whole, windows
from impala.nodes.checking import check
from impala.types import ArraySpec, Discrete, EnvironmentSpec
from tests.programs import running

CATCH = config_lib.load("configs/catch.yaml")


DQN = config_lib.load("configs/dqn_catch.yaml")
PARTS = bench.parts_of(CATCH)


@pytest.fixture(scope="module")
def alone():
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _with_small_tables) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(120)


def _with_small_tables():
    windows._SIZE = 500


def test_alone_is_another_process_whose_words_are_shown_only_if_it_fails(capfd):
    assert bench._alone(_pid_and_words) != os.getpid()
    assert "server on port" not in capfd.readouterr().err
    with pytest.raises(ZeroDivisionError):
        bench._alone(_words_and_an_error)
    assert "server on port" in capfd.readouterr().err


def _pid_and_words():
    os.write(2, b"server on port 1\n")
    return os.getpid()


def _words_and_an_error():
    return _pid_and_words() / 0


@pytest.mark.parametrize("name", PARTS)
def test_a_part_alone(alone, name):
    assert alone(PARTS[name], CATCH, 0.1) > 10


@pytest.mark.parametrize("name", [
    "insert", "sample", *(pytest.param(name, marks=pytest.mark.soak) for name in ("env", "inference", "learner")),
])  # fmt: skip
def test_a_part_of_a_program_that_replays_alone(alone, name):
    assert alone(bench.parts_of(DQN)[name], DQN, 0.1) > 10


def test_each_of_several_tasks_is_stepped(monkeypatch):
    """Their rate is that of as many steps of each."""
    made, rates, make = [], iter([100.0, 300.0]), parts.make_environment
    monkeypatch.setattr(parts, "make_environment", lambda config, n, task: made.append(task) or make(config, n, task))
    monkeypatch.setattr(parts, "rate", lambda step, seconds: step() and next(rates))
    config = config_lib.load("configs/multitask.yaml", {"environment.name": ["atari:pong", "atari:breakout"], "environment.action_set": "full", "actor.num_environments": 6, "actor.num_lanes": 2})
    assert parts.environment_rate(config, 1.0) == pytest.approx(2 / (1 / 100 + 1 / 300)) and made == [0, 1]


def test_the_run_under_test_ends_with_the_bench(tmp_path):
    """Also where the bench is killed: the run itself would go on for ever."""
    bench_of = f"from impala import bench, config; bench.whole.train_rate(config.load('configs/catch.yaml'), Path({str(tmp_path)!r}))"
    command = [sys.executable, "-c", f"from pathlib import Path; {bench_of}"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        running.wait_for(lambda: any((tmp_path / "run" / "logs").glob("actor*")), running.START_SECONDS, "its run has nodes")
    finally:
        process.kill()
        process.wait()
    running.wait_for(lambda: not running.survivors(process), running.END_SECONDS, "the end of the run")


def test_every_program_has_its_parts():
    assert list(bench.parts_of(CATCH)) == ["env", "inference", "learner", "table"]
    assert list(bench.parts_of(DQN)) == ["env", "inference", "learner", "insert", "sample"]
    for name in ("seed", "a3c", "dppo", "gorila"):  # a bundle of Gorila's has its replay in its own memory
        assert list(bench.parts_of(config_lib.load(f"configs/{name}_catch.yaml"))) == ["env", "inference", "learner"]
    shared = config_lib.load("configs/gorila_catch.yaml", {"replay.shared": True})
    assert list(bench.parts_of(shared)) == ["env", "inference", "learner", "insert", "sample"]


R2D2 = config_lib.load("configs/r2d2_memory_chain.yaml")


@pytest.mark.parametrize("config", [
    config_lib.load("configs/apex_catch.yaml"), *(pytest.param(config, marks=pytest.mark.soak) for config in (DQN, R2D2)),
], ids=["apex", "dqn", "r2d2"])  # fmt: skip
def test_a_learner_that_draws_from_its_own_memory(alone, config):
    (name, part), = bench.beside_parts_of(config).items()
    assert name == "direct_updates" and alone(part, config, 0.1) > 1


def test_several_learners_are_measured_and_a_parameter_server_has_no_learner_of_its_own():
    shared = config_lib.load("configs/gorila_catch.yaml", {"replay.shared": True})
    assert not bench.beside_parts_of(CATCH) and not bench.beside_parts_of(shared)
    two = config_lib.load("configs/apex_catch.yaml", {"learner.num_learners": 2})
    assert list(bench.beside_parts_of(two)) == ["learners", "direct_updates"]


@pytest.mark.parametrize("name, keys, exponent, is_weighed", [
    ("apex_catch", {}, 0.6, True), ("dqn_catch", {}, None, False), ("r2d2_catch", {}, 0.9, True),
    ("apex_catch", {"replay.priority_exponent": 0.3}, 0.3, True),
])  # fmt: skip
@pytest.mark.soak
def test_sampling_alone_is_that_of_the_program(alone, name, keys, exponent, is_weighed):
    """By priority, which costs more than uniformly, and with weights of importance."""
    config = config_lib.load(f"configs/{name}.yaml", keys)
    sampler, has_importance = alone(_how_it_draws, config)
    assert sampler == ("uniform" if exponent is None else pytest.approx(exponent)) and has_importance == is_weighed


def _how_it_draws(config):
    """Returns the sampler of the table that `sampling_rate` draws from, and whether its batches have an importance."""
    import reverb

    from impala.bench import windows
    from impala.replay import datasets, tables

    found = []

    class Spied(datasets.Prefetcher):
        def get(self, timeout_seconds):
            batch = super().get(timeout_seconds)
            found.append(not isinstance(batch.importance, tuple))
            return batch

    of_server, servers, prefetcher = reverb.Server, [], datasets.Prefetcher
    reverb.Server = lambda *arguments, **settings: servers.append(of_server(*arguments, **settings)) or servers[-1]
    datasets.Prefetcher = Spied
    try:
        windows.sampling_rate(config, 0.1)
        options = servers[0].localhost_client().server_info()[tables.REPLAY].sampler_options
    finally:
        reverb.Server, datasets.Prefetcher = of_server, prefetcher
    kind = options.WhichOneof("distribution")
    return (options.prioritized.priority_exponent if kind == "prioritized" else kind), all(found)


@pytest.mark.soak
def test_sequences_are_written_drawn_and_learned(alone):
    assert list(bench.parts_of(R2D2)) == ["env", "inference", "learner", "insert", "sample"]
    for part in bench.parts_of(R2D2).values():
        assert alone(part, R2D2, 0.1) > 10
    assert alone(whole.lockstep_rate, R2D2, 0.1) > 10
    parts = traffic.bytes_per_frame(R2D2, SPEC_OF_CHAIN, 1000)
    # A step: 3 floats, is_first, action, reward, discount, version and origin, the share of 1/10 in what a sequence has.
    of_sequence = 8 + 6 * 8 + 2 * 64 * 4 + 4 + 4
    assert parts["steps"] == pytest.approx(3 * 4 + 1 + 4 + 4 + 4 + of_sequence / 10, abs=1)
    assert set(parts) == {"steps", "windows", "observations", "answers"}


SPEC_OF_CHAIN = EnvironmentSpec("memory_chain", ArraySpec((3,), np.float32), Discrete(2))


@pytest.mark.parametrize("name, part, keys", [
    ("apex_dpg_pendulum", "insert", {}), ("q_unrolls_catch", "table", {}),
    pytest.param("q_unrolls_catch", "learner", {"network.core": "lstm"}, marks=pytest.mark.soak),
    pytest.param("q_unrolls_catch", "table", {"loss.correction": "n_step"}, marks=pytest.mark.soak),
    pytest.param("q_unrolls_catch", "table", {"network.core": "lstm"}, marks=pytest.mark.soak),
])  # fmt: skip
def test_a_part_of_agents_that_keep_other_things_of_a_decision(alone, name, part, keys):
    config = config_lib.load(f"configs/{name}.yaml", keys)
    assert alone(bench.parts_of(config)[part], config, 0.1) > 10


@pytest.mark.parametrize("name", ["dppo", pytest.param("gorila", marks=pytest.mark.soak)])
def test_a_worker_of_a_parameter_server_alone(alone, name):
    config = config_lib.load(f"configs/{name}_catch.yaml")
    assert alone(PARTS["learner"], config, 0.1) > 10


def test_an_exchange_with_a_parameter_server(alone):
    """The small network of Catch: its bytes by hand, and each part takes less than the whole."""
    config = config_lib.load("configs/a3c_catch.yaml")
    exchange = alone(parameter_server.measure, config, 0.4)
    variables = agents.of(config).make_network(config, check(config)).trainable_variables
    assert exchange["bytes"] == 2 * 4 * sum(math.prod(variable.shape) for variable in variables) > 10_000
    for name in ("apply", "pull", *parameter_server.TRANSPORTS):
        assert 0 < exchange[f"{name}_p50"] <= exchange[f"{name}_p99"]
    assert 0 < exchange["optimizer_cpu"] < 0.1
    assert exchange["refused_p50"] < exchange["shared_memory_p50"]
    assert exchange["apply_p50"] < exchange["rpc_p50"] and exchange["pull_p50"] < exchange["rpc_p50"]


def test_an_update_on_replay_stands_for_the_steps_that_its_windows_are_drawn_for():
    """A step is drawn four times, so a batch of 32 windows is the share of eight steps."""
    assert (DQN.learner.batch_size, DQN.replay.samples_per_insert, DQN.steps_per_update) == (32, 4.0, 8.0)


@pytest.mark.parametrize("program", ["seed", pytest.param("ga3c", marks=pytest.mark.soak)])
def test_central_inference_alone(alone, program):
    config = config_lib.load(f"configs/{program}_catch.yaml")
    rates = alone(central_inference.serving_rates, config, 0.2)
    assert all(rates[name] > 100 for name in ("direct", "shared_memory", "rpc"))
    assert rates["direct_at_once"] > 100 and rates["direct_batch"] % config.actor.num_lane_environments == 0
    assert all(16 <= rates[f"{name}_batch"] <= config.inference.max_environments for name in central_inference.TRANSPORTS)
    assert all(0 < rates[f"{name}_p50"] <= rates[f"{name}_p99"] for name in central_inference.TRANSPORTS)


def test_bytes_per_frame_by_hand():
    """Pong's frames are 7,056 bytes; four of them an agent step, T = 10 and k = 4, 32 environments an actor."""
    spec = EnvironmentSpec("pong", ArraySpec((84, 84), np.uint8), Discrete(6), num_stacked=4, frames_per_step=4)
    impala, seed, ga3c, dqn = (
        traffic.bytes_per_frame(config_lib.load(f"configs/{name}.yaml"), spec, 1000)
        for name in ("pong", "seed_pong", "ga3c_pong", "dqn_pong")
    )
    # A step: frame, is_first, action, reward, discount, weights version, origin of six numbers. Eight windows of 4 + 3 frames.
    assert dqn["steps"] == (7056 + 1 + 4 + 4 + 4 + 8 + 6 * 8) / 4 and dqn["windows"] == pytest.approx(8 * 7 * 7056 / 4, rel=0.01)
    assert seed == {"observations": (7056 + 4 + 4 + 1 + 1) / 4, "answers": (4 + 8) / 4}
    assert ga3c["observations"] == (4 * 7056 + 1) / 4 and ga3c["answers"] == (24 + 4 + 8) / 4
    apex, gorila, shared = (
        traffic.bytes_per_frame(config_lib.load(f"configs/{name}_pong.yaml", keys), spec, 1000)
        for name, keys in (("apex", {}), ("gorila", {}), ("gorila", {"replay.shared": True}))
    )
    assert apex["weights"] == 4000 / (100 * 16) / 4, "once in 400 frames of 16 environments"
    assert gorila == {"gradients": 250, "weights": 250, "targets": 2 * 250 / 500}, "a gradient for every 4 steps, 16 frames; two bundles"
    assert shared.keys() == gorila.keys() | {"steps", "windows"} and shared["steps"] == dqn["steps"]
    assert impala["weights"] == 4000 / (10 * 32) / 4
    seldom = traffic.bytes_per_frame(config_lib.load("configs/pong.yaml", {"actor.weight_period": 29}), spec, 1000)
    assert seldom == impala | {"weights": impala["weights"] / 29}
    assert impala["chunks"] == pytest.approx(2 * 14 * 7056 / 10 / 4, rel=0.01)
    half, most = (
        traffic.bytes_per_frame(config_lib.load("configs/pong.yaml", {"replay.fraction": fraction}), spec, 1000)["chunks"]
        for fraction in (0.5, 0.875)
    )
    assert (half, most) == (1.5 * impala["chunks"], 4.5 * impala["chunks"]), "one and seven replayed for each fresh chunk"
    assert ga3c["chunks"] == pytest.approx(9 * 7056 / 5 / 4, rel=0.01)


def test_updates_a_second_and_what_priorities_cost_the_learner():
    rows = [
        dict(wall_seconds="10", updates="100", priority_seconds="", learner_priority_fraction=""),
        dict(wall_seconds="11", updates="120", priority_seconds="0.002", learner_priority_fraction="0.01"),
        dict(wall_seconds="14", updates="180", priority_seconds="0.004", learner_priority_fraction="0.03"),
    ]
    apex, gorila = (config_lib.load(f"configs/{name}_catch.yaml") for name in ("apex", "gorila"))
    found = whole.learning(rows, apex)
    assert found == dict(updates=20.0, priority_seconds=0.003, learner_priority_fraction=0.02)
    assert bench._learning(found) == (
        "updates          20.0 updates/s in the whole; new priorities are in the table after 3.0 ms, and handing them "
        "over takes 2.00 % of the learner's time"
    )
    assert whole.learning(rows, gorila) == whole.learning(rows, DQN) == dict(updates=20.0), "drawn uniformly"
    assert bench._learning(dict(updates=20.0, direct_updates=80.0)) == (
        "updates          20.0 updates/s in the whole, 25 % of the 80.0 of a learner that draws from its own memory"
    )
    assert whole.learning(rows, CATCH) == {}


def test_two_programs_are_compared_in_turn_and_told_in_frames(monkeypatch, capsys, tmp_path):
    rates = iter([100.0, 200.0, 140.0, 200.0])  # this, against, this, against
    monkeypatch.setattr(bench, "_whole", lambda config: dict(
        train=next(rates), cpu_seconds_per_million_steps=8_000.0, lag_mean=3.0, rss_mb=500.0
    ))  # fmt: skip
    pong, seed = (config_lib.load(f"configs/{name}.yaml") for name in ("pong", "seed_pong"))
    assert bench.main(seed, pong, names=["seed", "pong"], output=tmp_path / "out.json") == 0
    assert json.loads((tmp_path / "out.json").read_text())["ratio"] == pytest.approx(0.6)
    said = capsys.readouterr().out
    assert "seed: 480 frames/s; 2,000 CPU seconds per million of them; lag 3.0 updates; 500 MB" in said
    assert "pong: 800 frames/s" in said and "seed runs at 60 % of the agent steps/s of pong" in said


@pytest.mark.parametrize("name", ["catch", *(pytest.param(f"{name}_catch", marks=pytest.mark.soak) for name in ("dqn", "dppo", "gorila"))])
def test_lockstep_on_one_core(alone, name):
    assert alone(whole.lockstep_rate, config_lib.load(f"configs/{name}.yaml"), 0.2) > 100


@pytest.mark.soak
def test_every_scheme_has_a_share(alone):
    from impala import corrections, losses

    with_popart = CATCH.model_copy(update={"loss": CATCH.loss.model_copy(update={"popart": True})})
    fractions = alone(schemes.scheme_fractions, with_popart, 0.2)
    assert fractions.keys() == corrections.SCHEMES.keys() | losses.POLICY_TERMS.keys()
    assert all(0.0 <= fraction < 10.0 for fraction in fractions.values())


def test_what_frames_cost_is_beside_frames_as_they_come(monkeypatch):
    for name in ("hide_gpus", "set_tensorflow_threads"):
        monkeypatch.setattr(f"impala.launching.processes.{name}", lambda *_: None)
    for name in ("inference_of", "update_of"):
        monkeypatch.setattr(frames, name, lambda config: lambda: config.network.normalisation)
    monkeypatch.setattr(frames, "rate", lambda call, seconds: {"median": 8.0, "raw": 10.0}[call()])
    shares = frames.normalisation_fractions(config_lib.load("configs/pong.yaml"), 1.0)
    assert shares == {"inference": pytest.approx(0.2), "learner": pytest.approx(0.2)}


@pytest.mark.soak
@pytest.mark.parametrize("word", ["pong", "apex_pong", "a3c_pong"])
def test_what_frames_cost_to_normalise(alone, word):
    small = {"actor.num_environments": 2, "actor.num_lanes": 1, "actor.num_environment_threads": 1, "learner.batch_size": 2}
    config = config_lib.load(f"configs/{word}.yaml", small)
    shares = alone(frames.normalisation_fractions, config, 8.0)
    assert set(shares) == {"inference", "learner"} and all(-0.5 < share < 0.9 for share in shares.values())


def test_the_bound_by_hand():
    assert bench.bound(env=4.0, inference=4.0, learner=2.0, table=float("inf")) == bench.bound(env=2.0, learner=2.0) == 1.0


def test_a_replay_that_is_bound_to_no_ratio_counts_each_window_once():
    spec = EnvironmentSpec("catch", ArraySpec((10, 5), np.float32), Discrete(3))
    bound, free = (
        traffic.bytes_per_frame(config_lib.load("configs/apex_catch.yaml", {"replay.samples_per_insert": ratio}), spec, 10)
        for ratio in (4.0, None)
    )
    assert bound["windows"] == pytest.approx(4 * free["windows"]) and free["steps"] == bound["steps"]
