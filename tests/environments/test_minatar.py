"""MinAtar against the package's own environment, step for step."""

import minatar as package
import numpy as np
import pytest

from impala import environments
from impala.environments.minatar import GAMES
from tests import warm


@pytest.mark.parametrize("game", GAMES)
def test_plays_the_published_game(game):
    ours = environments.make(f"minatar:{game}", num_environments=2)
    actions = package.Environment(game).minimal_action_set()
    assert ours.spec.actions.num_actions == len(actions)
    step = ours.reset(3)
    theirs = []
    for seed in np.random.SeedSequence(3).generate_state(2):
        theirs.append(package.Environment(game))
        theirs[-1].seed(int(seed))
        theirs[-1].reset()
    random, over = np.random.default_rng(0), [False, False]
    for _ in range(300):
        for i, game_ in enumerate(theirs):
            np.testing.assert_array_equal(step.observation[i], game_.state())
        action = random.integers(len(actions), size=2)
        ours.send(action.astype(np.int32))
        step = ours.receive()
        for i, game_ in enumerate(theirs):
            if over[i]:
                game_.reset()
                assert step.is_first[i] and not step.reward[i]
                over[i] = False
            else:
                reward, over[i] = game_.act(actions[action[i]])
                assert (step.reward[i], step.is_last[i], step.discount[i]) == (reward, over[i], 0.0 if over[i] else 1.0)


def test_an_endless_game_is_truncated(monkeypatch):
    from impala.environments import minatar

    monkeypatch.setattr(minatar, "_MAX_STEPS", 7)
    game = environments.make("minatar:freeway", num_environments=1)
    game.reset(0)
    steps = []
    for _ in range(16):
        game.send(np.zeros(1, np.int32))
        steps.append(game.receive())
    assert [t for t, step in enumerate(steps) if step.is_last[0]] == [6, 14]
    assert all(step.discount[0] == 1.0 for step in steps)


def test_every_game_has_a_torso_that_fits():
    from impala import networks

    for game in GAMES:
        environment = environments.make(f"minatar:{game}", num_environments=3)
        network = networks.make(environment.spec, torso="minatar")
        outputs = network(environment.reset(0).observation[None], np.ones((1, 3), bool))
        assert outputs.logits.shape == (1, 3, environment.spec.actions.num_actions) and outputs.value.shape == (1, 3)


def test_an_interrupt_while_it_is_imported_is_heard():
    """minatar itself would swallow it, and go on without what draws."""
    code = """if True:
    import builtins, sys
    from impala.environments import minatar

    def interrupted(name, *arguments, _import=builtins.__import__):
        if name.partition(".")[0] in ("seaborn", "matplotlib"):
            raise KeyboardInterrupt
        return _import(name, *arguments)

    builtins.__import__ = interrupted
    try:
        minatar.MinAtar("breakout", num_environments=1)
    except KeyboardInterrupt:
        print("heard", "minatar" in sys.modules)
    """
    result = warm.run(["-c", code], timeout=60)
    assert result.stdout.split() == ["heard", "False"], result.stderr
