"""Wrong usage: exit status 2, one line per error, no traceback, and TensorFlow not even imported."""

import fcntl
import importlib.metadata
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impala import cli, training
from impala import config as config_lib
from impala.launching import local, runs
from impala.monitoring import listing
from tests.faults.disks import small_disk
from tests.programs.running import refused

CATCH = ["train", "--config", "configs/catch.yaml"]


@pytest.mark.parametrize("chosen, expected", [(None, "1"), ("0", "0")])
def test_onednn_is_asked_for_unless_the_user_chose(monkeypatch, capsys, tmp_path, chosen, expected):
    """By every command, and for nodes on hosts where no command ran."""
    name = "TF_ENABLE_ONEDNN_OPTS"
    monkeypatch.setenv(name, "to be restored")
    if chosen is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, chosen)
    assert local.node_environment("", tmp_path)[name] == expected
    assert cli.main(["train", "--list"]) == 0
    assert os.environ[name] == expected


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--learner.batch_szie", "4"], "learner.batch_szie: unknown key; did you mean learner.batch_size?"),
        (["--learner.batch-size", "many"], "learner.batch_size: got 'many'; input should be a valid integer"),
        (["--learner.unroll-length", "0"],
         "learner.unroll_length: got 0; input should be greater than or equal to 1"),
        (["--learner.batch-size", "64"],
         "learner.batch_size=64 > replay.queue_size=32; a batch larger than the queue would never fill"),
        (["--loss.correction", "vtrase"],
         "loss.correction: 'vtrase' is not one of none, one_step_is, vtrace, vtrace_c0, vtrace_unweighted_pg, leaky_vtrace, per_decision_is, full_is, weighted_is, td_lambda, upgo, epsilon_add, epsilon_max, ppo_clip, appo, impact, clear, laser, n_step, retrace, tree_backup, q_lambda, peng_q_lambda, is, clip, penalty, nor package.module:name of your own; did you mean vtrace?"),
        (["--environment.name", "atari:pnog"],
         "environment.name: 'atari:pnog' is unknown; expected atari:<game>, minatar:<game>, catch, cliff_walking, memory_chain, river_swim, seek_avoid, stateless_cartpole or a gymnasium id; did you mean atari:pong?"),
        (["--environment.name", "CartPole-v9"],
         "environment.name: 'CartPole-v9' is unknown; expected atari:<game>, minatar:<game>, catch, cliff_walking, memory_chain, river_swim, seek_avoid, stateless_cartpole or a gymnasium id; did you mean CartPole-v1?"),
        (["--network.torso", "shallow"],
         "network.torso: 'shallow' takes stacked frames, and catch has observations of shape (10, 5); expected mlp"),
        (["--network.torso", "minatar"],
         "network.torso: 'minatar' takes boards [height, width, channels], and catch has observations of shape (10, 5); expected mlp"),
        (["--environment.name", "minatar:breakut"],
         "environment.name: 'minatar:breakut' is unknown; expected atari:<game>, minatar:<game>, catch, cliff_walking, memory_chain, river_swim, seek_avoid, stateless_cartpole or a gymnasium id; did you mean minatar:breakout?"),
        (["--replay.fraction", "1.0"], "replay.fraction: got 1.0; input should be less than 1"),
        (["--replay.fraction", "0.3"],
         "replay.fraction=0.3 of learner.batch_size=8 is 2.4 chunks; expected a whole number that leaves room for fresh ones"),
        (["--replay.fraction", "0.99999999"],
         "replay.fraction=0.99999999 of learner.batch_size=8 is 8 chunks; expected a whole number that leaves room for fresh ones"),
        (["--replay.fraction", "1e-9"],
         "replay.fraction=1e-09 of learner.batch_size=8 is 8e-09 chunks; expected a whole number that leaves room for fresh ones"),
        (["--loss.correction", "leaky_vtrace", "--loss.alpha-rho", "0.9"],
         "loss: alpha_rho=0.9 > alpha_c=0.5; leaky V-trace may expand then; loss.allow_expansion forces it"),
        (["--environment.name", "Blackjack-v1"], None),  # observations that are no box
        (["--actor.num-environments", "33"], None),
        (["--num-learners", "3"],
         "learner.num_learners=3 does not divide learner.batch_size: 8 chunks cannot be shared equally; expected a divisor"),
        (["--num-learners", "2", "--loss.correction", "weighted_is"],
         "learner.num_learners=2: weighted_is compares the chunks of a whole batch, of which each learner has a share; expected another loss.correction, or 1 learner"),
        (["--num-learners", "2", "--threads"],
         "learner.num_learners=2: learners need a process each; expected 1 with --threads"),
        (["--run"], "impala train: --run: expected one argument; expected impala train WORD | --config FILE [--run DIR] "
         "[--restart] [--threads] [--cluster ADDRESS] [--profile] [--SECTION.KEY VALUE …]"),
        (["--program", "a3c", "--actor.num-environments", "8", "--actor.num-lanes", "1", "--profile"],
         "--profile: program=a3c has no learner; expected another program"),
        (["--config", 300 * "a"], None),
        (["--run", b"x\xff".decode(errors="surrogateescape")], "--run x?: no UTF-8; expected another name"),
        (["--run", "/runs/lr=[1e-3]"], "--run /runs/lr=[1e-3]: TensorFlow would find no checkpoint below a name with [; expected another name"),
        (["--run", 300 * "a"], f"--run {300 * 'a'}: File name too long; expected a folder of yours"),
        (["--learner.learning-rate"], "--learner.learning-rate: has no value; expected --learner.learning-rate VALUE"),
        (["stray"], "stray: expected an option like --learner.learning-rate 3e-4"),
        (["--restart", "pong"], "impala train --config configs/catch.yaml … pong: expected one of the two"),
    ],
)  # fmt: skip
def test_one_line_per_error(capsys, tmp_path, arguments, expected):
    lines = refused(capsys, *CATCH, "--run", tmp_path / "run", *arguments)
    assert len(lines) == 1
    if expected:
        assert lines == [expected]
    assert not (tmp_path / "run").exists()  # nothing was made


@pytest.mark.parametrize("shell, status, says", [
    ("{impala} runs {folder} >&-", 0, ""),
    ("{impala} runs {folder} >&- 2>&-", 0, ""),
    ("{impala} runs {folder} >/dev/full", 1, "standard output: No space left on device\n"),
    ("PYTHONIOENCODING=ascii {impala} runs {folder}/nö", 2, "/n?: "),
])  # fmt: skip
def test_a_stream_that_is_closed_full_or_of_another_encoding_is_no_traceback(tmp_path, shell, status, says):
    command = shell.format(impala=f"{sys.executable} -m impala", folder=tmp_path)
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (result.returncode, "Traceback" in result.stderr) == (status, False), result.stderr
    assert says in result.stderr and result.stderr.count("\n") == bool(says)


def test_a_full_disk_elsewhere_is_not_said_of_standard_output(monkeypatch, capsys):
    """`write` of a file names none."""
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli, "_raise_on_interrupt", refuse)
    assert cli.main(["runs", "."]) == 1
    assert capsys.readouterr().err == "impala runs: No space left on device; expected room for what it writes\n"


def test_a_folder_that_cannot_be_read_is_listed_and_no_run(monkeypatch, tmp_path, capsys):
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(listing.os, "access", lambda path, mode: path.name != "closed")  # root may read all
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == ["closed", "cannot", "be", "read"]


def test_a_run_is_found_by_its_name(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "catch").mkdir(parents=True)
    for name in ("config.yaml", "metrics.csv"):
        (tmp_path / "runs" / "catch" / name).write_text("")
    for command in ("evaluate", "export", "plot"):
        (line,) = refused(capsys, command, "catch")
        assert line.endswith("; did you mean runs/catch?")


def test_a_key_that_looks_like_an_option_is_a_key(capsys):
    lines = refused(capsys, "cluster", "slurm", "catch", "--memory-growth", 3, "--time", "soon")
    assert not [line for line in lines if "memory-growth" in line]


def test_what_costs_its_square_is_not_told_a_size(capsys, tmp_path):
    keys = ["--network.core", "lstm", "--network.core-size", 1_000_000]
    (line,) = refused(capsys, *CATCH, "--run", tmp_path / "run", *keys)
    assert line.startswith("network.core_size=1000000: ") and line.endswith("; expected less")


@pytest.mark.parametrize("command", [["plot", "RUN", "--output", "RUN/a.png"], ["rollback", "RUN", "--updates", "1"]])
def test_what_cannot_be_read_or_written_is_one_line(capsys, tmp_path, monkeypatch, command):
    """Whoever runs the tests may be allowed to write anywhere, so the failure is the file system's own words."""
    def refuse(*_, **__):
        raise OSError(30, "Read-only file system", "/there")

    monkeypatch.setattr(runs, "held", refuse)
    monkeypatch.setattr("impala.monitoring.plots.draw", refuse)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()
    (run / "metrics.csv").write_text("frames,wall_seconds\n1,1\n")
    assert cli.main([word.replace("RUN", str(run)) for word in command]) == 1
    assert capsys.readouterr().err == "/there: Read-only file system; expected a file or folder that can be used\n"


def test_a_replay_larger_than_memory_is_refused(capsys, tmp_path):
    arguments = ["--replay.fraction", 0.5, "--replay.size", 10**9]
    (line,) = refused(capsys, *CATCH, "--run", tmp_path / "run", *arguments)
    most = int(re.fullmatch(r"replay.size=10{9}: chunks of \S+ MB may take .* MB of .*; expected at most (\d+)", line)[1])
    assert 10**4 < most < 10**9 and not (tmp_path / "run").exists()
    just_too_large = refused(capsys, *CATCH, "--run", tmp_path / "run", *arguments[:-1], int(1.01 * most))
    assert len(just_too_large) == 1 and "80 % of this machine's memory" in just_too_large[0]


def test_all_errors_at_once(capsys):
    lines = refused(capsys, *CATCH, "--learner.batch_szie", 4, "--seed", -1, "--loss.discount", 1.5)
    assert len(lines) == 3


@pytest.mark.parametrize(
    "arguments", [["trian"], ["evaluate"], ["evaluate", "nowhere"], ["plot"], ["plot", "nowhere"], ["runs", "nowhere"],
                  ["train"], ["compare"], ["train", "--config", "configs/pnog.yaml"]],
)  # fmt: skip
def test_wrong_commands(capsys, arguments):
    assert len(refused(capsys, *arguments)) == 1


def test_nearest_names_of_commands_and_files(capsys):
    assert refused(capsys, "trian") == ["impala trian: unknown command; did you mean train?"]
    assert refused(capsys, "lab")[0].startswith("impala lab: unknown command; expected one of train, evaluate, ")
    assert "did you mean pong.yaml?" in refused(capsys, "train", "--config", "configs/pnog.yaml")[0]


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"impala {importlib.metadata.version('impala')}\n"


def test_wrong_usage_is_refused_in_a_moment_and_without_tensorflow():
    code = (
        "import sys; from impala import cli; "
        "status = cli.main(['train', '--config', 'configs/catch.yaml', '--seed', 'x']); "
        "print(status, 'tensorflow' in sys.modules)"
    )
    started = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert result.stdout.strip() == "2 False"
    assert time.monotonic() - started < 5


def test_run_folders_that_cannot_be_used(capsys, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").touch()
    assert "holds 'thesis.tex' but no run" in refused(capsys, *CATCH, "--run", tmp_path / "other")[0]
    (tmp_path / "file").touch()
    assert "expected a folder" in refused(capsys, *CATCH, "--run", tmp_path / "file")[0]


def test_a_refused_folder_is_left_as_it_was(capsys, tmp_path):
    (tmp_path / "thesis.tex").touch()
    refused(capsys, *CATCH, "--run", tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_rows_without_a_checkpoint_are_not_overwritten_but_for_those_of_a_run_that_died_young(tmp_path):
    """As in docs/results, whose runs are kept without checkpoints."""
    catch, kept = config_lib.load("configs/catch.yaml"), tmp_path / "kept"
    kept.mkdir()
    (kept / "config.yaml").write_text(config_lib.dump(catch))
    (kept / "metrics.csv").write_text("updates,frames\n8,1440\n")
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    for config in (catch, config_lib.load("configs/catch.yaml", {"loss.discount": 0.5})):
        with pytest.raises(config_lib.ConfigError, match="has rows in metrics.csv and no checkpoint"):
            runs.RunFolder(kept, config)
        assert before == {path.name: path.read_bytes() for path in kept.iterdir()}
    (kept / "logs").mkdir()
    runs.RunFolder(kept, catch).close()
    with pytest.raises(config_lib.ConfigError, match="has rows in metrics.csv and no checkpoint"):
        runs.RunFolder(kept, config)
    assert not runs.RunFolder(kept, config, restart=True).is_resumed


def test_a_lock_that_another_host_holds_is_a_reason_to_try_again(tmp_path):
    """A file server may keep it for minutes after that host has died: a job that is queued again then waits."""
    config = config_lib.load("configs/catch.yaml")
    first = runs.RunFolder(tmp_path / "run", config)
    for host, status in ((platform.node(), 2), ("elsewhere", 75)):
        (tmp_path / "run" / "lock").write_text(f"process 7 on {host}")
        with pytest.raises(config_lib.ConfigError, match=f"in use by process 7 on {host}") as caught:
            runs.RunFolder(tmp_path / "run", config)
        assert caught.value.status == status
    first.close()


def test_restart_moves_the_old_run_aside(tmp_path):
    config = config_lib.load("configs/catch.yaml")
    first = runs.RunFolder(tmp_path / "run", config)
    (first.path / "metrics.csv").write_text("old")
    with pytest.raises(config_lib.ConfigError, match="in use by process"):
        runs.RunFolder(tmp_path / "run", config, restart=True)
    first.close()
    second = runs.RunFolder(tmp_path / "run", config, restart=True)
    assert not (second.path / "metrics.csv").exists() and not second.is_resumed
    (moved,) = Path(tmp_path).glob("run.*")
    assert (moved / "metrics.csv").read_text() == "old"


def test_a_folder_that_a_disk_is_mounted_on_cannot_be_moved_aside(capsys):
    with small_disk(100) as disk:
        runs.RunFolder(disk, config_lib.load("configs/catch.yaml")).close()
        (line,) = refused(capsys, *CATCH, "--run", disk, "--restart")
    assert line.startswith(f"--restart --run {disk}: Device or resource busy; expected a folder that can be renamed")


def test_only_budget_logging_and_learning_rate_may_change_on_resume():
    old = config_lib.load("configs/catch.yaml")
    allowed = {"total_frames": 5, "target_return": 0.5, "log_period_seconds": 9.0, "learner.learning_rate": 1e-5}
    assert runs.config_differences(old, config_lib.load("configs/catch.yaml", allowed)) == []
    changed = config_lib.load("configs/catch.yaml", {"learner.unroll_length": 5, "seed": 3})
    assert [line.split(":")[0] for line in runs.config_differences(old, changed)] == ["learner.unroll_length", "seed"]


def test_a_run_goes_on_with_the_defaults_that_it_began_with(tmp_path):
    """Runs until 32d4970 took each frame's mean off, and called that center_frames."""
    path = tmp_path / "mine.yaml"
    path.write_text('environment: {name: "atari:pong"}\nlearner: {batch_size: 4}\n')
    mine = config_lib.load(path)
    folder = tmp_path / "run"
    assert runs.as_begun(folder, mine) is mine, "there is no run"
    folder.mkdir()
    shutil.copy("docs/results/pong/config.yaml", folder)
    assert runs.as_begun(folder, mine) is mine, "nothing to resume"
    (folder / "checkpoints/0000000001.tmp").mkdir(parents=True)
    assert runs.as_begun(folder, mine) is mine, "killed while it wrote its first checkpoint"
    (folder / "checkpoints/0000000001").mkdir(parents=True)
    begun = runs.as_begun(folder, mine)
    assert (mine.network.normalisation, begun.network.normalisation) == ("median", "mean")
    kept = config_lib.load(folder / "config.yaml")
    assert begun == kept and runs.config_differences(kept, begun) == []
    set_by_somebody = runs.as_begun(folder, config_lib.load(path, {"network.normalisation": "raw", "seed": 0}))
    assert [d.split(":")[0] for d in runs.config_differences(kept, set_by_somebody)] == ["network.normalisation"]


def test_the_first_five_differences_are_named(capsys, tmp_path):
    folder = tmp_path / "run"
    runs.RunFolder(folder, config_lib.load("configs/catch.yaml"), restart=False).close()
    (folder / "checkpoints" / "0000000001").mkdir(parents=True)
    keys = ["network.core_size", "network.core", "actor.num_lanes", "replay.queue_size", "learner.unroll_length",
            "learner.batch_size", "loss.discount"]  # fmt: skip
    values = [32, "lstm", 1, 64, 5, 4, 0.5]
    options = [option for key, value in zip(keys, values) for option in (f"--{key}", value)]
    lines = refused(capsys, *CATCH, "--run", folder, *options)
    assert len(lines) == 5 and all("use another --run, or --restart" in line for line in lines)
    assert {line.split(":")[0] for line in lines} < set(keys)


def test_what_a_resumed_run_is_given_another_value_of_is_told_but_for_its_length(tmp_path):
    def folder(**keys):
        config = config_lib.load("configs/catch.yaml", {key.replace("__", "."): value for key, value in keys.items()})
        made = runs.RunFolder(tmp_path / "run", config)
        made.close()
        return made.is_resumed, made.changes

    assert folder(learner__learning_rate=1e-4) == (False, [])
    (tmp_path / "run/checkpoints/0000000001").mkdir(parents=True)
    (tmp_path / "run/checkpoints/0000000001/state.json").write_text("{}")
    assert folder(learner__learning_rate=1e-4, total_frames=10**7) == (True, [])
    assert folder(learner__learning_rate=2e-4) == (True, ["learner.learning_rate: was 0.0001, is 0.0002"])


def test_a_member_of_a_population_is_no_run_of_its_own(capsys, tmp_path):
    folder = tmp_path / "run"
    runs.RunFolder(folder, config_lib.load("configs/catch.yaml", {"population.size": 2})).close()
    line = f"--run {folder / 'member_1'}: is a member of a population; expected --run {folder}"
    assert refused(capsys, *CATCH, "--run", folder / "member_1") == [line]
    assert refused(capsys, *CATCH, "--run", folder / "member_1", "--restart") == [line] and (folder / "member_1").is_dir()


DROPPED = """
import signal, time
from impala import cli, training

signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored where the tests run in the background

class Loud:
    def __del__(self):
        raise {what}

cli._raise_on_interrupt()
try:
    Loud()
    time.sleep({seconds})
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("what, seconds, outcome", [("KeyboardInterrupt", 60, "interrupted"), ("ValueError", 0.2, "went on")])
def test_a_ctrl_c_that_python_drops_is_raised_again(what, seconds, outcome):
    """Python drops what is raised in a finalizer, as here, and in what it calls around a fork."""
    code = DROPPED.format(what=what, seconds=seconds)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"{outcome}\n" and ("Exception ignored" in done.stderr) == (what == "ValueError")


def test_a_run_into_which_an_earlier_launch_still_writes_is_not_moved_or_rolled_back(tmp_path, capsys):
    """Its learner may outlive a killed launcher by minutes, and writes by the folder's name."""
    folder, config = tmp_path / "run", config_lib.load("configs/catch.yaml")
    runs.RunFolder(folder, config).close()
    with (folder / "checkpoints.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        says = f"{folder}: a node of an earlier launch still writes there and holds {folder}/checkpoints.lock"
        with pytest.raises(config_lib.ConfigError, match=says) as caught:
            runs.RunFolder(folder, config, restart=True)
        assert caught.value.status == 75
        assert cli.main(["rollback", str(folder), "--updates", "1"]) == 75 and says in capsys.readouterr().err
    runs.RunFolder(folder, config, restart=True).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_first_launch_that_was_killed_while_it_wrote_its_configuration_is_no_obstacle(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml.tmp").write_text("half of it")
    runs.RunFolder(folder, config_lib.load("configs/catch.yaml")).close()


@pytest.mark.parametrize(
    "command", ["train", "evaluate", "export", "compare", "plot", "bench", "runs", "doctor"]
)  # fmt: skip
def test_every_command_explains_itself(capsys, command):
    assert cli.main([command, "--help"]) == 0
    assert f"usage: impala {command}" in capsys.readouterr().out


def test_paths_are_text_whatever_they_look_like(capsys):
    for name in ("2026_11_21", "1e3", "null", "5"):
        assert f"{name}: No such file" in refused(capsys, "train", "--config", name)[0]
        assert refused(capsys, "evaluate", name) == [f"{name}: holds no config.yaml; expected a run folder"]


def test_keys_may_stand_anywhere_and_values_may_be_negative(capsys, tmp_path):
    keys = ["--target-return", "-3e-4", "--seed=-2", "--config", "configs/catch.yaml", "--loss.discount", "-1"]
    lines = refused(capsys, "train", *keys, "--run", tmp_path / "run")
    assert {line.split(":")[0] for line in lines} == {"seed", "loss.discount"}


def test_help_names_every_key(capsys):
    assert cli.main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"--{key.replace('_', '-')}" in shown for key in config_lib.keys())
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0


@pytest.mark.parametrize("arguments, of", [
    (["dqn_catch"], " with program dqn and agent q_learning,"), (["--config", "configs/r2d2_catch.yaml"], " with program seed and agent r2d2,"),
    (["--program=seed", "--agent.name", "r2d2"], " with program seed and agent r2d2,"), (["--program", "seed"], " with program seed,"),
    (["catch"], " with program impala and agent actor_critic,"), (["catch", "--agent.name=q_unrolls"], " with program impala and agent q_unrolls,"),
    (["--config", "no such file"], ","),
])  # fmt: skip
def test_help_lists_the_keys_of_the_chosen_pair(capsys, arguments, of):
    for command in (["train", *arguments, "--help"], ["train", "--help", *arguments]):
        assert cli.main(command) == 0
        assert f"keys of a configuration{of}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments, expected", [
    (["bench", "--environment.name", "atari:pnog"], "did you mean atari:pong?"),
    (["bench", "--config", "configs/catch.yaml", "--network.torso", "shallow"], "expected mlp"),
    (["bench", "--json", "nowhere/bench.json"], "--json nowhere/bench.json: expected a file in a folder that exists"),
    (["bench", "--json", "configs"], "--json configs: expected a file in a folder that exists"),
    (["bench", "population"], "population.size=4: the bench runs one member; expected --population.size 1"),
    (["compare", "lag", "--output", "README.md"], "--output README.md: File exists; expected a folder that can be made"),
    (["compare", "lag", "--output", "README.md/x"], "--output README.md/x: Not a directory; expected a folder"),
    (["train", "catch", "--program", "dqn"], "expected no such key (it is set in catch.yaml; begin with dqn_catch or dqn_cartpole or dqn_minatar)"),
    (["train", "catch", "--agent.name", "q_unrolls"], "expected no such key (it is set in catch.yaml; begin with q_unrolls_catch or q_unrolls_pong)"),
    (["train", "catch", "--gamma", "0.9"], "gamma: unknown key; did you mean loss.discount?"),
    (["train", "catch", "--learner.lr", "0.1"], "learner.lr: unknown key; did you mean learner.learning_rate?"),
    (["train", "--config", "docs/results/lag/lag.png"], "lag.png: is no text; expected a YAML file"),
    (["compare", "--config", "configs/catch.yaml"], "configs/catch.yaml: is a configuration, not a grid; expected one with"),
    (["bench", "--jsno", "x.json"], "impala bench --jsno: unknown; did you mean --json?"),
    (["train", "--config", "configs/catch.yaml", "--rstart"], "impala train --rstart: unknown; did you mean --restart?"),
    (["evaluate", "runs", "--episodes", "0"], "--episodes: got '0'; a whole number, 1 or more, is needed; expected impala evaluate RUN"),
    (["evaluate", "runs", "--epsiodes", "3"], "impala evaluate --epsiodes: unknown; did you mean --episodes?"),
    (["compare", "--workers", "many", "--config", "x"], "--workers: got 'many'; a whole number"),
    (["doctor", "twice"], "impala doctor twice: unknown"),
    (["train", "--config", "configs/catch.yaml", "--loss.correction", "laser", "--loss.clip-rho", "0", "--loss.clip-c", "0"],
     "clip_rho=0.0; expected more than 0"),
])  # fmt: skip
def test_every_command_refuses_before_it_starts(capsys, arguments, expected):
    (line,) = refused(capsys, *arguments)
    assert expected in line


def test_restart_moves_runs_aside_and_nothing_else(capsys, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (line,) = refused(capsys, *CATCH, "--run", tmp_path, "--restart")
    assert "holds 'thesis.tex' but no run" in line
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("key, value", [
    ("learner.unroll_length", 100_000), ("actor.num_actors", 1000), ("network.hidden_sizes", "[1000000, 1000000]"),
])  # fmt: skip
def test_what_memory_cannot_hold_is_refused_before_anything_starts(tmp_path, key, value):
    code = (
        "import sys; from impala import cli; "
        f"status = cli.main(['train', '--config', 'configs/catch.yaml', '--run', {str(tmp_path / 'run')!r}, "
        f"'--actor.num-environments', '10000', '--{key}', '{value}']); print(status, 'tensorflow' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == "2 False", result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{key}={value}: ") and "80 % of this machine's memory" in line
    assert not (tmp_path / "run").exists()


def listed(capsys, command):
    assert cli.main([command, "--list"]) == 0
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def test_every_shipped_configuration_has_its_word_and_a_line(capsys):
    files = {path.relative_to("configs").with_suffix("").as_posix() for path in Path("configs").rglob("*.yaml")}
    trainings, grids = listed(capsys, "train"), listed(capsys, "compare")
    assert trainings.keys() | {f"lab/{word}" for word in grids} == files and not trainings.keys() & grids.keys()
    assert grids.keys() == {"corrections", "lag", "lag_values", "q_schemes", "schemes", "schemes_equal", "schemes_minatar", "surface", "q_ages"} and {"pong", "catch", "lab/catch"} < trainings.keys()
    assert trainings["pong"] == "Pong on two cores." and all(len(text) <= 110 for text in (trainings | grids).values())
    for word in trainings:
        shipped = config_lib.shipped.path_of(word, config_lib.shipped.trainings(), "--config")
        assert config_lib.load(shipped) == config_lib.load(f"configs/{word}.yaml")


@pytest.mark.parametrize("arguments, expected", [
    (["train", "pnog"], "pnog: no shipped configuration; did you mean pong?"),
    (["compare", "lga"], "lga: no shipped configuration; did you mean lag?"),
    (["bench", "catch", "--against", "sede_catch"], "sede_catch: no shipped configuration; did you mean seed_catch?"),
    (["train", "zzz"], "zzz: no shipped configuration; expected one that --list names, or --config FILE"),
    (["train", "configs/pong.yaml"], "configs/pong.yaml: no shipped configuration; did you mean --config configs/pong.yaml?"),
    (["train", "--config", "pong"], "pong: No such file or directory; did you mean the shipped one, pong without --config?"),
    (["train", "catch", "pong"], "impala train catch … pong: expected one of the two"),
    (["train", "catch", "--environment.name", "catch,river_swim"], "environment.name: 'catch,river_swim' is no name; of several tasks expected a list, like [catch, river_swim]"),
    (["train", "pong", "--config", "x"], "impala train pong --config x: expected one of the two"),
    (["train"], "impala train: nothing named; expected a shipped configuration, like impala train pong (impala train --list names them), or --config FILE"),
    (["compare"], "impala compare: nothing named; expected a shipped configuration, like impala compare lag (impala compare --list names them), or --config FILE"),
    (["train", "catch", "--seed", "-1"], "seed: got -1; input should be greater than or equal to 0"),
    (["train", "corrections"], "corrections: no shipped configuration; corrections is a grid: impala compare corrections"),
    (["train", "lab/lag"], "lab/lag: no shipped configuration; lag is a grid: impala compare lag"),
    (["compare", "catch"], "catch: no shipped configuration; catch is no grid: impala train catch"),
    (["train", "--config", "configs/lab/lag.yaml"],
     "lag.yaml: is a grid, not a configuration; expected impala compare --config configs/lab/lag.yaml"),
    (["train", "--config", "configs/catch.yaml", "catch"], "impala train --config configs/catch.yaml … catch: expected one of the two"),
    (["train", "a3c", "--help"], "a3c: no shipped configuration; did you mean a3c_pong?"),
    (["train", "--program", "a3cc", "--help"], "--program a3cc: no such program; did you mean a3c?"),
    (["train", "pong", "--network.torso", "mlp"],
     "network.torso: 'mlp' takes vectors and boards, and atari:pong has observations of shape (84, 84); expected shallow, nature or resnet"),
    (["train", "--seed", "5", "catch"], "impala train … catch: a shipped configuration's word comes first; expected impala train catch …"),
])  # fmt: skip
def test_words_of_shipped_configurations(capsys, arguments, expected):
    assert refused(capsys, *arguments) == [expected]


def test_a_word_names_the_run(monkeypatch, capsys):
    folders = []
    monkeypatch.setattr(training, "main", lambda config, folder, **_: folders.append(str(folder)) or 0)
    for arguments in (["catch"], ["lab/catch"], ["--config", "configs/lab/catch.yaml"], ["--environment.name", "catch"]):
        assert cli.main(["train", *arguments, "--network.torso", "mlp"]) == 0
    assert folders == ["runs/catch", "runs/lab_catch", "runs/catch", "runs/run"]


@pytest.mark.parametrize("script, arguments, words", [
    ("local", ["catch", "--actor.num-actor", "3"], "actor.num_actor: unknown key"),
    ("cluster", ["127.0.0.1:9", "catch"], "--cluster 127.0.0.1:9: [Errno 111] Connection refused"),
])  # fmt: skip
def test_the_scripts_of_launch_are_the_command(script, arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"launch/{script}.py", *arguments, "--run", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(f"launch/{script}.py", run_name="__main__")
    assert end.value.code == 2 and words in capsys.readouterr().err


def test_a_folder_without_runs_is_said_to_have_none(tmp_path, capsys):
    assert cli.main(["runs", str(tmp_path)]) == 0 and capsys.readouterr().out == f"{tmp_path}: holds no runs\n"
    (tmp_path / "config.yaml").write_text("")
    assert cli.main(["runs", str(tmp_path)]) == 0 and "is a run itself" in capsys.readouterr().out
