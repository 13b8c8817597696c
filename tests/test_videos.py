"""`impala evaluate --video`: pictures that are of the game that is played, and files that hold them."""

import sys

import numpy as np
import pytest

from impala import Impala, environments, evaluation
from impala import config as config_lib
from impala.environments import pictures


def test_the_screen_shows_the_game_that_is_played():
    """Grey and made small as agents see it, sticky actions and ends of episodes included."""
    environment = environments.make("atari:breakout", num_environments=2, protocol="machado2018", with_picture=True)
    random, step, similar = np.random.default_rng(0), environment.reset(7), []
    for _ in range(300):
        picture = environment.picture()
        assert picture.shape == (210, 160, 3) and picture.dtype == np.uint8
        grey = picture @ np.array([0.299, 0.587, 0.114])
        rows, columns = (np.arange(84) * n // 84 for n in (210, 160))
        similar.append(np.corrcoef(grey[rows][:, columns].ravel(), step.observation[0].ravel())[0, 1])
        environment.send(random.integers(18, size=2))
        step = environment.receive()
    environment.close()
    assert min(similar) > 0.75, "another moment of the game has its ball and its paddle elsewhere"
    assert np.mean(similar) > 0.85


def test_observations_as_pictures():
    board = np.zeros((10, 10, 4), np.uint8)
    board[2, 3, 1] = board[4, 5, 0] = board[4, 5, 2] = 1
    picture = pictures.of_observation(board)
    assert picture.shape == (10, 10, 3) and np.count_nonzero(picture.any(-1)) == 2
    assert (picture[4, 5] == pictures._COLOURS[2]).all(), "the later channel is over the earlier"
    assert pictures.of_observation(np.array([0.0, 1.0, 0.5])).tolist() == [[[0] * 3, [255] * 3, [127] * 3]]
    assert pictures.of_observation(np.array([[-3.0, 1.0]]))[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("name, shape", [("catch", (10, 5)), ("minatar:breakout", (10, 10)), ("CartPole-v1", (400, 600))])
def test_environments_draw_themselves(name, shape):
    environment = environments.make(name, num_environments=1, with_picture=True)
    environment.reset(0)
    before = environment.picture()
    for _ in range(4):
        environment.send(np.zeros(1, np.int32))
        environment.receive()
    after = environment.picture()
    environment.close()
    assert before.shape == after.shape == (*shape, 3) and before.dtype == np.uint8 and (before != after).any()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Impala("catch").learn(640).save(tmp_path_factory.mktemp("agent") / "catch")


def test_an_episode_becomes_a_file(folder, capsys):
    import imageio

    assert evaluation.main(folder, num_episodes=2, greedy=False, best=False, video=True) == 0
    (film,) = (folder / "videos").glob("*")
    assert film.name.startswith("catch_") and f"{film}: an episode of score" in capsys.readouterr().out
    frames = list(imageio.get_reader(film).iter_data())
    assert len(frames) == 10  # the first picture and nine steps
    board = frames[0][21::42, 21::42].mean(-1) > 128  # the middles of fields of 42 pixels
    assert board.shape == (10, 5) and board[0].sum() == 1 and board[9].tolist() == [False, False, True, False, False]


def test_without_the_package_it_says_so(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(config_lib.ConfigError, match=r"--video: needs imageio; pip install 'impala\[video\]'"):
        evaluation.main(folder, num_episodes=2, greedy=False, best=False, video=True)
