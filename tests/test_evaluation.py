"""`impala evaluate`: which episodes it plays."""

import contextlib
import json

import gymnasium
import pytest

from impala import Impala, cli, evaluation
from impala.acting import episodes
from impala.monitoring.logs import read_csv


class Endless(gymnasium.Env):
    """Every step brings 1, and none is the last."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 1.0, False, False, {}


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    return Impala("catch").save(tmp_path_factory.mktemp("agent") / "catch")


def test_the_first_evaluation_can_be_repeated_and_the_next_plays_other_episodes(catch):
    expected = Impala.load(catch).evaluate(episodes=64).scores
    played = [evaluation.evaluate(catch, num_episodes=64, greedy=False)[0]["scores"] for _ in range(3)]
    assert json.loads(played[0]) == expected and len(set(played)) == 3
    (catch / "evaluations.csv").unlink()
    assert evaluation.evaluate(catch, num_episodes=64, greedy=False)[0]["scores"] == played[0]


def test_evaluations_at_the_same_time_play_other_episodes(catch, tmp_path):
    """Their rows are written at the end, so that the number of rows says nothing of who plays."""
    played = []
    for holds in (False, True):
        (catch / "evaluations.csv").unlink(missing_ok=True)
        with evaluation._alone(catch) if holds else contextlib.nullcontext(True) as is_alone:
            assert is_alone
            played.append(evaluation.evaluate(catch, num_episodes=64, greedy=False)[0]["scores"])
    assert played[0] != played[1]


def test_an_environment_without_an_end_is_evaluated_and_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, "MAX_EPISODE_FRAMES", 30)
    folder = Impala(f"{__name__}:Endless").save(tmp_path / "agent")
    assert cli.main(["evaluate", str(folder), "--episodes", "32"]) == 0
    (row,) = read_csv(folder / "evaluations.csv")
    assert json.loads(row["scores"]) == 32 * [30.0]
