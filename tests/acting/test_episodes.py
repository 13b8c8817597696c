"""Episodes that are scored: which of them count, and those that never end."""

import inspect

import pytest

from impala import environments
from impala.acting import episodes, policies
from tests.acting.scripted import Recording, Scripted, reward


def play(environment, num_episodes, **how):
    policy = policies.FeedForwardPolicy(Recording(3), environment.spec, environment.num_environments, seed=0)
    return episodes.play(environment, policy, num_episodes=num_episodes, seed=5, **how)


def score(n, episode, num_steps):
    return sum(reward(n, episode, time) for time in range(1, num_steps + 1))


def test_every_environment_plays_its_share_however_long_its_episodes_are():
    """The first has ended thrice before the second ends once: whoever took the first four to end would score others."""
    environment = Scripted([[(2, "terminated"), (1, "truncated"), (3, "both")], [(9, "terminated"), (4, "truncated")]])
    expected = [score(0, 0, 2), score(0, 1, 1), score(1, 0, 9), score(1, 1, 4)]
    assert play(environment, 4) == expected == [4.0, 11.5, 949.5, 452.0]
    assert environment.num_sent == 9 + 1 + 4, "a reset lies between two episodes; none follows the last"


def test_episodes_that_cannot_be_shared_equally_are_refused():
    with pytest.raises(ValueError, match="num_episodes=3 is not divisible by 2 environments"):
        play(Scripted([[(2, "both")]] * 2), 3)


def test_it_stops_when_told():
    environment, asked = Scripted([[(2, "both")]]), []
    assert play(environment, 100, should_stop=lambda: asked.append(0) or len(asked) > 5) == []
    assert environment.num_sent == 5


class Seeded(Scripted):
    """Keeps the seeds that it was reset with."""

    def reset(self, seed):
        self.seeds = [*getattr(self, "seeds", []), seed]
        return super().reset(seed)


def test_an_episode_that_never_ends_is_cut_short_and_the_share_is_still_equal(monkeypatch):
    """Nobody's running episode is dropped for another's that is stuck: the others play their share to its end first."""
    monkeypatch.setattr(episodes, "MAX_EPISODE_FRAMES", 12)
    environment = Seeded([[(10**9, "terminated")], [(5, "both"), (4, "both")]], frames_per_step=2)
    expected = [score(0, 0, 6)] * 2 + [score(1, 0, 5), score(1, 1, 4)]
    assert play(environment, 4) == expected
    assert environment.seeds == [5, 7], "a second start is with seeds that none of the two environments had"
    assert environment.num_sent == (5 + 1 + 4) + 6


def test_an_episode_of_the_most_steps_counts_once(monkeypatch):
    monkeypatch.setattr(episodes, "MAX_EPISODE_FRAMES", 3)
    environment = Seeded([[(3, "terminated"), (2, "terminated")]])
    assert play(environment, 2) == [score(0, 0, 3)] * 2 and environment.seeds == [5, 6]


def test_an_episode_that_ends_after_it_was_cut_short_is_not_counted_again(monkeypatch):
    """The first is cut at 4 and ends at 6, while the second still plays; its next one counts."""
    monkeypatch.setattr(episodes, "MAX_EPISODE_FRAMES", 4)
    environment = Seeded([[(6, "terminated"), (2, "terminated")], [(3, "truncated")]])
    assert play(environment, 4) == [score(0, 0, 4), score(0, 1, 2), score(1, 0, 3), score(1, 1, 3)]
    assert environment.seeds == [5] and environment.num_sent == 6 + 1 + 2


def test_atari_games_end_by_themselves_before():
    """Or at the same step: 108,000 frames, as `environments.make` has it."""
    spec = Scripted([[(1, "both")]], frames_per_step=4).spec
    limit = inspect.signature(environments.make).parameters["max_episode_frames"].default
    assert episodes.max_steps(spec) == limit // 4 == 27_000
