"""Any gymnasium id: episode ends through a real TimeLimit, spaces, dtypes; and names."""

import contextlib
import subprocess
import sys
import time
import tracemalloc
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from impala import environments
from impala.environments import gymnasium_environment
from impala.types import ArraySpec, Continuous, Discrete, MultiDiscrete

SCRIPTED = "ImpalaTests/Scripted-v0"
HUGE = np.finfo(np.float32).max


class Scripted(gymnasium.Env):
    """Episode 0 terminates at step 3; episode 1 goes on; episode 2 terminates at step 5, its limit."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2, start=5)

    def __init__(self):
        self._episode, self.actions = -1, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._time += 1
        ends = {0: 3, 1: None, 2: 5}[self._episode % 3]
        return self._observe(), float(action), self._time == ends, False, {}

    def _observe(self):
        return np.array([self._episode, self._time], np.float64)


class Unsuitable(Scripted):
    def __init__(self, actions=None, observations=None):
        super().__init__()
        self.action_space = self.action_space if actions is None else actions
        self.observation_space = self.observation_space if observations is None else observations


@pytest.fixture(autouse=True, scope="module")
def registered():
    gymnasium.register(SCRIPTED, Scripted, max_episode_steps=5)
    spaces = gymnasium.spaces
    unsuitable = {
        "Table": dict(actions=spaces.Box(-1, 1, (2, 2))),
        "Words": dict(observations=spaces.Text(5)),
        "Idle": dict(actions=spaces.Tuple(())),
        "Blind": dict(observations=spaces.Dict()),
        "Dark": dict(observations=spaces.Tuple((spaces.Tuple(()),))),
    }
    for name, how in unsuitable.items():
        # gymnasium itself refuses an empty space, unless it is told not to look.
        gymnasium.register(f"ImpalaTests/{name}-v0", Unsuitable, kwargs=how, disable_env_checker=True)
    yield
    for name in (SCRIPTED, *(f"ImpalaTests/{name}-v0" for name in unsuitable)):
        gymnasium.registry.pop(name)


def test_termination_truncation_and_both():
    environment = environments.make(SCRIPTED, num_environments=2)
    steps = [environment.reset(0)]
    for _ in range(15):
        environment.send(np.array([0, 1], np.int32))
        steps.append(environment.receive())
    environment.close()
    one = {name: np.array([getattr(step, name)[1] for step in steps]) for name in steps[0]._fields}
    # episode 0: 3 steps, terminated; 1: 5 steps, truncated; 2: 5 steps, terminated at the limit
    time = [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]
    episode = [0] * 4 + [1] * 6 + [2] * 6
    np.testing.assert_array_equal(one["observation"], np.stack([episode, time], axis=1))
    assert one["observation"].dtype == np.float32
    np.testing.assert_array_equal(np.flatnonzero(one["is_last"]), [3, 9, 15])
    np.testing.assert_array_equal(np.flatnonzero(one["is_first"]), [0, 4, 10])
    np.testing.assert_array_equal(np.flatnonzero(one["discount"] == 0), [3, 15])
    # Actions 0 and 1 are the environment's 5 and 6; a reset brings nothing.
    np.testing.assert_array_equal(one["reward"], np.where(one["is_first"], 0.0, 6.0))
    assert steps[1].reward.tolist() == [5.0, 6.0]


class Unsound(Scripted):
    """Steps, counted over all episodes, whose reward or observation is not finite."""

    observation_space = gymnasium.spaces.Dict(time=gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64))

    def __init__(self, rewards=(), observations=()):
        super().__init__()
        self._rewards, self._observations, self._count = rewards, observations, 0

    def step(self, action):
        self._count += 1
        observation, reward, *ends = super().step(action)
        more = np.inf if self._count in self._observations else 0.0
        return dict(time=observation["time"] + more), np.nan if self._count in self._rewards else reward, *ends

    def _observe(self):
        return dict(time=super()._observe())


@pytest.fixture
def unsound():
    gymnasium.register("ImpalaTests/Unsound-v0", Unsound, disable_env_checker=True)
    yield lambda **keys: gymnasium.registry["ImpalaTests/Unsound-v0"].kwargs.update(keys)
    gymnasium.registry.pop("ImpalaTests/Unsound-v0")


def test_what_is_not_finite_ends_its_episode_alone(unsound):
    unsound(rewards=(2,), observations=(6,))
    environment = environments.make("ImpalaTests/Unsound-v0", num_environments=2)
    unsound(rewards=(), observations=())
    environment._environment.envs[1].unwrapped._rewards = environment._environment.envs[1].unwrapped._observations = ()
    steps = [environment.reset(0)]
    for _ in range(12):
        environment.send(np.array([0, 0], np.int32))
        steps.append(environment.receive())
    environment.close()
    broken, sound = ({name: [getattr(step, name)[i] for step in steps] for name in steps[0]._fields} for i in (0, 1))
    # Step 2 of episode 0 and step 4 of episode 1, the sixth of all, do not come; episode 2 ends with its fifth step.
    assert [o.tolist() for o in broken["observation"]] == [
        [0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3], [2, 4], [2, 5], [3, 0],
    ]  # fmt: skip
    assert np.flatnonzero(broken["is_first"]).tolist() == [0, 2, 6, 12]
    assert np.flatnonzero(broken["is_last"]).tolist() == np.flatnonzero(np.equal(broken["discount"], 0)).tolist() == [11]
    np.testing.assert_array_equal(broken["reward"], np.where(broken["is_first"], 0, 5))
    assert np.flatnonzero(sound["is_first"]).tolist() == [0, 4] and np.flatnonzero(sound["is_last"]).tolist() == [3]


def test_an_episode_that_ends_with_what_is_not_finite_is_given_up_like_another(unsound):
    unsound(rewards=(3,))
    environment = environments.make("ImpalaTests/Unsound-v0", num_environments=1)
    environment.reset(0)
    steps = []
    for _ in range(4):
        environment.send(np.array([0], np.int32))
        steps.append(environment.receive())
    assert [bool(step.is_first[0]) for step in steps] == [False, False, True, False]
    assert steps[-1].observation.tolist() == [[1, 1]] and not any(step.is_last.any() for step in steps)


@pytest.mark.parametrize("scripted_ends, count", [(False, 10), (True, 25)])
def test_now_and_then_is_an_error_if_no_episode_comes_to_its_end(unsound, monkeypatch, scripted_ends, count):
    """Every third step of an environment, of which an episode may take three."""
    monkeypatch.setattr(gymnasium_environment, "_WITHIN_STEPS", 25)  # ten take 27
    unsound(rewards=range(3, 1000, 5 if scripted_ends else 3))
    environment = environments.make("ImpalaTests/Unsound-v0", num_environments=1)
    if scripted_ends:  # after one step, so that those between two faults do
        monkeypatch.setattr(Scripted, "step", lambda self, action: (self._observe(), 1.0, True, False, {}))
    environment.reset(0)

    def play(num_steps):
        for _ in range(num_steps):
            environment.send(np.zeros(1, np.int32))
            environment.receive()

    if scripted_ends:
        return play(200)
    play(3 * count - 1)
    with pytest.raises(RuntimeError, match="in 10 episodes in a row; mend the environment"):
        play(1)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_reward_that_float32_does_not_hold_gives_an_episode_of_pictures_up(unsound):
    environment = environments.make("ImpalaTests/Unsound-v0", num_environments=2)
    environment.reset(0)
    environment._observe = lambda observation: np.zeros((2, 3, 3), np.uint8)
    pictures, rewards = {"time": np.zeros((2, 2))}, np.array([1e39, 1.0])
    environment._result = pictures, rewards, np.zeros(2, bool), np.zeros(2, bool), {}
    step = environment.receive()
    assert step.is_first.tolist() == [True, False] and step.reward.tolist() == [0.0, 1.0]
    assert step.observation.dtype == np.uint8


def test_the_tenth_episode_that_is_given_up_is_an_error(unsound):
    unsound(rewards=range(1, 100))
    environment = environments.make("ImpalaTests/Unsound-v0", num_environments=3)
    environment.reset(0)
    with pytest.raises(RuntimeError, match="Unsound-v0: environment 0, 1, 2: a reward or observation is not finite, as float32, 10 times"):
        for count in range(10):
            environment.send(np.zeros(3, np.int32))
            environment.receive()
    assert count == 3, "each step gives up three of them"


def test_cartpole_is_truncated_at_its_limit_with_discount_one():
    """A hand-written balancer holds the pole for 500 steps."""
    environment = environments.make("CartPole-v1", num_environments=2)
    step, last = environment.reset(0), None
    for t in range(1, 502):
        x, v, angle, rate = step.observation.T
        environment.send((angle + 0.5 * rate + 0.05 * x + 0.1 * v > 0).astype(np.int32))
        step = environment.receive()
        if step.is_last.any():
            last = last or (t, step)
    environment.close()
    t, step = last
    assert t == 500 and step.is_last.all() and (step.discount == 1).all()


class Corridor(gymnasium.Env):
    """Three rooms, numbered from 4; every step leads to the next."""

    observation_space, action_space = gymnasium.spaces.Discrete(3, start=4), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._room = 4
        return self._room, {}

    def step(self, action):
        self._room += 1
        return self._room, 1.0, self._room == 6, False, {}


def test_mujoco_is_served():
    environment = environments.make("Hopper-v5", num_environments=2)
    assert environment.spec.observation == ArraySpec((11,), np.float32)
    assert environment.spec.actions == Continuous(3)
    steps = [environment.reset(0)]
    for _ in range(200):
        environment.send(np.full((2, 3), 0.1, np.float32))
        steps.append(environment.receive())
    environment.close()
    falls = sum((step.is_last & (step.discount == 0)).sum() for step in steps)
    assert falls >= 2 and all(np.isfinite(step.observation).all() for step in steps)


def test_one_of_n_states_is_seen_as_one_hot():
    gymnasium.register("ImpalaTests/Corridor-v0", Corridor)
    environment = environments.make("ImpalaTests/Corridor-v0", num_environments=2)
    gymnasium.registry.pop("ImpalaTests/Corridor-v0")
    assert environment.spec.observation == ArraySpec((3,), np.float32)
    step = environment.reset(0)
    for room in (0, 1, 2, 0, 1):
        assert step.observation.dtype == np.float32
        np.testing.assert_array_equal(step.observation, np.eye(3)[[room, room]])
        environment.send(np.array([0, 1], np.int32))
        step = environment.receive()


class Symbols(Scripted):
    """What it observes is given."""

    def __init__(self, space, observation):
        super().__init__()
        self.observation_space, self._observation = space, observation

    def _observe(self):
        return self._observation


@contextlib.contextmanager
def symbols(space, observation, n=2):
    gymnasium.register("ImpalaTests/Symbols-v0", Symbols, kwargs=dict(space=space, observation=observation))
    try:
        environment = environments.make("ImpalaTests/Symbols-v0", num_environments=n)
    finally:
        gymnasium.registry.pop("ImpalaTests/Symbols-v0")
    yield environment
    environment.close()


@pytest.mark.parametrize(
    "space, observation, expected",
    [
        (gymnasium.spaces.MultiDiscrete([3, 2]), np.array([2, 0]), [0, 0, 1, 1, 0]),
        (gymnasium.spaces.MultiDiscrete([2, 3], start=[5, -1]), np.array([6, -1]), [0, 1, 1, 0, 0]),
        (gymnasium.spaces.MultiDiscrete([[2, 2], [2, 3]]), np.array([[0, 1], [1, 2]]), [1, 0, 0, 1, 0, 1, 0, 0, 1]),
        (gymnasium.spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (gymnasium.spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]], np.int8), [[1, 0], [0, 1]]),
        (
            gymnasium.spaces.Dict(a=gymnasium.spaces.MultiBinary(2), b=gymnasium.spaces.MultiDiscrete([2, 2])),
            dict(a=np.array([0, 1], np.int8), b=np.array([1, 0])), [0, 1, 0, 1, 1, 0],
        ),
    ],
)  # fmt: skip
def test_several_states_are_seen_as_one_hots_and_bits_as_numbers(space, observation, expected):
    with symbols(space, observation) as environment:
        assert environments.fault(environment) is None
        assert environment.spec.observation == ArraySpec(np.shape(expected), np.float32)
        seen = environment.reset(0).observation
        assert seen.dtype == np.float32
        np.testing.assert_array_equal(seen, [expected, expected])


@pytest.mark.parametrize("space", [gymnasium.spaces.MultiDiscrete([3, 2]), gymnasium.spaces.MultiBinary(2)])
def test_states_that_there_are_not_are_found_before_a_run(space):
    with symbols(space, np.array([1, 2], space.dtype), n=1) as environment:
        assert environment.fault(2).startswith("observation is array([1, 2]") and environment.fault(2).endswith(f"one of {space}")


def test_a_space_of_many_states_takes_no_memory():
    tracemalloc.start()
    try:
        with symbols(gymnasium.spaces.Discrete(5_000), 1_234) as environment:
            seen = environment.reset(0).observation
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert seen.shape == (2, 5_000) and (seen.argmax(axis=1) == 1_234).all() and (seen.sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    "name, what",
    [("Table", "Box"), ("Words", "Text"), ("Idle", r"Tuple\(\)"), ("Blind", r"Dict\(\)"), ("Dark", r"Tuple\(Tuple\(\)\)")],
)
def test_refuses_spaces_it_cannot_serve(name, what):
    with pytest.raises(ValueError, match=f"ImpalaTests/{name}-v0.*{what}.*expected a Box, Discrete, .*none of them empty"):
        gymnasium_environment.Gymnasium(f"ImpalaTests/{name}-v0", num_environments=1)


class Faithful(Scripted):
    """Keeps the actions that reach it."""

    seen = []

    def __init__(self, actions):
        super().__init__()
        self.action_space = actions

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen.append(np.array(action))
        return self._observe(), 0.0, False, False, {}


@pytest.mark.parametrize(
    "space, actions, given, expected",
    [
        (gymnasium.spaces.Discrete(3, start=2), Discrete(3), [0, 2], [2, 4]),
        (gymnasium.spaces.MultiDiscrete([2, 3]), MultiDiscrete((2, 3)), [[1, 2], [0, 1]], [[1, 2], [0, 1]]),
        (gymnasium.spaces.MultiDiscrete([2, 3], start=[5, -1]), MultiDiscrete((2, 3)), [[1, 2], [0, 0]], [[6, 1], [5, -1]]),
        (gymnasium.spaces.MultiBinary(2), MultiDiscrete((2, 2)), [[1, 0], [0, 1]], [[1, 0], [0, 1]]),
        (gymnasium.spaces.Box(np.float32([-2, 0]), np.float32([2, 10])), Continuous(2), [[0.5, 0.5], [-9, 9]], [[1.0, 7.5], [-2, 10]]),
        (gymnasium.spaces.Box(-np.inf, np.inf, (2,)), Continuous(2), [[0.5, -3.0], [7, 0]], [[0.5, -3.0], [7, 0]]),
        (gymnasium.spaces.Box(0, np.inf, (2,)), Continuous(2), [[0.5, -3.0], [7, 0]], [[0.5, 0.0], [7, 0]]),
        (gymnasium.spaces.Box(-3, np.float32(0.2), (2,)), Continuous(2), [[1, -1], [0, 9]], [[0.2, -3], [-1.4, 0.2]]),
        (gymnasium.spaces.Box(-2, 2, (2,), np.int64), Continuous(2), [[1, 0.4], [-0.3, -0.9]], [[2, 1], [-1, -2]]),
        (gymnasium.spaces.Box(0, 255, (2,), np.uint8), Continuous(2), [[1, -1], [0.999, -9]], [[255, 0], [255, 0]]),
        (gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.int64), Continuous(2), [[0.6, -3], [7, 0]], [[1, -3], [7, 0]]),
        (gymnasium.spaces.Box(-HUGE, HUGE, (2,)), Continuous(2), [[1, -1], [0, 0.5]], [[HUGE, -HUGE], [0, HUGE / 2]]),
    ],
)  # fmt: skip
def test_actions_reach_the_space_they_are_meant_for(space, actions, given, expected):
    gymnasium.register("ImpalaTests/Faithful-v0", Faithful, kwargs=dict(actions=space))
    try:
        environment = environments.make("ImpalaTests/Faithful-v0", num_environments=2)
        assert environment.spec.actions == actions
        environment.reset(0)
        Faithful.seen.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            environment.send(np.array(given, actions.array.dtype))
        np.testing.assert_allclose(Faithful.seen, expected)
        environment.close()
    finally:
        gymnasium.registry.pop("ImpalaTests/Faithful-v0")


def test_scaled_actions_stay_within_bounds_whatever_their_rounding():
    random = np.random.default_rng(0)
    low, high = random.uniform(-5, 0, 1000).astype(np.float32), random.uniform(0, 5, 1000).astype(np.float32)
    space = gymnasium.spaces.Box(low, high)
    for action in (np.ones(1000), -np.ones(1000), random.uniform(-1, 1, 1000)):
        scaled = gymnasium_environment._scale(space, action.astype(np.float32))
        assert space.contains(scaled)
    np.testing.assert_array_equal(gymnasium_environment._scale(space, np.ones(1000, np.float32)), space.high)


@pytest.mark.parametrize("name", ["catch", "atari:pong", "atari:ms_pacman", "CartPole-v1", SCRIPTED])
def test_known_names(name):
    assert environments.check_name(name) is None


@pytest.mark.parametrize(
    "name, near",
    [
        ("atari:pomg", "atari:pong"),
        ("atari:Breakout", "atari:breakout"),
        ("atari:mspacman", "atari:ms_pacman"),
        ("CartPole-v11", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("Catch", "catch"),
    ],
)
def test_unknown_names_come_with_the_nearest(name, near):
    line = environments.check_name(name)
    assert "\n" not in line and repr(name) in line and line.endswith(f"did you mean {near}?")


@pytest.mark.parametrize("game", ["combat", "joust", "maze_craze", "warlords"])
def test_games_for_two_are_refused_before_they_end_the_process(game):
    line = environments.check_name(f"atari:{game}")
    assert line == f"environment.name: 'atari:{game}' is for two players, which ale-py does not load; expected a game for one"


def test_a_name_like_nothing_is_refused_without_a_guess():
    line = environments.check_name("qqqqqqqqqqqqqqqqqqqqqqqqq")
    assert "is unknown" in line and "did you mean" not in line
    assert environments.check_name("") is not None


def test_names_are_checked_fast_and_without_tensorflow():
    code = """if True:
        import sys
        from impala import environments
        assert environments.check_name("atari:pomg") and environments.check_name("CartPol-v1")
        assert environments.check_name("atari:pong") is None and environments.check_name("CartPole-v1") is None
        heavy = {"tensorflow", "reverb", "launchpad"} & set(sys.modules)
        assert not heavy, heavy"""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)
    assert time.monotonic() - started < 15  # about 0.5 s; TensorFlow alone takes 5 s and more


@pytest.mark.parametrize(
    "name, game",
    [
        ("ALE/Pong-v5", "pong"), ("ale_py:ALE/Pong-v5", "pong"), ("PongNoFrameskip-v4", "pong"), ("PongDeterministic-v4", "pong"), ("Pong-v4", "pong"),
        ("Pong-ram-v0", "pong"), ("Pong-ramNoFrameskip-v4", "pong"), ("pong", "pong"), ("ALE/MsPacman-v5", "ms_pacman"),
        ("SpaceInvadersNoFrameskip-v4", "space_invaders"), ("UpNDown-v4", "up_n_down"), ("TicTacToe3D-v5", "tic_tac_toe_3d"),
    ],
)  # fmt: skip
def test_gymnasiums_names_of_atari_games_lead_to_ours(name, game):
    for _ in range(2):  # the first look imports ale_py, which registers some of them
        assert environments.check_name(name).endswith(f"{name!r} is an Atari game; expected atari:{game}")
    assert environments.check_name(f"atari:{game}") is None


def test_an_id_of_another_package_is_led_to_the_module_that_registers_it():
    line = environments.check_name("MiniGrid-Empty-5x5-v0")
    assert line.endswith("with the module that registers it: my_package.my_module:MiniGrid-Empty-5x5-v0")
    assert "did you mean" not in line
    assert environments.check_name("minigrid:MiniGrid-Empty-5x5-v0") is None
    assert environments.check_name("CartPole-v9").endswith("did you mean CartPole-v1?")
    assert "did you mean" not in environments.check_name("ALE/Pnog-v5")
    assert environments.check_name("Blackjack-v1") is None  # registered, and an Atari game besides
