"""What the commands that read a run say of damaged checkpoints, and that they go on with the one before."""

import pytest

from impala import Impala, cli, lockstep
from impala import config as config_lib
from impala.learning import checkpoints

NEWEST = "0000000002"


@pytest.fixture
def run(tmp_path):
    """Checkpoints of the updates 1 and 2."""
    settings = {"environment.name": "catch", "network.torso": "mlp", "network.hidden_sizes": [8], "learner.batch_size": 4}
    config = config_lib.build({}, settings)
    training = lockstep.Lockstep(config)
    folder = tmp_path / "runs" / "run"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config_lib.dump(config))
    saved = checkpoints.Checkpoints(
        folder / "checkpoints", network=training.network, optimizer=training.learner.optimizer
    )
    for _, _ in zip(range(2), training.updates()):
        saved.save(training.learner.num_updates, {"frames": training.frames})
    return folder


def damage(folder, *names):
    for name in names:
        path = folder / "checkpoints" / name / "state.json"
        path.write_text(path.read_text().replace('"frames": ', '"frames": 1'))


def output(command, capsys):
    status = cli.main([str(word) for word in command])
    said = capsys.readouterr()
    return status, said.out, said.err


SAID = f"{NEWEST} is damaged (state.json does not match its SHA-256); trying the one before"


def test_evaluate_plays_the_one_before_and_says_so(run, capsys):
    damage(run, NEWEST)
    status, out, err = output(["evaluate", run, "--episodes", 2], capsys)
    assert status == 0 and "weights of update 1" in out and SAID in err and len(err.splitlines()) == 1


def test_export_writes_the_one_before_and_says_so(run, capsys):
    damage(run, NEWEST)
    status, _, err = output(["export", run], capsys)
    assert status == 0 and SAID in err
    assert '"updates": 1' in (run / "export" / "impala.json").read_text()


def test_the_api_loads_the_one_before_says_so_and_renames_nothing(run, capsys):
    damage(run, NEWEST)
    agent = Impala.load(run)
    assert agent._lockstep.learner.num_updates == 1 and SAID in capsys.readouterr().err
    assert (run / "checkpoints" / NEWEST).is_dir()


def test_runs_says_from_where_it_would_resume(run, capsys):
    _, out, _ = output(["runs", run.parent], capsys)
    assert "stopped" in out and "damaged" not in out
    damage(run, NEWEST)
    _, out, _ = output(["runs", run.parent], capsys)
    assert "stopped" in out and out.endswith(f"checkpoint {NEWEST} is damaged: resumes from 0000000001\n")


def test_when_none_is_sound_every_command_says_so_in_a_line(run, capsys):
    damage(run, NEWEST, "0000000001")
    for command in ("evaluate", "export"):
        status, out, err = output([command, run], capsys)
        assert status == 1 and out == "" and "no sound checkpoint" in err.splitlines()[-1]
    with pytest.raises(checkpoints.NoSoundCheckpoint, match="0000000001, 0000000002 could not be loaded"):
        Impala.load(run)
    status, out, _ = output(["runs", run.parent], capsys)
    assert status == 0 and "damaged" in out and "no checkpoint is sound" in out
