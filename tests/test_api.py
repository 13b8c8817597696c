"""`Impala(…)` takes environments as other libraries do: a class, a function, one of gymnasium's making."""

import os

import gymnasium
import numpy as np
import pytest

from impala import Impala, evaluation
from impala import config as config_lib
from impala.config import ConfigError
from impala.environments import handed_in
from impala.environments.catch import Catch
from impala.learning import checkpoints


class Guess(gymnasium.Env):
    """Guess the bit that is shown; an episode is one guess."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, reward=1.0):
        self._reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bit = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._bit], {}

    def step(self, action):
        return np.zeros(2, np.float32), self._reward * (action == self._bit), True, False, {}


class Wider(Guess):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}


def line_of(call):
    with pytest.raises(ConfigError) as caught:
        call()
    (line,) = caught.value.lines
    return line


def test_a_class_is_learned():
    agent = Impala(Guess).learn(total_steps=10_000)
    assert agent.evaluate(episodes=30, greedy=True).mean > 0.9
    assert Impala(Guess).config.environment.name == agent.config.environment.name == "handed-in/Guess-v0"


def test_action_values_learn_from_unrolls_too():
    """The defaults are the actor-critic's; those that another agent has no use for are left out."""
    agent = Impala("catch", correction="retrace", overrides={"agent.name": "q_unrolls"})
    assert agent.learn(600).config.loss.correction == "retrace" and agent.config.learner.learning_rate == 3e-3


def test_an_evaluation_is_told_though_its_file_cannot_be_written(tmp_path, capsys):
    folder = Impala("catch").save(tmp_path / "agent")
    (folder / "evaluations.csv").mkdir()
    (row,) = evaluation.evaluate(folder, num_episodes=4, greedy=True)
    assert row["episodes"] == 4 and "evaluations.csv: Is a directory; the result is not kept" in capsys.readouterr().err


def test_numbers_that_make_no_sense_are_refused(tmp_path):
    agent = Impala("catch")
    for call in (
        lambda: agent.learn(-5), lambda: agent.learn(float("nan")), lambda: agent.learn("many"), lambda: agent.evaluate(0),
        lambda: agent.evaluate(2.5), lambda: agent.evaluate(task=1), lambda: agent.evaluate(task=-1), lambda: Impala("catch", lag=1.5),
        lambda: agent.learn(100, target_return="0.9"), lambda: agent.learn(100, target_return=float("nan")),
        lambda: Impala("catch", overrides=["seed"]), lambda: Impala("catch", overrides={1: 1}), lambda: agent.save(""),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="expected"):
            call()
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        agent.save(tmp_path / "file")
    (tmp_path / "agent.new").mkdir()
    agent.save(tmp_path / "agent")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["agent", "agent.new", "file"], "nothing else is touched"


def test_a_function_makes_every_copy_anew():
    made = []

    def make():
        made.append(gymnasium.wrappers.TimeLimit(Guess(reward=3.0), 10))
        return made[-1]

    agent = Impala(make).learn(total_steps=640)
    assert len(made) >= agent.config.learner.batch_size and len(set(map(id, made))) == len(made)
    assert set(agent.evaluate(episodes=30).scores) == {0.0, 3.0}


def test_functions_of_one_name_are_told_apart():
    names = {Impala(lambda reward=reward: Guess(reward)).config.environment.name for reward in (1.0, 2.0)}
    assert len(names) == 2


def test_one_of_gymnasiums_making_is_made_again_from_its_spec():
    assert Impala(gymnasium.make("CartPole-v1")).config.environment.name == "CartPole-v1"
    short = Impala(gymnasium.make("CartPole-v1", max_episode_steps=7)).learn(total_steps=640)
    assert max(short.evaluate(episodes=20).scores) == 7.0


@pytest.mark.parametrize("environment, expected", [
    (lambda: Guess(), "got one Guess, of which no copies can be made; expected a class or function: Impala(Guess)"),
    (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2), "expected a name, a gymnasium.Env class, or a function"),
    (lambda: Catch(num_environments=4), "expected it in Lockstep(environments=[…])"),
    (lambda: 5, "Impala: got int; expected a name, a gymnasium.Env class, or a function that makes one"),
    (lambda: dict, "cannot be made: The environment must inherit from the gymnasium.Env class"),
    (lambda: gymnasium.make("ale_py:ALE/Pong-v5"), "expected atari:pong"),
])  # fmt: skip
def test_what_cannot_be_played_is_one_line(environment, expected):
    assert expected in line_of(lambda: Impala(environment()))


def test_an_agent_of_a_class_is_saved_and_loaded_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(handed_in, "_made_by", {})
    gymnasium.registry.pop("handed-in/Guess-v0", None)
    agent = Impala(Guess).learn(total_steps=640)
    agent.save(tmp_path / "agent")
    loaded = Impala.load(tmp_path / "agent").learn(total_steps=320)
    gymnasium.registry.pop(handed_in._made_by.popitem()[0])  # as in another process
    assert "was handed in as a class or a function, which no file holds; expected Impala.load(" in line_of(
        lambda: Impala.load(tmp_path / "agent")
    )
    loaded = Impala.load(tmp_path / "agent", Guess)
    for one, other in zip(agent.network.trainable_variables, loaded.network.trainable_variables):
        np.testing.assert_array_equal(one, other)
    assert len(loaded.evaluate(episodes=4).scores) == 4
    Impala(Guess)  # another process may know another environment by that name
    monkeypatch.setattr(handed_in, "TOKEN", "another")
    assert "was handed in as a class or a function" in line_of(lambda: Impala.load(tmp_path / "agent"))
    assert len(Impala.load(tmp_path / "agent", Guess).evaluate(episodes=4).scores) == 4


def test_a_loaded_agent_goes_on_with_other_episodes_than_it_has_learned_from(tmp_path):
    def played(agent):
        batches = []
        agent.learn(total_steps=2 * 640, on_update=lambda update: batches.append(update.batch))
        boards = [np.asarray(batch.observation)[np.asarray(batch.is_first)] for batch in batches[:2]]
        return [of_batch[:, 0].argmax(-1) for of_batch in boards]  # the columns where balls begin

    agent = Impala("catch", overrides={"learner.batch_size": 16})
    first = played(agent)
    agent.save(tmp_path / "agent")
    again, once_more = (played(Impala.load(tmp_path / "agent")) for _ in range(2))
    for one, other, same in zip(first, again, once_more):
        assert np.mean(one == other) < 0.5 and len(one) >= 32 and np.array_equal(other, same)


def test_an_agent_of_another_environment_is_refused(tmp_path):
    Impala(Guess).save(tmp_path / "agent")
    with pytest.raises(checkpoints.OtherNetwork, match=r"saved \[2, 64\], now \[3, 64\]"):
        Impala.load(tmp_path / "agent", Wider)


def test_ids_are_valid_whatever_a_function_is_called():
    for name, expected in {"<lambda>": "lambda", "MyEnv-v3": "MyEnv", "…": "environment"}.items():
        assert handed_in._registered(name, lambda: Guess()).startswith(f"handed-in/{expected}-v")


@pytest.mark.parametrize(
    "program, agent",
    [("dqn", "q_learning"), ("apex", "q_learning"), ("a3c", "actor_critic"), ("gorila", "q_learning"), ("dppo", "ppo"), ("r2d2", "r2d2")],
)
def test_runs_that_do_not_learn_from_unrolls_are_refused(tmp_path, program, agent):
    config = config_lib.load(f"configs/{program}_catch.yaml")
    (tmp_path / "checkpoints" / "0000000001").mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(config_lib.dump(config))
    with pytest.raises(ConfigError) as caught:
        Impala.load(tmp_path)
    assert caught.value.lines == [
        f"Impala: program={config.program} with agent.name={agent}; expected one that learns from unrolls (impala, seed, ga3c); "
        "`impala evaluate` and `impala export` take runs of all programs"
    ]


class Interrupted(Guess):
    """Raises at each step whose number, over all copies, is in `at`."""

    at, num_steps = set(), 0

    def step(self, action):
        Interrupted.num_steps += 1
        if Interrupted.num_steps in Interrupted.at:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("lag", [0, 2])
def test_what_was_interrupted_while_it_played_learns_on(lag, monkeypatch):
    """As in a notebook, whose kernel is interrupted."""
    monkeypatch.setattr(Interrupted, "at", {700, 5_000})
    monkeypatch.setattr(Interrupted, "num_steps", 0)
    agent, updates = Impala(Interrupted, lag=lag, overrides={"learner.learning_rate_frames": 10_000}), []
    for total in (1_500, 8_000):
        before = len(updates)
        with pytest.raises(KeyboardInterrupt):
            agent.learn(total, on_update=updates.append)
        assert before < len(updates) and [update.index for update in updates] == list(range(1, len(updates) + 1))
    agent.learn(8_000, on_update=updates.append)
    assert all(np.isfinite(update.metrics["loss"]) for update in updates) and agent.evaluate(64).mean > 0.8
    for update in updates:
        assert set(update.batch.weights_version.numpy().ravel()) == {max(0, update.index - 1 - lag)}, "exact"


def test_numbers_of_numpys_and_large_batches_are_taken():
    assert Impala(Guess, overrides={"learner": {"batch_size": 64}}).config.learner.batch_size == 64
    agent = Impala(Guess, lag=np.int64(1), overrides={"learner.batch_size": 64})
    assert agent.learn(64 * 20 * 3).network is not None and type(agent._lag) is int
    agent = Impala(Guess, seed=np.int64(3), overrides={"learner.unroll_length": np.int32(10), "learner.learning_rate": np.float32(0.25)})
    assert (agent.config.seed, agent.config.learner.unroll_length, agent.config.learner.learning_rate) == (3, 10, 0.25)
    agent = Impala(Guess, overrides={"learner": {"unroll_length": np.int64(10)}, "network.hidden_sizes": [np.int64(8)]})
    assert (agent.config.learner.unroll_length, agent.config.network.hidden_sizes) == (10, (8,))
    assert "agent.name" in line_of(lambda: Impala(Guess, overrides={"agent.name": ["a"]}))


class Bytes(Guess):
    observation_space = gymnasium.spaces.Box(0, 255, (4,), np.uint8)

    def reset(self, **how):
        observation, info = super().reset(**how)
        return np.full(4, 255, np.uint8), info

    def step(self, action):
        return np.full(4, 255, np.uint8), *super().step(action)[1:]


def test_bytes_that_a_torso_takes_as_they_are_are_told_of(capsys):
    Impala(Bytes)
    assert "NOTE: network.torso=mlp takes observations as they are" in capsys.readouterr().err
    Impala("minatar:breakout")
    Impala(Guess)
    assert not capsys.readouterr().err


def test_a_member_of_a_population_plays_and_does_not_learn_on(tmp_path):
    agent = Impala(Guess)
    agent.save(tmp_path / "member_0")
    state = dict(frames=0, lag=0, process=handed_in.TOKEN, population={"factors": {"learning_rate": 0.1}})
    agent._checkpoints(tmp_path / "member_0").save(1, state)
    member = Impala.load(tmp_path / "member_0", Guess)
    assert len(member.evaluate(episodes=2).scores) == 2
    assert "a member of a population, whose learning rate" in line_of(lambda: member.learn(320))


def test_an_agent_is_not_saved_over_a_run(tmp_path):
    agent = Impala(Guess)
    assert agent.save(agent.save(tmp_path / "agent")) == tmp_path / "agent"
    for name in ("lock", "launches.json", "metrics.csv"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
        assert "holds a run of impala train; expected another folder" in line_of(lambda: agent.save(tmp_path / name))  # noqa: B023
        assert os.listdir(tmp_path / name) == [name]


@pytest.mark.parametrize("key, value, expected", [
    ("population.size", 4, "1"), ("learner.num_learners", 2, "1"), ("target_return", 1.0, "learn(target_return=…)"),
    ("evaluator.num_episodes", 20, "evaluate(episodes=…)"),
])  # fmt: skip
def test_what_one_process_does_not_do_is_refused(key, value, expected):
    section, _, name = key.rpartition(".")
    for overrides in ({key: value}, {section: {name: value}} if section else {key: value}):
        line = line_of(lambda: Impala(Guess, overrides=overrides))  # noqa: B023
        assert line == f"Impala: {key}={value}: all is done in this process; expected {expected}"


def test_what_is_set_and_changes_nothing_is_said(capsys):
    Impala(Guess, correction="none", overrides={"loss.lambda": 0.9, "learner.learning_rate_frames": 9_000})
    assert capsys.readouterr().err == "NOTE: loss.lambda=0.9 has no effect on training with loss.correction=none\n"


def test_a_function_in_place_of_a_corrections_name_is_refused():
    with pytest.raises(ConfigError, match="correction=<function .*expected a word, or 'package.module:name' of your own"):
        Impala("catch", correction=lambda **arguments: None)


def test_a_function_that_makes_the_same_object_again_is_refused():
    one = Guess()
    assert "copies are the same object; expected a new one each time" in line_of(lambda: Impala(lambda: one))


def test_an_agent_is_not_saved_where_no_checkpoint_would_be_found(tmp_path):
    assert "would find no checkpoint below a name with [" in line_of(lambda: Impala(Guess).save(tmp_path / "lr=[1e-3]"))
