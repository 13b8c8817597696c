"""`impala evaluate --video`: pictures that are of the game that is played, and files that hold them."""

import resource
import sys

import gymnasium
import numpy as np
import pytest

from impala import Impala, environments, evaluation
from impala import config as config_lib
from impala.acting import episodes
from impala.environments import catch, handed_in, pictures
from impala.monitoring.logs import read_csv
from impala.nodes import playing


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


@pytest.mark.parametrize(
    "name, shape",
    [
        ("catch", (10, 5)), ("cliff_walking", (4, 12)), ("memory_chain", (1, 3)), ("river_swim", (1, 6)), ("seek_avoid", (5, 5)),
        ("stateless_cartpole", (400, 600)), ("minatar:breakout", (10, 10)), ("CartPole-v1", (400, 600)),
    ],
)  # fmt: skip
def test_environments_draw_themselves(name, shape):
    draw(name, shape)


def test_what_a_function_makes_draws_itself():
    def make():
        return gymnasium.make("CartPole-v1", render_mode="rgb_array")

    draw(handed_in.name_of(make), (400, 600))
    draw(handed_in.name_of(lambda render_mode=None: gymnasium.make("CartPole-v1", render_mode=render_mode)), (400, 600))


def draw(name, shape):
    environment = environments.make(name, num_environments=1, with_picture=True)
    environment.reset(0)
    before = environment.picture()
    changed = False
    for t in range(12):
        environment.send(np.array([t % 2]))
        environment.receive()
        after = environment.picture()
        changed |= bool((before != after).any())
    environment.close()
    assert before.shape == after.shape == (*shape, 3) and before.dtype == np.uint8 and changed


def test_all_of_the_projects_own_are_among_them():
    (drawn,) = (m.args[1] for m in test_environments_draw_themselves.pytestmark if m.name == "parametrize")
    assert set(environments.OWN) <= {name for name, _ in drawn}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Impala("catch").learn(640).save(tmp_path_factory.mktemp("agent") / "catch")


def test_an_episode_becomes_a_file(folder, capsys):
    import imageio

    assert evaluation.main(folder, num_episodes=2, greedy=False, best=False, video=True) == 0
    (film,) = (folder / "videos").glob("*")
    assert film.name.startswith("catch_") and f"{film}: a further episode, of score" in capsys.readouterr().out
    frames = list(imageio.get_reader(film).iter_data())
    assert len(frames) == 10  # the first picture and nine steps
    board = frames[0][21::42, 21::42].mean(-1) > 128  # the middles of fields of 42 pixels
    assert board.shape == (10, 5) and board[0].sum() == 1 and board[9].tolist() == [False, False, True, False, False]


def test_without_the_package_it_says_so(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(config_lib.ConfigError, match=r"--video: needs imageio; pip install 'impala\[video\]'"):
        evaluation.main(folder, num_episodes=2, greedy=False, best=False, video=True)


def test_a_film_ends_where_an_evaluation_cuts_an_episode_short(folder, monkeypatch):
    monkeypatch.setattr(episodes, "MAX_EPISODE_FRAMES", 4)
    config = config_lib.load(folder / "config.yaml")
    network, _ = evaluation.load_network(folder, config)
    assert len([*playing.watch(network, config, greedy=True, seed=1)]) == 1 + 4


class Screenless(gymnasium.Env):
    """Takes no render_mode."""

    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def __init__(self):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 1.0, True, False, {}


class Faulty(Screenless):
    """Says that it draws itself."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return self.screen


class Vectorised(catch.Catch):
    """Has no picture, as a property without a getter."""

    picture = property()


class Flat(catch.Catch):
    """Draws itself without colours."""

    def picture(self):
        return self._observe()[0]


@pytest.mark.parametrize(
    "name, fault",
    [("Screenless", "TypeError"), ("Faulty", "screen"), ("Vectorised", "picture"), ("Flat", r"shape \(10, 5\)")],
)
def test_who_does_not_draw_itself_is_refused_in_a_line_and_its_scores_are_kept(name, fault, tmp_path, capsys):
    folder = Impala(f"{__name__}:{name}").save(tmp_path / "agent")
    with pytest.raises(config_lib.ConfigError, match=f"^--video: {__name__}:{name} does not draw itself here .*{fault}") as caught:
        evaluation.main(folder, num_episodes=2, greedy=False, best=False, video=True)
    assert len(caught.value.lines) == 1 and caught.value.lines[0].endswith("a method picture() that returns RGB [H, W, 3]")
    (row,) = read_csv(folder / "evaluations.csv")
    assert row["episodes"] == "2" and f"{float(row['mean']):.2f} ±" in capsys.readouterr().out
    assert not [*(folder / "videos").glob("*")]


def test_an_interrupted_film_leaves_no_file(tmp_path):
    def watched():
        for _ in range(5):
            yield np.zeros((10, 10, 3), np.uint8), 0.0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluation._film(tmp_path / "videos" / "film.mp4", watched(), lambda: None)
    assert not [*(tmp_path / "videos").glob("*")]


def test_a_film_that_cannot_be_written_is_a_line(tmp_path):
    noise = np.random.default_rng(0).integers(256, size=(60, 50, 50, 3), dtype=np.uint8)

    def line_of(path):
        with pytest.raises(config_lib.ConfigError, match=f"^--video: {path}: .+; expected a folder with room for a film$") as caught:
            evaluation._film(path, [(picture, 0.0) for picture in noise], lambda: None)
        assert len(caught.value.lines) == 1 and not [*tmp_path.rglob("*.mp4")]

    (tmp_path / "videos").touch()
    line_of(tmp_path / "videos" / "film.mp4")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # as a full disk: ffmpeg ends in the midst of the film
        line_of(tmp_path / "films" / "film.mp4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
