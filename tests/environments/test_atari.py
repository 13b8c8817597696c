"""Atari: lives, scores, episode ends and the six protocols, on the emulator itself."""

import functools

import ale_py
import numpy as np
import pytest
from ale_py import roms

from impala.acting import actors, chunks, policies
from impala.environments import atari
from impala.types import Origin

FIRE = 1


class Watched(atari.Atari):
    """Also keeps the emulator's own account of each step: `lives` and `frame`, of the running game."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._environment.recv = self._noting(self._environment.recv)
        self._environment.reset = self._noting(self._environment.reset)

    def _noting(self, function):
        def call(*args, **kwargs):
            *rest, info = function(*args, **kwargs)
            self.lives, self.frame = np.array(info["lives"]), np.array(info["episode_frame_number"])
            return *rest, info

        return call


def play(environment, policy, num_steps, seed=0):
    """Returns Step fields and the emulator's lives and frame, each [num_steps + 1, N]."""
    step = environment.reset(seed)
    rows = [(*step[1:], environment.lives, environment.frame)]
    for t in range(num_steps):
        environment.send(policy(t))
        rows.append((*environment.receive()[1:], environment.lives, environment.frame))
    names = ("reward", "discount", "is_first", "is_last", "lives", "frame")
    return {name: np.stack(column) for name, column in zip(names, zip(*rows))}


@functools.lru_cache
def fired(protocol):
    """Breakout with a paddle that stays and fires, which loses a life every few steps."""
    environment = Watched("breakout", num_environments=3, protocol=protocol)
    game = play(environment, lambda t: np.full(3, FIRE), 260)
    environment.close()
    return game


def lives_lost(game):
    """[steps, N]: one life less, and the game goes on."""
    less = np.zeros_like(game["is_last"])
    less[1:] = (game["lives"][1:] < game["lives"][:-1]) & (game["lives"][1:] > 0)
    return less


def test_a_lost_life_ends_the_learning_episode_and_the_game_goes_on():
    game = fired("paper2018")
    lost = lives_lost(game)
    assert lost.sum() >= 8
    assert (game["discount"][lost] == 0).all()
    assert not game["is_last"][lost].any()
    after = np.roll(lost, 1, axis=0)
    assert not game["is_first"][after].any()
    assert (game["frame"][after] > game["frame"][lost]).all(), "the emulator was not reset"


def test_discount_is_zero_at_lost_lives_and_game_over_only():
    game = fired("paper2018")
    np.testing.assert_array_equal(game["discount"] == 0, lives_lost(game) | game["is_last"])


def test_game_over_ends_the_episode():
    game = fired("paper2018")
    assert game["is_last"].any(axis=0).all()
    assert (game["lives"][game["is_last"]] == 0).all()
    first = game["is_first"][1:]
    assert (game["lives"][1:][first] == 5).all()
    np.testing.assert_array_equal(first, game["frame"][1:] < game["frame"][:-1])  # is_first where the emulator restarts


@pytest.mark.parametrize("protocol", ["machado2018", "cleanba", "r2d2"])
def test_a_lost_life_is_nothing_where_the_protocol_says_so(protocol):
    game = fired(protocol)
    lost = lives_lost(game)
    assert lost.sum() >= 8
    assert (game["discount"][lost] == 1).all()
    np.testing.assert_array_equal(game["discount"] == 0, game["is_last"])
    assert game["is_last"].any()
    np.testing.assert_array_equal(game["is_first"][1:], game["frame"][1:] < game["frame"][:-1])


def plain_screen(*actions):
    """The screen of Breakout on the bare emulator after actions of a frame each; a step shows the last two frames' maximum."""
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(roms.get_rom_path("breakout"))
    screens = [emulator.getScreenRGB()]
    for action in actions:
        emulator.act(action)
        screens.append(emulator.getScreenRGB())
    return screens[-1], np.maximum(*screens[-2:])


@pytest.mark.parametrize("seed", range(3))
def test_where_fire_stands_at_the_start_of_a_game(seed):
    """The first observations are those of a plain emulator, frame for frame."""
    noop, fire, right = 0, FIRE, 2  # of the game's own actions; the emulator's right is 3
    environment = Watched("breakout", num_environments=1, protocol="paper2018", with_picture=True)
    environment.reset(seed)
    count = int(environment.frame[0])
    np.testing.assert_array_equal(environment.picture(), plain_screen(fire, *[noop] * (count - 1))[0])
    environment.close()

    environment = Watched("breakout", num_environments=1, protocol="baselines", with_picture=True)
    environment.reset(seed)
    count = int(environment.frame[0])
    np.testing.assert_array_equal(environment.picture(), plain_screen(*[noop] * count)[0])
    start, expected = [noop] * count + [fire] * 4, (True, False)
    for actions in (start, start + [3] * 4):
        environment.send(np.array([right]))  # FIRE instead at first
        step = environment.receive()
        np.testing.assert_array_equal(environment.picture(), plain_screen(*actions)[1])
        assert bool(step.is_first[0]) == expected[0]
        expected = expected[1:]
    environment.close()


def test_a_game_that_begins_with_our_fire_has_two_first_steps_that_bring_nothing():
    game = fired("baselines")
    first, restarted = game["is_first"], np.zeros_like(game["is_first"])
    restarted[0], restarted[1:] = True, game["frame"][1:] < game["frame"][:-1]
    assert restarted[1:].any(axis=0).all()
    after = np.roll(restarted, 1, axis=0)
    np.testing.assert_array_equal(first, restarted | after)
    np.testing.assert_array_equal(restarted[1:], game["is_last"][:-1])
    assert (game["frame"][after] == game["frame"][restarted][: after.sum()] + 4).all()
    assert not game["reward"][first].any() and (game["discount"][first] == 1).all() and not game["is_last"][first].any()
    lost = lives_lost(game)
    assert lost.sum() >= 8 and (game["discount"][lost] == 0).all()


def test_fire_after_a_lost_life_is_a_step_whose_action_has_no_effect():
    """A paddle that never fires loses one life only, and all five where FIRE is pressed for it."""
    games = {}
    for protocol in ("baselines", "rllib"):
        environment = Watched("breakout", num_environments=3, protocol=protocol)
        games[protocol] = play(environment, lambda t: np.zeros(3, int), 400)
        environment.close()
    assert lives_lost(games["baselines"]).sum(axis=0).tolist() == [1, 1, 1] and not games["baselines"]["is_last"].any()
    game = games["rllib"]
    lost = lives_lost(game)
    assert lost.sum() >= 12 and game["is_last"].any(axis=0).all()
    assert (game["discount"][lost] == 0).all() and not (game["is_first"] & np.roll(lost, 1, axis=0)).any()


def test_a_game_without_fire_begins_with_one_first_step():
    environment = atari.Atari("freeway", num_environments=1, protocol="baselines")
    assert environment.reset(0).is_first.all()
    environment.send(np.zeros(1, int))
    assert not environment.receive().is_first.any()
    environment.close()


def test_two_first_steps_are_no_episode_and_no_transition():
    """What acts, scores and writes makes one episode of a game and masks what led to both of its first steps."""
    environment, chunks_made = atari.Atari("breakout", num_environments=2, protocol="baselines"), []
    outputs = lambda window, is_first: (np.zeros((2, 4), np.float32), np.zeros(2, np.float32))  # noqa: E731
    policy = policies.FeedForwardPolicy(outputs, environment.spec, 2, seed=0)
    writer = chunks.UnrollWriter(
        environment.spec, 2, unroll_length=20, origin=Origin(0, 0, 0, 0, 0), sink=chunks_made.extend
    )
    finished, actor = [], actors.Actor(environment, policy, writer, lambda: 0, unroll_length=20)
    for _, episodes in zip(range(1_500), actor.steps(0)):
        finished += episodes
    environment.close()
    assert len(finished) >= 4 and min(episode.num_steps for episode in finished) > 50
    by_environment = [np.concatenate([np.asarray(c.is_first)[1:] for c in chunks_made[i::2]]) for i in range(2)]
    for i, is_first in enumerate(by_environment):
        games = [episode for episode in finished if episode.environment == i]
        starts = np.flatnonzero(is_first[:-1] & is_first[1:])
        assert len(starts) >= len(games) - 1
        assert is_first.sum() in (2 * len(starts) + 1, 2 * len(starts) + 2), "the first of all is no transition's end"
        assert games[0].num_steps == starts[0] - 1, "between the second first step, 0, and the last one"
        for game, a, b in zip(games[1:], starts, starts[1:]):
            assert game.num_steps == b - a - 2
    reward = sum(np.asarray(c.r_t)[np.asarray(c.is_first)[1:]].sum() for c in chunks_made)
    assert reward == 0


def test_a_life_that_was_won_may_be_lost_again():
    """Ms. Pac-Man gives one at 10,000 points, out of reach of a test: this part of the emulator's report is scripted."""
    environment = atari.Atari("ms_pacman", num_environments=1)
    environment.reset(0)
    game = []
    #            lives, terminated: 3 at the start, one won, one lost, the others lost, the last one, reset
    for lives, terminated in [(3, 0), (4, 0), (3, 1), (2, 1), (1, 1), (0, 1), (3, 0)]:
        report = np.zeros((1, 1, 84, 84)), np.zeros(1), np.array([terminated > 0]), np.array([False])
        environment._environment.recv = lambda report=report, lives=lives: (*report, {"lives": np.array([lives])})
        step = environment.receive()
        game.append((int(step.discount[0]), bool(step.is_last[0]), bool(step.is_first[0])))
    go_on, lost, over, start = (1, False, False), (0, False, False), (0, True, False), (1, False, True)
    assert game == [go_on, go_on, lost, lost, lost, over, start]


@pytest.mark.parametrize("protocol", ["paper2018", "machado2018"])
def test_episodes_start_where_the_emulator_restarts_in_a_game_with_a_death_scene(protocol):
    """In Qbert the last life is gone some time before the game is over; an episode must not end twice."""
    environment = Watched("qbert", num_environments=3, protocol=protocol)
    random = np.random.default_rng(0)
    game = play(environment, lambda t: random.integers(6, size=3), 420)
    environment.close()
    assert game["is_first"][1:].sum() >= 2
    np.testing.assert_array_equal(game["is_first"][1:], game["frame"][1:] < game["frame"][:-1])


@pytest.mark.parametrize("protocol", ["paper2018", "r2d2"])
def test_rewards_are_the_games_own(protocol):
    environment = atari.Atari("ms_pacman", num_environments=2, protocol=protocol)
    random = np.random.default_rng(0)
    environment.reset(0)
    rewards = []
    for _ in range(100):
        environment.send(random.integers(environment.spec.actions.num_actions, size=2))
        rewards.append(environment.receive().reward)
    environment.close()
    rewards = np.unique(rewards)
    assert rewards.max() >= 10.0 and rewards.min() == 0.0, rewards


def test_truncation_at_108000_frames_keeps_its_discount(monkeypatch):
    """The real vector environment, with a limit that a test can wait for."""
    vector_environment, limits = atari.AtariVectorEnv, []

    def shorter(**arguments):
        limits.append(arguments["max_num_frames_per_episode"])
        return vector_environment(**arguments | dict(max_num_frames_per_episode=200))

    monkeypatch.setattr(atari, "AtariVectorEnv", shorter)
    environment = Watched("pong", num_environments=2)
    game = play(environment, lambda t: np.zeros(2), 60)
    environment.close()
    assert limits == [108_000]
    assert game["is_last"].any(axis=0).all()
    assert (game["discount"] == 1).all()
    np.testing.assert_array_equal(game["is_first"][1:], game["is_last"][:-1])
    assert (game["frame"][game["is_last"]] >= 200).all() and (game["frame"][game["is_last"]] < 240).all()


@pytest.mark.parametrize("protocol", ["paper2018", "baselines", "rllib"])
def test_a_game_whose_last_step_costs_a_life_ends_there(protocol):
    """The emulator restarts after it; one of these limits meets a lost life, with our FIRE and without."""
    met = 0
    for limit in (84, 97):  # the latter reached by 25 steps of four frames
        environment = Watched("breakout", num_environments=2, protocol=protocol, max_episode_frames=limit)
        game = play(environment, lambda t: np.full(2, FIRE if t % 8 == 0 else 0), 70, seed=3)
        environment.close()
        restarted = game["frame"][1:] < game["frame"][:-1]
        np.testing.assert_array_equal(game["is_last"][:-1], restarted)
        fired = np.zeros_like(restarted) if protocol == "paper2018" else np.roll(restarted, 1, axis=0)
        fired[0] = protocol != "paper2018"
        np.testing.assert_array_equal(game["is_first"][1:], restarted | fired)
        lost = lives_lost(game)
        assert (game["discount"][lost] == 0).all() and (game["discount"][~lost] == 1).all()
        met += (lost & game["is_last"]).sum()
    assert met >= 2


@pytest.mark.parametrize("protocol, num_actions", [("paper2018", 4), ("baselines", 4), ("machado2018", 18), ("cleanba", 18), ("r2d2", 18)])
def test_the_action_set(protocol, num_actions):
    environment = atari.Atari("breakout", num_environments=1, protocol=protocol)
    assert environment.spec.actions.num_actions == num_actions
    assert environment.spec.num_stacked == 4 and environment.spec.frames_per_step == 4
    environment.reset(0)
    environment.send(np.array([num_actions - 1]))  # the last action is one
    environment.receive()
    environment.close()


@pytest.mark.parametrize(
    "protocol, num_environments, most_noops, sticky",
    [pytest.param("paper2018", 12, 30, False, marks=pytest.mark.soak), pytest.param("baselines", 12, 30, False, marks=pytest.mark.soak),
     ("machado2018", 12, 30, True), ("cleanba", 4, 1, True), pytest.param("r2d2", 8, 30, False, marks=pytest.mark.soak)],
)
def test_no_ops_and_sticky_actions(protocol, num_environments, most_noops, sticky):
    """Games that began alike and are played alike stay alike, unless actions stick at random."""
    environment = Watched("pong", num_environments=num_environments, protocol=protocol)
    environment.reset(1)
    frames = environment.frame.tolist()
    spread = max(frames) - min(frames)
    assert 10 <= spread < most_noops if most_noops > 1 else spread == 0, frames
    alike = [i for i, frame in enumerate(frames) if frame == max(frames, key=frames.count)]
    assert len(alike) > 1, "no two games began alike: choose another seed"
    random, differ = np.random.default_rng(0), False
    for _ in range(40):
        action = random.integers(environment.spec.actions.num_actions)
        environment.send(np.full(num_environments, action))
        observation = environment.receive().observation[alike]
        differ |= bool((observation != observation[0]).any())
    environment.close()
    assert differ == sticky


def test_sticky_actions_follow_the_seed():
    def play_once(seed):
        environment = atari.Atari("pong", num_environments=1, protocol="machado2018")
        observations = [environment.reset(seed).observation]
        for t in range(25):
            environment.send(np.full(1, t % 6))
            observations.append(environment.receive().observation)
        environment.close()
        return np.stack(observations)

    np.testing.assert_array_equal(play_once(3), play_once(3))
    assert (play_once(3) != play_once(4)).any()


def test_frames_are_single_and_grey_and_move():
    environment = atari.Atari("pong", num_environments=2)
    one = environment.reset(0).observation
    assert one.shape == (2, 84, 84) and one.dtype == np.uint8 and 20 < one.max() <= 255
    environment.send(np.array([2, 3]))
    other = environment.receive().observation
    environment.close()
    changed = (one != other).mean()
    assert 0 < changed < 0.2, "two frames of Pong share their background"


def ten_steps(environment, seed):
    """Returns what is seen in ten steps of Breakout, [11, N, 84, 84]; the games start with random no-ops."""
    rows = [environment.reset(seed).observation]
    for _ in range(10):
        environment.send(np.arange(environment.num_environments))
        rows.append(environment.receive().observation)
    environment.close()
    return np.stack(rows)


def test_the_number_of_threads_changes_nothing_but_speed():
    one, two = (atari.Atari("breakout", num_environments=3, num_threads=n) for n in (1, 2))
    np.testing.assert_array_equal(ten_steps(one, 5), ten_steps(two, 5))


@pytest.mark.parametrize("seed, told", [(5, 5), (6, 5), (0, 0)])
def test_a_reset_that_began_with_the_environment_is_the_same(seed, told):
    begun = atari.Atari("breakout", num_environments=3)
    begun.begin_reset(told)
    np.testing.assert_array_equal(ten_steps(begun, seed), ten_steps(atari.Atari("breakout", num_environments=3), seed))


def test_other_python_code_runs_while_a_reset_goes_on():
    environment = atari.Atari("pong", num_environments=8)
    environment.begin_reset(1)
    assert not environment._begun_reset.done(), "it takes as long as making the games did"
    environment.close()
    assert environment._begun_reset.done()
