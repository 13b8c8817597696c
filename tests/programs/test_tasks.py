"""One network, several tasks: who plays what, what fits together, and a whole run of it."""

import numpy as np
import pytest

from impala import api
from impala import config as config_lib
from impala.monitoring.logs import read_csv
from impala.nodes import checking
from impala.types import ArraySpec, Discrete, EnvironmentSpec
from tests.programs import running

GAMES = ["atari:pong", "atari:boxing", "atari:breakout"]


def build(**overrides):
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return config_lib.build({}, {"environment.name": GAMES, "actor.num_lanes": 6, "actor.num_environments": 12} | keys)


@pytest.mark.parametrize("num_actors, num_lanes", [(1, 3), (1, 6), (3, 2), (2, 9)])
def test_every_task_gets_as_many_lanes(num_actors, num_lanes):
    config = build(actor__num_actors=num_actors, actor__num_lanes=num_lanes, actor__num_environments=2 * num_lanes)
    tasks = [config.task_of(actor, lane) for actor in range(num_actors) for lane in range(num_lanes)]
    assert np.bincount(tasks).tolist() == 3 * [num_actors * num_lanes // 3]


@pytest.mark.parametrize(
    "overrides, words",
    [
        (dict(actor__num_lanes=4), "4 lanes of all actors cannot be divided evenly among 3 tasks; expected a multiple of 3"),
        (dict(target_return=18.0), "target_return=18.0: a mean return over several tasks says little"),
        (dict(environment__name=["atari:pong", "atari:pong"]), "expected each name once"),
        (dict(environment__name=[]), "expected a name, or a list of names"),
        (dict(loss__popart=True, loss__correction="clear"), "clear clones values, which PopArt rescales"),
        (dict(loss__popart_step=0.0), "loss.popart_step: got 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(overrides, words):
    with pytest.raises(config_lib.ConfigError) as caught:
        build(**overrides)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "names, words",
    [
        (["atari:pong", "atari:breakout"], "one network cannot play atari:pong with actions Discrete(num_actions=6) and atari:breakout "
         "with Discrete(num_actions=4); expected environment.action_set: full"),
        (["catch", "river_swim"], "one network cannot play catch with actions"),
        (["atari:pong", "atari:pomg", "atari:brekout"], "did you mean atari:pong?"),
    ],
)  # fmt: skip
def test_tasks_that_are_not_alike_are_refused(names, words):
    config = build(environment__name=names, actor__num_lanes=6, network__torso="mlp" if names[0] == "catch" else "shallow")
    with pytest.raises(config_lib.ConfigError) as caught:
        checking.check(config)
    assert words in str(caught.value) and len(caught.value.lines) == 1 + ("atari:pomg" in names)


def test_tasks_of_other_parts_are_not_alike_though_as_large():
    one, other = (
        EnvironmentSpec(name, ArraySpec((6,), np.float32), actions=Discrete(2), parts=parts)
        for name, parts in (("a", (("x", ArraySpec((2,), np.float32)), ("y", ArraySpec((4,), np.float32)))),
                            ("b", (("x", ArraySpec((3,), np.float32)), ("y", ArraySpec((3,), np.float32)))))
    )  # fmt: skip
    checking._check_alike([one, one])
    with pytest.raises(config_lib.ConfigError, match="one network cannot play a with parts"):
        checking._check_alike([one, other])


def test_the_full_action_set_unites_games():
    spec = checking.check(build(environment__action_set="full"))
    assert spec.actions.num_actions == 18 and spec.name == ", ".join(GAMES)


def check_shares(folder, names, total_frames, slack=0):
    """Equal shares of frames, a row for each task, and episodes of both."""
    rows = read_csv(folder / "tasks.csv")
    assert [row["environment"] for row in rows[-2:]] == names
    frames = np.array([int(row["frames"]) for row in rows[-2:]])
    # Episodes that end mask a transition each; else one round of chunks is all that the games can be apart.
    assert frames.sum() == int(read_csv(folder / "metrics.csv")[-1]["frames"]) >= total_frames
    assert np.ptp(frames) <= 0.02 * frames.sum() + slack, frames
    assert "1" in {row["task"] for row in read_csv(folder / "episodes.csv")}


def test_a_run_of_two_tasks(tmp_path):
    names = ["catch", running.PACED[1]]
    result = running.run(
        *running.CATCH, "--environment.name", f"[{', '.join(names)}]", "--run", tmp_path / "run", "--loss.popart", "true",
        "--actor.num-lanes", 2, "--total-frames", 8_000, "--target-return", "null", "--log-period-seconds", 1,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    check_shares(tmp_path / "run", names, 8_000, slack=16 * 20)  # a round of one task's chunks


@pytest.mark.soak
def test_a_run_of_two_games(tmp_path):
    """In processes: their shares, and an evaluation of both."""
    games = ["atari:space_invaders", "atari:breakout"]  # soon over
    result = running.run(
        "train", "--environment.name", f"[{', '.join(games)}]", "--run", tmp_path / "run",
        "--environment.action-set", "full", "--loss.popart", "true", "--loss.reward-clipping", "none",
        "--actor.num-environments", 2, "--actor.num-lanes", 2, "--learner.batch-size", 2, "--log-period-seconds", 1,
        "--learner.unroll-length", 10, "--total-frames", 12_000,  # longer than the second between two reports
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    check_shares(tmp_path / "run", games, 12_000)
    evaluated = running.run("evaluate", tmp_path / "run", "--episodes", 1)
    assert evaluated.returncode == 0, evaluated.stderr[-2000:]
    assert all(f"{name}: " in evaluated.stdout for name in games) and "human-normalised: median" in evaluated.stdout
    agent = api.Impala.load(tmp_path / "run")
    assert agent.config.environment.tasks == tuple(games) and agent.evaluate(1, task=1).mean >= 0
    written = read_csv(tmp_path / "run" / "evaluations.csv")
    assert [row["environment"] for row in written] == games and all(row["human_normalised"] for row in written)
