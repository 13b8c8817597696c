"""What every environment promises, checked on all of them (`types.Environment`)."""

import functools

import numpy as np
import pytest

from impala import environments
from impala.types import Step
from tests.acting import scripted

N, SEED = 3, 7
ENVIRONMENTS = {
    "atari:pong": (functools.partial(environments.make, "atari:pong"), 40),
    "atari:breakout": (functools.partial(environments.make, "atari:breakout"), 250),
    "atari:breakout, baselines": (functools.partial(environments.make, "atari:breakout", protocol="baselines"), 250),
    "catch": (functools.partial(environments.make, "catch"), 60),
    "CartPole-v1": (functools.partial(environments.make, "CartPole-v1"), 120),
    "minatar:breakout": (functools.partial(environments.make, "minatar:breakout"), 120),
    "minatar:space_invaders": (functools.partial(environments.make, "minatar:space_invaders"), 400),
    "cliff_walking": (functools.partial(environments.make, "cliff_walking"), 90),
    "river_swim": (functools.partial(environments.make, "river_swim"), 250),
    "seek_avoid": (functools.partial(environments.make, "seek_avoid"), 120),
    "memory_chain": (functools.partial(environments.make, "memory_chain"), 60),
    "stateless_cartpole": (functools.partial(environments.make, "stateless_cartpole"), 120),
    "scripted": (lambda num_environments: scripted.Scripted([[(3, "terminated"), (2, "truncated")]] * num_environments), 30),
}  # fmt: skip


class Played:
    """One seeded game of a random policy: `steps` as received, `copies` made at once, `actions`."""

    def __init__(self, make, num_steps, seed=SEED):
        environment = make(num_environments=N)
        self.spec, self.num_environments = environment.spec, environment.num_environments
        random = np.random.default_rng(0)
        self.steps = [environment.reset(seed)]
        self.copies = [Step(*map(np.copy, self.steps[0]))]
        self.actions = []
        for _ in range(num_steps):
            self.actions.append(random.integers(self.spec.actions.num_actions, size=N).astype(np.int32))
            environment.send(self.actions[-1])
            self.steps.append(environment.receive())
            self.copies.append(Step(*map(np.copy, self.steps[-1])))
        environment.close()

    def column(self, field):
        return np.stack([getattr(step, field) for step in self.copies])


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def played(request):
    return Played(*ENVIRONMENTS[request.param])


def test_spec_matches_the_data(played):
    shape, dtype = played.spec.observation
    assert played.num_environments == N and played.spec.actions.num_actions >= 2
    for step in played.steps:
        assert step.observation.shape == (N, *shape) and step.observation.dtype == dtype
        for name, dtype_ in dict(reward=np.float32, discount=np.float32, is_first=np.bool_, is_last=np.bool_).items():
            field = getattr(step, name)
            assert field.shape == (N,) and field.dtype == dtype_, name
        assert np.isfinite(step.observation).all() and np.isfinite(step.reward).all()


def test_the_first_step_starts_every_episode(played):
    first = played.copies[0]
    assert first.is_first.all() and not first.is_last.any()
    assert not first.reward.any() and (first.discount == 1).all()


def test_an_episode_starts_right_after_one_ends_and_never_else(played):
    is_first, is_last = played.column("is_first"), played.column("is_last")
    begins = is_first[1:] & ~is_first[:-1]  # it may take more steps: `types.Step`
    np.testing.assert_array_equal(begins, is_last[:-1])
    assert not (is_first & is_last).any()
    if played.spec.name != "atari:pong":  # its episodes are longer than this game
        assert is_last.any(axis=0).all(), "a game in which nothing ended shows nothing"


def test_reset_steps_bring_nothing(played):
    is_first = played.column("is_first")
    assert not played.column("reward")[is_first].any()
    assert (played.column("discount")[is_first] == 1).all()


def test_discounts_are_zero_or_one(played):
    discount = played.column("discount")
    assert set(np.unique(discount)) <= {0.0, 1.0}
    assert (discount == 1).any()


def test_observations_are_not_overwritten_later(played):
    for step, copy in zip(played.steps, played.copies):
        for received, copied in zip(step, copy):
            np.testing.assert_array_equal(received, copied)
    assert (played.copies[0].observation != played.copies[-1].observation).any()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_same_seed_and_actions_give_the_same_game(name):
    make, num_steps = ENVIRONMENTS[name]
    one, other = Played(make, min(num_steps, 60)), Played(make, min(num_steps, 60))
    for field in Step._fields:
        np.testing.assert_array_equal(one.column(field), other.column(field))


@pytest.mark.parametrize("name", ["CartPole-v1", "minatar:breakout", *environments.OWN])
def test_another_seed_gives_another_game(name):
    make, _ = ENVIRONMENTS[name]
    assert (Played(make, 20).column("observation") != Played(make, 20, seed=8).column("observation")).any()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_second_reset_starts_the_same_game_again(name):
    environment = ENVIRONMENTS[name][0](num_environments=N)

    def play():
        steps = [environment.reset(SEED)]
        for _ in range(12):
            environment.send(np.ones(N, np.int32))
            steps.append(environment.receive())
        return steps

    for one, other in zip(play(), play()):
        for field, again in zip(one, other):
            np.testing.assert_array_equal(field, again)
    environment.close()


def test_environments_of_one_actor_differ_from_each_other():
    """One seed, N environments: each must draw its own."""
    observation = Played(*ENVIRONMENTS["CartPole-v1"]).copies[0].observation
    assert len(np.unique(observation[:, 0])) == N
