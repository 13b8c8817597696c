"""Configuration: every kind of bad input is one line, and names on it are those of the shelves."""

import copy
import importlib
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impala import config as config_lib
from impala.config import Config, ConfigError, reading, shipped, uses
from impala.types import ArraySpec, Discrete, EnvironmentSpec

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
TRAININGS = [path for path in CONFIGS if "schemes:" not in path.read_text()]  # the others are grids of the lab
CATCH = {"environment": {"name": "catch"}}
NAN, INF = float("nan"), float("inf")


def with_(overrides):
    return lambda: config_lib.build(CATCH, overrides)


def lines_of(call):
    """The lines of the ConfigError that `call` must raise, each of them one line."""
    with pytest.raises(ConfigError) as caught:
        call()
    lines = caught.value.lines
    assert lines and all(line and "\n" not in line for line in lines)
    assert str(caught.value) == "\n".join(lines)
    return lines


def line_of(call):
    (line,) = lines_of(call)
    return line


@pytest.fixture
def load_text(tmp_path):
    def load(text, overrides={}):
        path = tmp_path / "some.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config_lib.load(path, overrides)

    return load


# --- values ---


@pytest.mark.parametrize(
    "key, value, expected",
    [
        # out of range
        ("learner.unroll_length", 0, "learner.unroll_length: got 0; input should be greater than or equal to 1"),
        ("learner.batch_size", -1, "learner.batch_size: got -1; input should be greater than or equal to 1"),
        ("learner.learning_rate", 0.0, "learner.learning_rate: got 0.0; input should be greater than 0"),
        ("loss.discount", 1.5, "loss.discount: got 1.5; input should be less than or equal to 1"),
        ("actor.num_relays", 2, "actor.num_relays=2: more than the 1 actors that they pass weights on to; expected as many or fewer"),
        ("loss.lambda", -0.1, "loss.lambda: got -0.1; input should be greater than or equal to 0"),
        ("loss.clip_rho", -1.0, "loss.clip_rho: got -1.0; input should be greater than or equal to 0"),
        ("learner.rmsprop_decay", 1.0, "learner.rmsprop_decay: got 1.0; input should be less than 1"),
        ("seed", -1, "seed: got -1; input should be greater than or equal to 0"),
        ("seed", 2**31, "seed: got 2147483648; input should be less than 2147483648"),
        ("network.hidden_sizes", [64, 0], "network.hidden_sizes.1: got 0; input should be greater than or equal to 1"),
        # wrong types
        ("learner.batch_size", "many", "learner.batch_size: got 'many'; input should be a valid integer"),
        ("learner.batch_size", "32", "learner.batch_size: got '32'; input should be a valid integer"),
        ("learner.batch_size", 8.0, "learner.batch_size: got 8.0; input should be a valid integer"),
        ("learner.learning_rate", "fast", "learner.learning_rate: got 'fast'; input should be a valid number"),
        ("environment.name", 5, "environment.name: got 5; expected a name, or a list of names"),
        ("network.bfloat16", 1, "network.bfloat16: got 1; input should be a valid boolean"),
        ("network.hidden_sizes", 64, "network.hidden_sizes: got 64; expected a list, like [64]"),
        ("network.hidden_sizes", "64 64", "network.hidden_sizes: got '64 64'; expected a list, like [64, 64]"),
        # a bool is no number, nothing is no value
        ("seed", True, "seed: got True; input should be a valid integer"),
        ("learner.learning_rate", True, "learner.learning_rate: got True; input should be a valid number"),
        ("seed", None, "seed: got None; input should be a valid integer"),
        ("environment.name", None, "environment.name: got None; expected a name, or a list of names"),
        # names
        ("loss.correction", "vtrase", "loss.correction: 'vtrase' is not one of none, one_step_is, vtrace, vtrace_c0, vtrace_unweighted_pg, leaky_vtrace, per_decision_is, full_is, weighted_is, td_lambda, upgo, epsilon_add, epsilon_max, ppo_clip, appo, impact, clear, laser, n_step, retrace, tree_backup, q_lambda, peng_q_lambda, is, clip, penalty, nor package.module:name of your own; did you mean vtrace?"),
        ("network.torso", "reznet",
         "network.torso: 'reznet' is not one of mlp, minatar, shallow, nature, resnet, nor package.module:name of your own; did you mean resnet?"),
        ("environment.protocol", "paper2019",
         "environment.protocol: 'paper2019' is not one of paper2018, baselines, rllib, machado2018, cleanba, r2d2; did you mean paper2018?"),
        ("learner.optimizer", None, "learner.optimizer: None is not one of adam, rmsprop, centered_rmsprop, adagrad"),
        # unknown keys: misspelt, in the wrong section, like nothing
        ("learner.batch_szie", 4, "learner.batch_szie: unknown key; did you mean learner.batch_size?"),
        ("lerner.batch_size", 4, "lerner: unknown key; did you mean learner?"),
        ("learning_rate", 0.1, "learning_rate: unknown key; did you mean learner.learning_rate?"),
        ("actor.batch_size", 4, "actor.batch_size: unknown key; did you mean learner.batch_size?"),
        ("loss.lambda_", 0.5, "loss.lambda_: unknown key; did you mean loss.lambda?"),
        ("zzzzzzzz", 1, "zzzzzzzz: unknown key; impala COMMAND --help lists all"),
        ("seed.deeper", 1, "seed: got {'deeper': 1}; input should be a valid integer"),
    ],
)  # fmt: skip
def test_one_line_names_key_value_and_expectation(key, value, expected):
    assert line_of(with_({key: value})) == expected


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize(
    "key", [key for key, value in config_lib.flatten(config_lib.build(CATCH)).items() if type(value) is float]
)
def test_no_number_may_be_nan_and_only_clips_infinite(key, value):
    if value == INF and key in ("loss.clip_rho", "loss.clip_pg", "loss.trust_threshold"):
        assert with_({key: value})()
    elif value == INF and key == "loss.clip_c":
        assert with_({key: value, "loss.clip_rho": INF})()
    else:
        assert line_of(with_({key: value})).startswith(f"{key}: got '{value}'; ")


NUMBERS = {key: value for key, value in config_lib.flatten(config_lib.build(CATCH)).items() if type(value) in (int, float)}
NONE_BY_DEFAULT = ["target_return", "actor.weight_period", "learner.max_lag", "learner.num_prefetched_batches"]


@pytest.mark.parametrize("key", [*NUMBERS, *NONE_BY_DEFAULT])
def test_every_number_has_an_upper_bound(key):
    is_float = key == "target_return" or isinstance(NUMBERS.get(key), float)
    for value in [1e300, 1e33] if is_float else [10**300, 2**63]:
        line = line_of(with_({key: value}))
        assert line.startswith(f"{key}: got ") and not line.endswith("integer"), line


@pytest.mark.parametrize("key", [key for key, value in NUMBERS.items() if isinstance(value, float)])
def test_no_number_may_be_one_of_which_float32_makes_zero(key):
    assert line_of(with_({key: 1e-50})).startswith(key)


@pytest.mark.parametrize(
    "key, value, expected",
    [
        ("learner.unroll_length", 10**9, "learner.unroll_length: got 1000000000; input should be less than or equal to 100000"),
        ("learner.learning_rate", 1e30, "learner.learning_rate: got 1e+30; input should be less than or equal to 100"),
        ("network.hidden_sizes", [10**9], "network.hidden_sizes.0: got 1000000000; input should be less than or equal to 1000000"),
        ("actor.num_actors", 10**6, "actor.num_actors: got 1000000; input should be less than or equal to 1024"),
        ("actor.num_environments", 10**9, "actor.num_environments: got 1000000000; input should be less than or equal to 100000"),
        ("actor.num_environment_threads", 10**6, "actor.num_environment_threads: got 1000000; input should be less than or equal to 1024"),
        ("record_chunks", 10**12, "record_chunks: got 1000000000000; input should be less than or equal to 1000000"),
        ("learner.epsilon", 1e-50, "learner.epsilon: got 1e-50, which float32 turns into 0; expected 1e-30 or more"),
        ("loss.entropy_cost", 1e300, "loss.entropy_cost: got 1e+300, which float32 turns into infinity; expected 1e+30 or less"),
        ("learner.adam_beta1", 1 - 1e-9, "learner.adam_beta1: got 0.999999999, which float32 turns into 1; expected 0.999999 or less"),
        ("liveness_seconds", 0.0, "liveness_seconds: got 0.0; input should be greater than or equal to 10"),
    ],
)  # fmt: skip
def test_a_number_far_out_of_range_is_one_line(key, value, expected):
    assert line_of(with_({key: value})) == expected


def test_generous_numbers_are_taken():
    """What somebody may mean: no clipping, no checkpoint, a run of a year."""
    config = with_({
        "learner.max_grad_norm": 1e9, "checkpoint_period_seconds": 1e9, "total_frames": 10**12, "learner.learning_rate": 1e-12,
        "loss.entropy_cost": 0.0, "loss.clip_rho": INF, "learner.epsilon": 1e-15, "learner.unroll_length": 10_000,
    })()  # fmt: skip
    assert config.total_frames == 10**12


RUNS = sorted((ROOT / "docs/results").rglob("config.yaml"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: str(path.parent.relative_to(ROOT / "docs/results")))
def test_the_configurations_of_kept_runs_load(path):
    assert config_lib.load(path) and len(RUNS) > 10


@pytest.mark.parametrize("word, overrides, line", [
    ("dppo_catch", {"actor.num_actors": 4, "cluster.min_actors": 3},
     "cluster.min_actors=3: with server.barrier an update awaits gradients of 4 workers, so that fewer would train nothing; "
     "expected that or more, or null"),
    ("dppo_catch", {"actor.num_actors": 4, "cluster.min_actors": 3, "server.num_late": 1}, None),
    ("a3c_catch", {"actor.num_actors": 4, "cluster.min_actors": 1}, None),
    ("seed_catch", {"actor.num_actors": 4, "actor.num_environments": 16, "actor.num_lanes": 1, "learner.num_learners": 2, "cluster.min_actors": 1},
     "cluster.min_actors=1: of the 2 learners, which train in step, some would have no chunks; expected more, or null"),
    ("seed_catch", {"actor.num_actors": 4, "actor.num_environments": 16, "actor.num_lanes": 1, "learner.num_learners": 2, "cluster.min_actors": 2}, None),
])  # fmt: skip
def test_a_run_on_a_cluster_that_begins_with_too_few_actors_to_train_is_refused(word, overrides, line):
    def load():
        return config_lib.load(f"configs/{word}.yaml", overrides)

    if line:
        assert line_of(load) == line
    else:
        assert load().cluster.min_actors == overrides["cluster.min_actors"]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_target_return_that_is_never_reached_is_refused(value):
    assert line_of(with_({"target_return": value})) == f"target_return: got '{value}'; input should be a finite number"
    assert with_({"target_return": None})().target_return is None
    assert with_({"target_return": -5})().target_return == -5.0


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"learner.batch_size": 64}, ["learner.batch_size=64 > replay.queue_size=32", "would never fill"]),
        ({"loss.clip_c": 2.0}, ["loss: clip_c=2.0 > clip_rho=1.0", "Theorem 1"]),
        ({"actor.num_environments": 5}, ["actor: num_environments=5", "num_lanes=2", "divisible"]),
    ],
)
def test_what_does_not_fit_together_is_refused_with_the_reason(overrides, words):
    line = line_of(with_(overrides))
    assert all(word in line for word in words)


def test_n_steps_that_no_unroll_has_are_refused_where_the_correction_takes_them():
    q_unrolls = {"agent.name": "q_unrolls", "loss.correction": "n_step", "agent.n_step": 6, "learner.unroll_length": 5}
    assert line_of(with_(q_unrolls)) == (
        "agent.n_step=6 > learner.unroll_length=5: no unroll has so many rewards; expected less"
    )
    assert with_(q_unrolls | {"agent.n_step": 5})() and with_(q_unrolls | {"loss.correction": "retrace"})()
    r2d2 = {"program": "seed", "agent.name": "r2d2", "learner.unroll_length": 2, "agent.period": 2, "agent.n_step": 3}
    assert line_of(with_(r2d2)) == (
        "agent.n_step=3 > learner.unroll_length=2: no sequence has so many rewards; expected less"
    )
    assert with_(r2d2 | {"loss.correction": "retrace"})()


def test_burn_in_may_be_longer_than_what_is_trained_on_and_exponents_may_be_1():
    r2d2 = config_lib.load("configs/r2d2_catch.yaml", {
        "agent.burn_in": 99_984, "replay.priority_exponent": 1, "replay.importance_exponent": 1.0,
    })  # fmt: skip
    assert r2d2.agent.burn_in + r2d2.learner.unroll_length == r2d2.replay.size and r2d2.replay.priority_exponent == 1


def test_what_fits_together_is_taken():
    assert with_({"learner.batch_size": 64, "replay.queue_size": 64})().steps_per_update == 64 * 20
    assert with_({"loss.clip_c": 2.0, "loss.correction": "none"})()  # no contraction is claimed
    assert with_({"loss.clip_c": 1.0, "loss.clip_rho": 1.0})()


@pytest.mark.parametrize("section", ["learner", "environment", "network"])
@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_a_section_is_a_mapping(section, value):
    line = line_of(lambda: config_lib.build(CATCH | {section: value}))
    assert line.startswith(f"{section}: got {value!r}; expected keys below it, like {section}.")


def test_the_environment_must_be_named():
    assert line_of(lambda: config_lib.build({})) == "environment: missing; expected a value"
    assert line_of(lambda: config_lib.build({"environment": {}})) == "environment.name: missing; expected a value"


def test_all_errors_at_once():
    lines = lines_of(
        with_({"learner.batch_szie": 1, "learner.unroll_length": 0, "seed": None, "loss.correction": "x", "nowhere": 2})
    )
    assert sorted(line.split(":")[0] for line in lines) == [
        "learner.batch_szie", "learner.unroll_length", "loss.correction", "nowhere", "seed",
    ]  # fmt: skip


def test_long_values_are_cut_and_keys_stay_on_their_line():
    assert len(line_of(with_({"seed": "x" * 100_000}))) < 1000
    assert len(line_of(with_({"seed": list(range(100_000))}))) < 1000
    assert "got" in line_of(with_({"seed": 1 << 50_000}))  # Python refuses to write it in decimals
    assert "unknown key" in line_of(lambda: config_lib.build(CATCH | {"two\nlines": 1}))


# --- files ---


def test_three_e_minus_four_is_a_number(load_text):
    for text, value in (("3e-4", 3e-4), ("3.0e-4", 3e-4), ("1E-3", 1e-3), ("+2e-3", 2e-3), ("0.5", 0.5), ("1", 1.0)):
        config = load_text(f"environment: {{name: catch}}\nlearner: {{learning_rate: {text}}}")
        assert config.learner.learning_rate == value, text
    for text, value in (("40_000_000", 40_000_000), ("1e6", 10**6), ("25E5", 2_500_000)):
        assert load_text(f"environment: {{name: catch}}\ntotal_frames: {text}").total_frames == value
    assert "total_frames: got 1.5" in line_of(lambda: load_text("environment: {name: catch}\ntotal_frames: 15e-1"))


def test_infinity_may_be_written(load_text):
    assert load_text("environment: {name: catch}\nloss: {clip_rho: .inf}").loss.clip_rho == INF


@pytest.mark.parametrize(
    "text, words",
    [
        ("", ["is empty", "expected a mapping"]),
        ("# only a comment", ["is empty", "expected a mapping"]),
        ("[1, 2]", ["holds list", "expected a mapping"]),
        ("just words", ["holds str", "expected a mapping"]),
        ("seed: 1\nseed: 2", ["seed: written twice"]),
        ("learner: {batch_size: 2, unroll_length: 3, batch_size: 4}", ["batch_size: written twice"]),
        ("seed: !!python/object:os.system {}", ["could not determine a constructor", "python/object:os.system"]),
        ("seed: !!python/object/apply:os.system [echo]", ["could not determine a constructor"]),
        ("seed: !!python/name:os.system", ["could not determine a constructor"]),
        ('environment: {name: "catch', ["not a sound YAML file", "end of stream"]),
        ("seed: [1, 2", ["not a sound YAML file"]),
        ("\tseed: 1", ["not a sound YAML file"]),
        ("a: 1\n---\nb: 2", ["not a sound YAML file", "single document"]),
        ("a: &a {b: *a}", ["not a sound YAML file"]),
        ("? [a]\n: b", ["not a sound YAML file", "unhashable key"]),
        ("seed: \x00", ["not a sound YAML file"]),
        (b"\xff\xfe\x00", ["is no text"]),
        ("seed: 2001-99-99", ["not a sound YAML file", "month must be in 1..12"]),
        ("seed: !!int abc", ["not a sound YAML file", "'abc'"]),
        ("seed: !!int", ["not a sound YAML file", "IndexError"]),
        ("seed: !!bool abc", ["not a sound YAML file", "KeyError"]),
        ("seed: !!timestamp abc", ["not a sound YAML file", "AttributeError"]),
        ("seed: " + "9" * 5000, ["not a sound YAML file", "4300"]),
        ("[" * 5000, ["not a sound YAML file", "recursion"]),
        ("{" * 5000, ["not a sound YAML file", "recursion"]),
        ("environment: {name: catch}\nseed: .nan", ["seed: got 'nan'", "valid integer"]),
        ("environment: {name: catch}\nlearner: {learning_rate: .nan}", ["learner.learning_rate: got 'nan'", "finite"]),
        ("environment: {name: catch}\nlearner: {learning_rate: 1e999}", ["learner.learning_rate: got 'inf'", "finite"]),
        ("environment: {name: catch}\nseed: ~", ["seed: got None"]),
        ("environment: {name: catch}\nseed: yes", ["seed: got True"]),
        ("environment: {name: catch}\nlearner:", ["learner: got None"]),
        ("environment: {name: catch}\nseed: 0x" + "f" * 5000, ["seed: got"]),
        ("environment: {name: catch}\n1: 2", ["1: got 1; keys should be strings"]),
    ],
)
def test_bad_files_are_one_line(load_text, text, words):
    line = line_of(lambda: load_text(text))
    assert all(word in line for word in words), line


def test_no_code_of_a_file_is_run(load_text, tmp_path):
    trap = tmp_path / "trap"
    line_of(lambda: load_text(f"seed: !!python/object/apply:os.mkdir ['{trap}']"))
    assert not trap.exists()


def test_a_missing_file_comes_with_the_nearest_name(tmp_path):
    (tmp_path / "breakout.yaml").touch()
    line = line_of(lambda: config_lib.load(tmp_path / "brekout.yaml"))
    assert "brekout.yaml: No such file or directory" in line and line.endswith("did you mean breakout.yaml?")
    assert "No such file" in line_of(lambda: config_lib.load(tmp_path / "nowhere" / "x.yaml"))


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(1 << 33)  # eight sparse gigabytes
    started = time.monotonic()
    assert f"{1 << 33} bytes; expected a configuration under" in line_of(lambda: config_lib.load(path))
    assert time.monotonic() - started < 1


def test_what_is_no_regular_file_is_not_even_opened(tmp_path):
    """/dev/zero never ends, and a pipe that nobody writes to never opens."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        kinds = {"/dev/zero": "a device", tmp_path / "pipe": "a pipe", tmp_path / "link.yaml": "a pipe",
                 tmp_path / "socket": "a socket", tmp_path: "a folder"}  # fmt: skip
        for path, kind in kinds.items():
            assert line_of(lambda: config_lib.load(path)) == f"{path}: is {kind}; expected a regular file"


LAUGHS = "\n".join([
    "a: &a {x: 1}",
    *(f"{name}: &{name} {{{', '.join(f'k{i}: *{before}' for i in range(9))}}}" for before, name in zip("abcdefgh", "bcdefghi")),
    "seed: *i",
])  # fmt: skip
LISTS = "\n".join([
    "a: &a [x]",
    *(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi")),
    "seed: *i",
])  # fmt: skip


@pytest.mark.parametrize("text", [LAUGHS, LISTS], ids=["mappings", "lists"])
def test_a_billion_laughs_are_refused_in_a_moment(tmp_path, text):
    """A few lines of aliases that would unfold into a billion entries; in a process that may take a gigabyte."""
    path = tmp_path / "laughs.yaml"
    path.write_text(text)
    code = f"""if True:
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        from impala import config
        try:
            config.load({str(path)!r})
        except config.ConfigError as error:
            print(max(map(len, error.lines)))"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr[-500:]
    assert int(result.stdout) < 1000


# --- the command line ---


def test_overrides_are_read_as_yaml():
    arguments = ["--learner.learning-rate", "3e-4", "--seed=1", "--environment.name", "CartPole-v1", "--loss.clip-rho=.inf",
                 "--network.hidden-sizes", "[8, 8]", "--target-return", "-5", "--target_return=null"]  # fmt: skip
    assert config_lib.parse_overrides(arguments) == {
        "learner.learning_rate": 3e-4, "seed": 1, "environment.name": "CartPole-v1", "loss.clip_rho": INF,
        "network.hidden_sizes": [8, 8], "target_return": None,
    }  # fmt: skip


def test_overrides_win_over_the_file(load_text):
    text = "environment: {name: catch}\nlearner: {batch_size: 8, unroll_length: 5}"
    config = load_text(text, {"learner.batch_size": 4, "loss.discount": 0.5})
    assert (config.learner.batch_size, config.learner.unroll_length, config.loss.discount) == (4, 5, 0.5)


def test_building_leaves_its_arguments_alone():
    data = {"environment": {"name": "catch"}, "learner": {"batch_size": 8}}
    before = copy.deepcopy(data)
    config_lib.build(data, {"learner.batch_size": 4, "loss.discount": 0.5})
    assert data == before


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--seed"], ["--seed: has no value; expected --seed VALUE"]),
        (["--seed", "--restart"],
         ["--seed: has no value; expected --seed VALUE", "--restart: unknown; impala COMMAND --help lists all"]),
        (["seed", "3"], ["seed: expected an option like --learner.learning-rate 3e-4",
                         "3: expected an option like --learner.learning-rate 3e-4"]),
        (["-s", "3"], ["-s: expected an option like --learner.learning-rate 3e-4",
                       "3: expected an option like --learner.learning-rate 3e-4"]),
    ],
)  # fmt: skip
def test_options_without_a_value_and_values_without_an_option(arguments, expected):
    assert lines_of(lambda: config_lib.parse_overrides(arguments)) == expected


@pytest.mark.parametrize(
    "value",
    ["[[", "2001-99-99", "9" * 5000, "[" * 5000, "!!python/object:os.system {}", "!!int x", "{a: 1, a: 2}", "\x00"],
)
def test_a_value_that_is_no_yaml_is_taken_as_text_and_refused_later(value):
    overrides = config_lib.parse_overrides([f"--seed={value}"])
    assert overrides == {"seed": value}
    assert line_of(with_(overrides)).startswith("seed: got ")


@pytest.mark.parametrize("key", ["", ".", "..", "learner.", ".learner", "learner..batch_size", "seed.a.b.c"])
def test_odd_keys_are_refused(key):
    lines_of(with_({key: 1}))


def test_a_key_under_what_is_no_section():
    line = lines_of(lambda: config_lib.build(CATCH | {"learner": None}, {"learner.batch_size": 3}))[0]
    assert line.startswith("learner.batch_size: learner is not a section")


# --- round trips and shelves ---


@pytest.mark.parametrize("path", TRAININGS, ids=lambda path: path.stem)
def test_every_config_of_the_repository_loads_and_makes_the_round_trip(path, load_text):
    config = config_lib.load(path)
    assert load_text(config_lib.dump(config)) == config


@pytest.mark.parametrize("path", [p for p in TRAININGS if not p.stem.startswith(("dqn_", "a3c_", "dppo_", "ppo_", "gorila_"))], ids=lambda path: path.stem)
def test_every_config_of_the_repository_takes_two_learners(path):
    assert config_lib.load(path, {"learner.num_learners": 2}).learner.num_learners == 2


def test_there_are_configs():
    assert len(CONFIGS) >= 3


def test_the_round_trip_keeps_what_is_not_a_default(load_text):
    config = with_({
        "loss.clip_rho": INF, "loss.lambda": 0.9, "network.hidden_sizes": [7], "target_return": -3.5, "seed": 9,
        "learner.learning_rate": 1e-7, "environment.name": "1e5", "network.bfloat16": True,
    })()  # fmt: skip
    assert load_text(config_lib.dump(config)) == config
    assert config != config_lib.build(CATCH)


def test_a_config_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        with_({})().learner.batch_size = 3


def test_flatten_and_keys_name_every_number_once():
    flat = config_lib.flatten(config_lib.build(CATCH))
    assert [key for key in config_lib.keys() if not key.startswith("agent.")] == [k for k in flat if k != "agent.name"]
    assert config_lib.build({}, flat) == config_lib.build(CATCH)
    assert flat["learner.batch_size"] == 32 and flat["loss.lambda"] == 1.0 and flat["environment.name"] == "catch"


def test_what_may_change_on_resume_exists():
    assert set(config_lib.keys()) >= config_lib.MAY_CHANGE_ON_RESUME


def literal(*path):
    """The words of a field, in order, but for parts of one's own."""
    model = Config
    for name in path[:-1]:
        model = model.model_fields[name].annotation
    return tuple(word for word in reading._choices(model.model_fields[path[-1]]) if ":" not in word)


def test_literals_are_the_names_on_the_shelves():
    from impala import corrections, losses
    from impala.config import sections
    from impala.environments import atari
    from impala.learning import optimizers
    from impala.losses import actor_critic, ppo
    from impala.replay import tables

    v_based, q_based = sections.CORRECTIONS_OF["actor_critic"], sections.CORRECTIONS_OF["q_learning"]
    assert list(v_based) == [*corrections.SCHEMES, *losses.POLICY_TERMS]
    assert {*q_based} - {"n_step", "is"} == {*corrections.Q_SCHEMES} - {"importance_sampling", "acer"}
    assert list(sections.CORRECTIONS_OF["ppo"]) == list(ppo.SURROGATES)
    assert literal("loss", "correction") == (*v_based, *q_based, *ppo.SURROGATES)
    assert literal("loss", "entropy_cost_schedule") == literal("learner", "learning_rate_schedule")
    assert set(literal("loss", "reward_clipping")) == set(actor_critic.REWARD_CLIPPING)
    assert set(literal("replay", "queue_kind")) == set(tables.FRESH)
    assert set(literal("learner", "learning_rate_schedule")) == set(optimizers.SCHEDULES)
    assert set(literal("environment", "protocol")) == set(atari.PROTOCOLS)


def test_literals_are_the_names_that_functions_know():
    import tensorflow as tf

    from impala.learning import optimizers
    from impala.networks import torsos

    frames = EnvironmentSpec("frames", ArraySpec((84, 84), np.uint8), Discrete(2), num_stacked=4)
    for name in literal("network", "torso"):
        assert torsos.make(name, frames, hidden_sizes=(8,))
    with pytest.raises(ValueError) as caught:
        torsos.make("?", frames)
    assert str(caught.value).endswith(f"expected {', '.join(literal('network', 'torso')[:-1])} or resnet")
    for name in literal("learner", "optimizer"):
        assert optimizers.make(name, [tf.Variable(0.0)], epsilon=0.1)
    with pytest.raises(ValueError, match="expected adam, rmsprop, centered_rmsprop or adagrad$"):
        optimizers.make("?", [tf.Variable(0.0)], epsilon=0.1)
    assert literal("learner", "optimizer") == ("adam", "rmsprop", "centered_rmsprop", "adagrad")


def test_literals_are_the_programs():
    for name in literal("program"):
        assert (ROOT / "impala" / "programs" / f"{name}.py").exists()


def test_the_defaults_of_the_config_are_those_of_the_functions():
    import inspect

    from impala.losses.actor_critic import actor_critic

    defaults = {name: p.default for name, p in inspect.signature(actor_critic).parameters.items()}
    loss = config_lib.build(CATCH).loss
    for name in ("discount", "baseline_cost", "entropy_cost", "reward_clipping", "reduction"):
        assert defaults[name] == getattr(loss, name), name


def test_infinity_is_a_clip():
    for text in ("inf", ".inf"):
        overrides = config_lib.parse_overrides(["--loss.clip-rho", text])
        assert config_lib.build(CATCH, overrides).loss.clip_rho == INF


def test_importing_the_config_imports_neither_tensorflow_nor_a_station():
    heavy = {"impala", "tensorflow", "reverb", "launchpad", "gymnasium", "ale_py", "numpy", "grpc"}
    code = f"import sys, impala.config; print(*sorted(m for m in sys.modules if m.split('.')[0] in {heavy}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {".".join(name.split(".")[:2]) for name in result.stdout.split()} == {"impala", "impala.config", "impala.own"}


# --- anything at all ---

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(0, 100), st.floats(), st.text(max_size=8),
    st.sampled_from(["vtrace", "none", "mlp", "sum", "adam", 0, 1, -1, 10**400]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.one_of(
    st.sampled_from(config_lib.keys()), st.sampled_from(list(Config.model_fields)), st.text(max_size=12),
    st.sampled_from(config_lib.keys()).map(lambda key: key.swapcase()),
)  # fmt: skip
ANY_TIME = settings(deadline=None, derandomize=True, max_examples=50, suppress_health_check=list(HealthCheck))


def builds_or_refuses(call):
    try:
        config = call()
    except ConfigError as error:
        assert error.lines and all("\n" not in line for line in error.lines)
    else:
        assert isinstance(config, Config)
        assert not any(isinstance(v, float) and math.isnan(v) for v in config_lib.flatten(config).values())
        assert config_lib.build(yaml.load(config_lib.dump(config), reading._Loader)) == config


@ANY_TIME
@given(st.dictionaries(KEYS, VALUES, max_size=4), st.sets(st.sampled_from(list(Config.model_fields)), max_size=2))
def test_any_change_of_a_valid_config_builds_or_is_refused(changes, removed):
    data = config_lib.build(CATCH).model_dump(mode="json", by_alias=True)
    for section in removed:
        data.pop(section)
    builds_or_refuses(lambda: config_lib.build(data, changes))


@ANY_TIME
@given(VALUES.filter(lambda value: isinstance(value, dict)) | st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_mapping_builds_or_is_refused(data):
    builds_or_refuses(lambda: config_lib.build(data))


@ANY_TIME
@given(st.data())
def test_any_damage_to_a_file_builds_or_is_refused(tmp_path_factory, data):
    text = bytearray((ROOT / "configs" / "catch.yaml").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        text[place : place + data.draw(st.integers(0, 6))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"{", b"}", b"[", b":", b"- ", b"&a ", b"*a", b"!!int ", b"\n", b"|", b"1e5", b"? "])
        )  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(text)
    builds_or_refuses(lambda: config_lib.load(path))


@ANY_TIME
@given(
    st.lists(st.text(max_size=10) | KEYS.map(lambda key: f"--{key}") | SCALARS.map(str) | st.sampled_from(["--", "=", "--="]), max_size=5)
)  # fmt: skip
def test_any_command_line_builds_or_is_refused(arguments):
    builds_or_refuses(lambda: config_lib.build(CATCH, config_lib.parse_overrides(arguments)))


def test_queue_prefetch_and_weight_period_follow_from_the_intended_lag():
    """Pong: 32 environments, batches of 4, one batch prefetched."""
    numbers = {
        "environment.name": "catch", "actor.num_environments": 32, "learner.batch_size": 4, "replay.queue_size": 100,
    }  # fmt: skip
    assert config_lib.build({}, numbers).queue_size == 100 and config_lib.build({}, numbers).implied_lag == 16
    sizes = {lag: config_lib.build({}, numbers | {"learner.max_lag": lag}).queue_size for lag in (16, 17, 18, 24)}
    assert sizes == {16: 4, 17: 4, 18: 8, 24: 32}
    with pytest.raises(ConfigError, match="max_lag=15: 32 environments whose chunks make batches of 4 imply up to 16"):
        config_lib.build({}, numbers | {"learner.max_lag": 15})
    few = numbers | {"actor.num_environments": 2, "learner.batch_size": 32}
    assert config_lib.build({}, few).implied_lag == 1

    def shares(lag, **more):
        config = config_lib.build({}, numbers | {"learner.max_lag": lag} | more)
        return config.weight_period, config.num_prefetched_batches, config.queue_size // 4, config.implied_lag

    assert shares(None) == (1, 1, 25, 16)
    assert shares(31) == (1, 1, 15, 16)
    assert shares(32) == (2, 2, 7, 25), "16 left: half is an unroll's 8 batches, one is prefetched, the queue has the rest"
    assert shares(100) == (6, 6, 39, 61)
    assert shares(100, **{"actor.weight_period": 1, "learner.num_prefetched_batches": 1}) == (1, 1, 84, 16)
    assert shares(100, **{"actor.weight_period": 3}) == (3, 5, 64, 36)
    with pytest.raises(ConfigError, match="imply up to 32 updates"):
        shares(31, **{"actor.weight_period": 3})


@pytest.mark.parametrize("program", uses.AGENTS)
def test_every_key_of_a_program_is_documented_with_a_default_that_can_be_typed(program):
    documented = {key: (default, text) for key, default, text in config_lib.documented(program)}
    config = config_lib.build(CATCH, {"program": program})
    flat = config_lib.flatten(config)
    used = [key for key in flat if config.has_use_for(key)]
    assert [key for key in documented if key in used] == used
    others = {"agent"} | ({"replay"} if program == "seed" else set())
    assert {key.split(".")[0] for key in set(documented) - set(used)} <= others, "another agent's own"
    for agent in uses.AGENTS[program]:
        other = config_lib.build(CATCH, {"program": program, "agent.name": agent})
        assert {key for key in config_lib.flatten(other) if other.has_use_for(key)} <= set(documented)
    for key, (default, _) in documented.items():
        if key in used and key not in ("environment.name", "program"):
            overrides = {"program": program} | config_lib.parse_overrides([f"--{key}", default])
            assert config_lib.flatten(config_lib.build(CATCH, overrides))[key] == flat[key], key


def test_a_key_with_a_dot_in_a_file_is_told_where_it_belongs():
    with pytest.raises(ConfigError) as caught:
        config_lib.build({"learner.batch_size": 8, **CATCH})
    assert caught.value.lines == [
        "learner.batch_size: a name with a dot; expected it below its section, like learner: {batch_size: …}"
    ]


@pytest.mark.parametrize("text", ["010", "-07", "0_7", "1:30", "1:30.5"])
def test_what_yaml_reads_in_base_8_or_60_is_refused_as_a_number(text):
    """A script that counts 08, 09, 010 would else train with the seed 8 twice."""
    assert config_lib.parse_overrides(["--seed", text]) == {"seed": text}
    with pytest.raises(config_lib.ConfigError, match=f"seed: got '{text}'"):
        config_lib.build(CATCH, {"seed": text})


@pytest.mark.parametrize("text, value", [("1.5e6", 1_500_000), ("1e6", 1_000_000), ("2.5e-1", 0.25), ("10.0", 10.0), ("1.50e1", 15)])
def test_whole_numbers_may_have_an_exponent(text, value):
    (found,) = config_lib.parse_overrides(["--x", text]).values()
    assert found == value and type(found) is type(value)


def test_help_names_all_agents_of_a_program_and_where_their_defaults_differ():
    documented = {key: (default, text) for key, default, text in config_lib.documented("apex")}
    assert documented["agent.name"] == ("q_learning", "q_learning | dpg; or package.module:name")
    assert documented["agent.n_step"] == ("3", "rewards before the bootstrap; with dpg 5")
    sections = [key.split(".")[0] for key in documented]
    assert len([a for a, b in zip(sections, sections[1:]) if a != b]) == len(set(sections)) - 1, "a section in two places"
    documented = {key: (default, text) for key, default, text in config_lib.documented("seed")}
    assert documented["learner.unroll_length"] == ("20", "T, agent steps; with r2d2 80")
    documented = {key: (default, text) for key, default, text in config_lib.documented("seed", "r2d2")}
    assert documented["learner.unroll_length"] == ("80", "T, agent steps") and "loss.entropy_cost" not in documented
    assert documented["agent.name"] == ("r2d2", "actor_critic | r2d2; or package.module:name")
    expected = "n_step | retrace | tree_backup | q_lambda | peng_q_lambda | is | package.module:name"
    assert documented["loss.correction"] == ("n_step", expected)
    documented = {key: (default, text) for key, default, text in config_lib.documented("impala")}
    assert documented["loss.correction"][1].endswith(" | is | package.module:name; with q_unrolls retrace")
    documented = {key: (default, text) for key, default, text in config_lib.documented("dppo")}
    assert documented["loss.correction"] == ("clip", "clip | penalty")
    (name,) = [text for key, _, text in config_lib.documented() if key == "agent.name"]
    assert all(agent in name for agents in uses.AGENTS.values() for agent in agents)


def test_shipped_agents_that_explore_beyond_their_policy_are_evaluated():
    loaded = {word: config_lib.load(path) for word, path in shipped.trainings().items()}
    exploring = {word for word, config in loaded.items() if config.agent.name in uses.EXPLORING}
    assert len(exploring) >= 18 and all(loaded[word].evaluator.num_episodes > 0 for word in exploring)


def test_what_a_key_may_be_is_documented():
    documented = {key: (default, text) for key, default, text in config_lib.documented()}
    assert tuple(documented) == config_lib.keys()
    assert documented["replay.queue_kind"][1].startswith("queue | uniform_once | drop_oldest; of fresh chunks")
    assert documented["learner.max_lag"][0] == "null" and documented["agent.n_step"][0] == "1"


@pytest.mark.parametrize("program", uses.AGENTS)
def test_a_resolved_configuration_has_the_sections_of_its_program_and_agent_and_no_others(program):
    config = config_lib.build(CATCH, {"program": program})
    data = yaml.safe_load(config_lib.dump(config))
    assert config_lib.build(data) == config
    assert ("inference" in data) == (program in ("seed", "ga3c")) and ("ga3c" in data) == (program == "ga3c")
    assert ("population" in data) == (program in ("impala", "a3c", "dppo", "gorila")) and ("min_size" in data.get("replay", ())) == (program in ("dqn", "apex", "gorila"))
    is_q_learning = program in ("dqn", "apex", "gorila")
    assert (data["loss"]["correction"] == "n_step") == ("double" in data["agent"]) == is_q_learning
    assert ("clip_rho" in data["loss"]) == (program in ("impala", "seed", "ga3c", "a3c"))
    assert ("num_epochs" in data["agent"]) == ("surrogate_clip" in data["loss"] and "clip_rho" not in data["loss"]) == (program == "dppo")


def test_keys_of_all_programs_at_their_defaults_are_taken_as_run_folders_hold_them():
    before = yaml.safe_load(config_lib.dump(config_lib.build(CATCH)))
    before |= {"inference": {"max_environments": 64}, "ga3c": {"num_trainers": 2}}
    assert config_lib.build(before) == config_lib.build(CATCH)


@pytest.mark.parametrize("data, expected", [
    ({"agent.name": "q_learning"}, "agent.name='q_learning': not with program=impala; expected actor_critic or q_unrolls"),
    ({"agent.double": True}, "agent.double: not with agent.name=actor_critic; expected no such key"),
    ({"agent.name": "dqn"}, "agent.name: 'dqn' is not one of 'actor_critic', 'q_learning', 'r2d2', 'q_unrolls', 'dpg', 'ppo', nor package.module:name of your own"),
    ({"agent.name": "q_lerning"}, "agent.name: 'q_lerning' is not one of 'actor_critic', 'q_learning', 'r2d2', 'q_unrolls', 'dpg', 'ppo', nor package.module:name of your own; did you mean q_learning?"),
    ({"agent": "q_learning"}, "agent: got 'q_learning'; expected keys below it, like agent.name"),
    ({"agent.name": 5}, "agent.name: 5 is not one of 'actor_critic', 'q_learning', 'r2d2', 'q_unrolls', 'dpg', 'ppo', nor package.module:name of your own"),
    ({"network.torso": "my module:Torso"},
     "network.torso: 'my module:Torso' is not one of mlp, minatar, shallow, nature, resnet, nor package.module:name of your own"),
    ({"replay.min_size": 7}, "replay.min_size=7: not with program=impala; expected 50000"),
    ({"ga3c.num_trainers": 7}, "ga3c.num_trainers=7: not with program=impala; expected 2"),
])  # fmt: skip
def test_keys_of_other_programs_and_agents_are_refused(data, expected):
    assert line_of(with_(data)) == expected


@pytest.mark.parametrize("data, expected", [
    ({"agent.name": "actor_critic"}, "agent.name='actor_critic': not with program=dqn; expected q_learning"),
    ({"agent.doubel": True}, "agent.doubel: unknown key; did you mean agent.double?"),
    ({"agent.epsilon_end": 1.5}, "agent.epsilon_end: got 1.5; input should be less than or equal to 1"),
    ({"agent.n_step": 0}, "agent.n_step: got 0; input should be greater than or equal to 1"),
    ({"loss.correction": "vtrace"}, "loss.correction=vtrace: not with agent.name=q_learning; expected n_step, retrace, tree_backup, q_lambda, peng_q_lambda, is"),
    ({"loss.entropy_cost": 0.1}, "loss.entropy_cost=0.1: not with agent.name=q_learning; expected no such key"),
    ({"learner.unroll_length": 5}, "learner.unroll_length=5: not with program=dqn; expected 20"),
    ({"learner.num_learners": 2}, "learner.num_learners=2: program=dqn has one learner; expected 1"),
    ({"actor.num_actors": 2},
     "actor.num_actors=2: program=dqn acts and learns in one process; expected 1, or program=apex"),
    ({"environment.name": ["catch", "cliff_walking"]},
     "environment.name=['catch', 'cliff_walking']: program=dqn plays one; expected a name"),
    ({"replay.size": 1000},
     "replay.min_size=50000 > replay.size=1000; the table would never hold so many, and training would never begin"),
    ({"learner.batch_size": 64, "replay.min_size": 63},
     "learner.batch_size=64 > replay.min_size=63; expected at least a batch there"),
    ({"target_return": 1.0},
     "target_return=1.0: episodes of an agent that explores say little; expected evaluator.num_episodes above 0, whose "
     "mean it is compared with, or null"),
])  # fmt: skip
def test_what_dqn_cannot_do_is_refused(data, expected):
    assert line_of(with_({"program": "dqn"} | data)) == expected


def test_a_default_of_the_program_does_not_count_as_set():
    """Or a run that was begun with another could not be resumed without naming it again."""
    for program, key, other in (("ga3c", "loss.correction", "none"), ("dqn", "replay.size", 60_000)):
        begun = config_lib.build(CATCH, {"program": program, key: other})
        assert config_lib.flatten(config_lib.over(begun, config_lib.build(CATCH, {"program": program})))[key] == other


@pytest.mark.parametrize("was, normalisation", [(True, "mean"), (False, "plain")])
def test_how_frames_enter_was_called_center_frames(was, normalisation):
    data = {"environment": {"name": "atari:pong"}, "network": {"center_frames": was}}
    assert config_lib.build(data).network.normalisation == normalisation
    assert config_lib.build({"environment": {"name": "atari:pong"}}).network.normalisation == "median"
    assert "center_frames" not in config_lib.dump(config_lib.build(data))


@pytest.mark.parametrize("network", [{"center_frames": "yes"}, {"center_frames": True, "normalisation": "mean"}])
def test_center_frames_beside_its_new_name_or_with_another_value_is_refused(network):
    with pytest.raises(config_lib.ConfigError, match="^network: center_frames=.*: is called normalisation now"):
        config_lib.build({"environment": {"name": "atari:pong"}, "network": network})


def test_which_agents_explore_beyond_their_policy_is_said_alike_in_both_places():
    for name in uses.ALL_AGENTS:
        agent = importlib.import_module(f"impala.agents.{name}")
        assert agent.EXPLORES_BEYOND_ITS_POLICY == (name in uses.EXPLORING), name


def test_a_section_that_is_given_whole_changes_the_keys_that_it_names():
    """`--learner '{batch_size: 8}'`, or the same in Python."""
    made, shipped_one = config_lib.load("configs/pong.yaml", {"learner": {"batch_size": 16}}), config_lib.load("configs/pong.yaml")
    assert made.learner == shipped_one.learner.model_copy(update={"batch_size": 16}) and shipped_one.learner.batch_size != 16
