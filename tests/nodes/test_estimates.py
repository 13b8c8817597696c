"""The estimate counts parameters as the network does, passes what is shipped, and names the key that is too large."""

import contextlib
import math
from pathlib import Path

import numpy as np
import pytest

from impala import config as config_lib
from impala import training
from impala.agents import actor_critic
from impala.nodes import estimates
from impala.types import ArraySpec, Continuous, Discrete, EnvironmentSpec

ROOT = Path(__file__).parents[2]
PONG = EnvironmentSpec("atari:pong", ArraySpec((84, 84), "uint8"), Discrete(6), num_stacked=4, frames_per_step=4)
BOARD = EnvironmentSpec("minatar:breakout", ArraySpec((10, 10, 4), "float32"), Discrete(3))
VECTOR = EnvironmentSpec("Pendulum-v1", ArraySpec((3,), "float32"), Continuous(1))


def build(spec, **overrides):
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    return config_lib.build({}, {"environment.name": spec.name, "loss.correction": "vtrace"} | overrides)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    "torso, spec", [("mlp", VECTOR), ("minatar", BOARD), ("shallow", PONG), ("nature", PONG), ("resnet", PONG)]
)
def test_parameters_are_those_of_the_network(torso, spec, core):
    config = build(spec, network__torso=torso, network__core=core, network__core_size=32, network__hidden_sizes=[24, 8])
    network = actor_critic.make_network(config, spec)
    expected = sum(math.prod(variable.shape) for variable in network.trainable_variables)
    assert sum(layer.parameters for layer in estimates.layers(config, spec)) == expected


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_shipped_fits_into_eight_gigabytes(monkeypatch, path):
    machine_mb = {"dqn_paper": 10_100}.get(path.stem, 8000)  # the paper's replay: a million transitions of 8 kB
    monkeypatch.setattr(estimates, "budget_mb", lambda: 0.8 * machine_mb)
    config = config_lib.load(path)
    spec = {"minatar": BOARD, "shallow": PONG, "nature": PONG}.get(config.network.torso, VECTOR)
    if config.agent.name == "dpg":
        spec = VECTOR
    elif config.agent.name in ("q_learning", "q_unrolls", "r2d2"):
        spec = spec._replace(actions=Discrete(6))
    estimates.check(config, spec)
    training._table_mb(config, spec, estimates.budget_mb())


@pytest.mark.parametrize("name, is_counted", [("dqn_pong", False), ("gorila_pong", True), ("seed_pong", True), ("apex_catch", True)])
def test_what_tables_hold_counts_unless_reverb_compresses_it(monkeypatch, name, is_counted):
    config = config_lib.load(ROOT / f"configs/{name}.yaml")
    spec = PONG._replace(actions=Discrete(6)) if name.endswith("pong") else VECTOR._replace(actions=Discrete(3))
    monkeypatch.setattr(estimates, "budget_mb", lambda: 6_400.0)
    estimates.check(config, spec)
    with pytest.raises(config_lib.ConfigError, match="what tables hold") if is_counted else contextlib.nullcontext():
        estimates.check(config, spec, {"replay.size": 6_300.0})


def test_every_bundle_of_gorilas_has_a_replay_of_its_own_unless_they_share_one():
    mb = {
        (program, shared): training._table_mb(build(PONG, program=program, loss__correction="n_step", replay__size=10_000, replay__min_size=1_000, actor__num_actors=num_actors, actor__num_environments=8,
                                                    **({"replay__shared": True} if shared else {})), PONG, 10_000.0)["replay"]
        for program, shared, num_actors in (("dqn", False, 1), ("gorila", False, 3), ("gorila", True, 3))
    }  # fmt: skip
    assert mb["gorila", False] == pytest.approx(3 * mb["dqn", False]) == 3 * mb["gorila", True] and mb["dqn", False] > 0


def test_workers_of_a_parameter_server_and_its_shards_count_each():
    def mb(**overrides):
        made = build(PONG, program="a3c", network__torso="nature", actor__num_environments=8, learner__batch_size=8, **overrides)
        return {part.what: part.mb for part in estimates._parts(made, PONG)}

    one, three, sharded = mb(actor__num_actors=1), mb(actor__num_actors=3), mb(actor__num_actors=1, server__num_shards=3)
    apart = mb(actor__num_actors=3, server__shared_optimizer=False)
    assert three["batches"] == pytest.approx(3 * one["batches"]) and sharded["batches"] == one["batches"]
    assert sharded["processes"] - one["processes"] == 2 * 400.0
    weights_mb = 4e-6 * sum(layer.parameters for layer in estimates.layers(build(PONG, network__torso="nature"), PONG))
    assert three["weights"] - one["weights"] == pytest.approx(2 * 5 * weights_mb)
    assert apart["weights"] - three["weights"] == pytest.approx(2 * 4 * weights_mb)


@pytest.mark.parametrize("key, value, what", [
    ("actor.num_actors", 1000, "processes"),
    ("learner.num_learners", 32, "processes"),
    ("population.size", 64, "processes"),
    ("actor.num_environments", 100_000, "environments"),
    ("learner.batch_size", 100_000, "batches"),
    ("learner.unroll_length", 5_000, "batches"),
    ("learner.num_prefetched_batches", 10_000, "batches"),
    ("network.core_size", 100_000, "weights"),
    ("network.hidden_sizes", [1_000_000, 1_000], "weights"),
])  # fmt: skip
def test_the_key_that_is_too_large_is_named(monkeypatch, key, value, what):
    monkeypatch.setattr(estimates, "budget_mb", lambda: 0.8 * 8000)
    overrides = {"network.torso": "mlp" if key == "network.hidden_sizes" else "shallow", "replay.queue_size": 10**6, key: value}
    overrides |= {"network.core": "lstm"} if key == "network.core_size" else {}
    config = config_lib.build({"environment": {"name": "atari:pong"}}, overrides)
    with pytest.raises(config_lib.ConfigError) as caught:
        estimates.check(config, PONG)
    (line,) = caught.value.lines
    assert line.startswith(f"{key}={value}: {what} may take ") and "80 % of this machine's memory; expected " in line
    if key in ("learner.unroll_length", "learner.num_prefetched_batches", "actor.num_actors"):  # it says what can be held
        less = int(0.8 * int(line.rpartition(" ")[2]))
        estimates.check(config_lib.build({"environment": {"name": "atari:pong"}}, overrides | {key: less}), PONG)


def test_one_more_does_not_fit(monkeypatch):
    config = build(PONG, actor__num_actors=10)
    needed = sum(part.mb for part in estimates._parts(config, PONG))
    monkeypatch.setattr(estimates, "budget_mb", lambda: needed + 1)
    estimates.check(config, PONG)
    with pytest.raises(config_lib.ConfigError, match="actor.num_actors=11: processes .* expected at most about 10"):
        estimates.check(build(PONG, actor__num_actors=11), PONG)


def test_weights_that_no_message_holds_are_refused_where_they_travel_in_one(monkeypatch):
    large = dict(network__torso="mlp", network__hidden_sizes=[9000, 9000], evaluator__num_episodes=0)
    catch = EnvironmentSpec("catch", ArraySpec((10, 5), np.float32), actions=Discrete(3))
    words = r"network.hidden_sizes=\[9000, 9000\]: the weights take 326 MB, and a message between processes at most 268"
    with pytest.raises(config_lib.ConfigError, match=words + ".*IMPALA_RPC_MAX_BYTES=327"):
        estimates.check(build(catch, **large), catch)
    served = dict(program="a3c", loss__correction="none", **large)  # gradients go through shared memory, parameters do not
    with pytest.raises(config_lib.ConfigError, match=words):
        estimates.check(build(catch, **served), catch)
    with pytest.raises(config_lib.ConfigError, match="take 97[0-9] MB"):  # a layer is 324 MB; with Adam's two slots
        estimates.check(build(catch, server__num_shards=2, **served), catch)
    monkeypatch.setenv("IMPALA_RPC_MAX_BYTES", "400000000")
    estimates.check(build(catch, **large), catch)
    monkeypatch.setenv("IMPALA_RPC_MAX_BYTES", "many")
    with pytest.raises(config_lib.ConfigError, match="IMPALA_RPC_MAX_BYTES=many; expected bytes"):
        estimates.check(build(catch, **large), catch)


def test_windows_are_as_long_as_their_steps_and_tables_of_sequences_are_processes_too():
    papers = build(PONG, program="apex", loss__correction="n_step", network__torso="nature", learner__batch_size=512)
    assert mb_of(papers, "batches") < 1_500, "not those of 20 steps"
    one, two = (
        build(PONG, program="seed", agent__name="r2d2", loss__correction="n_step", learner__num_learners=n, learner__batch_size=8)
        for n in (1, 2)
    )  # fmt: skip
    assert mb_of(two, "processes") - mb_of(one, "processes") == 2 * 400, "a learner and its table"


def test_a_further_shard_holds_the_network_and_its_share_of_the_rest():
    one, eight = (
        mb_of(build(PONG, program="a3c", loss__correction="none", server__num_shards=n), "weights") for n in (1, 8)
    )  # fmt: skip
    network_mb = 4e-6 * sum(layer.parameters for layer in estimates.layers(build(PONG), PONG))
    assert eight - one == pytest.approx(7 * (1 + 5 / 8) * network_mb)


def mb_of(config, what):
    return next(part.mb for part in estimates._parts(config, PONG) if part.what == what)


@pytest.mark.parametrize("overrides, expected", [
    ({"learner__unroll_length": 100_000}, r"learner.unroll_length=100000: chunks of 70\d.* expected at most \d+"),
    ({"replay__queue_size": 10**6}, "replay.queue_size=1000000: chunks of 0.1"),
    ({"learner__max_lag": 10**6}, "learner.max_lag=1000000: chunks of 0.1"),
    ({"population__size": 1024}, "population.size=1024: chunks of"),
])  # fmt: skip
def test_tables_name_what_makes_them_large(monkeypatch, overrides, expected):
    monkeypatch.setattr(estimates, "budget_mb", lambda: 0.8 * 4000)
    with pytest.raises(config_lib.ConfigError, match=expected):
        training._table_mb(build(PONG, **overrides), PONG, estimates.budget_mb())
