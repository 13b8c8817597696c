"""`impala evaluate RUN`: plays the newest weights of a run with its training wrappers."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from impala import agents
from impala import config as config_lib
from impala.monitoring import evaluations, scores

_FRAMES_PER_SECOND, _PICTURE_PIXELS = 15, 420  # real time at an action repeat of 4; the longer side, about


def load_network(folder: Path, config: config_lib.Config, *, best: bool = False):
    """Builds the run's network and restores its newest sound checkpoint, or its `best`; returns (network, state)."""
    from impala import agents
    from impala.learning import checkpoints
    from impala.nodes.checking import check

    spec = check(config)  # first: it says in a line what is wrong with an agent of the user's own
    network = agents.of(config).make_network(config, spec)
    if best and not (folder / "best").is_dir():
        raise config_lib.ConfigError([
            f"{folder}: holds no best weights; expected a run with evaluator.num_episodes above 0"
        ])  # fmt: skip
    saved = checkpoints.Checkpoints(folder / ("best" if best else "checkpoints"), network=network)
    state = saved.restore(report=lambda line: print(line, file=sys.stderr), read_only=True, is_part=True)
    if state is None:
        raise config_lib.ConfigError([f"{folder}: holds no checkpoint; expected a run that has trained for a minute"])
    return network, state


def evaluate(
    folder: Path, *, num_episodes: int, greedy: bool, best: bool = False, seed: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[dict]:  # fmt: skip
    """Plays the newest weights, or the best by evaluation, in every task of the run.

    Appends a row for each to evaluations.csv and returns them. A file that cannot be written costs the row there. By
    default each evaluation plays episodes of its own: the seed follows from how many rows the file holds already and,
    where another evaluation of the run goes on, from the number of this process.
    """
    from impala.nodes.playing import evaluation_seed, play

    config, rows = config_lib.load(folder / "config.yaml"), []
    network, state = load_network(folder, config, best=best)
    with _alone(folder) as is_alone:
        if seed is None:  # other episodes than those whose scores the file holds, or will hold
            num_rows = evaluations.num_rows(folder)
            counts = ([num_rows] if num_rows else []) if is_alone else [num_rows, os.getpid()]
            seed = evaluation_seed(config, *counts)
        for task, name in enumerate(config.environment.tasks):
            played = play(
                network, config, num_episodes=num_episodes, greedy=greedy, seed=seed, task=task, should_stop=should_stop
            )  # fmt: skip
            row = evaluations.row_of(name, played, updates=state["updates"], frames=state["frames"], greedy=greedy)
            rows.append(row)
            try:
                evaluations.append(folder, row)
            except OSError as error:
                print(f"{folder / 'evaluations.csv'}: {error.strerror}; the result is not kept", file=sys.stderr)
    return rows


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Yields whether no other evaluation of the run goes on; true where that cannot be told."""
    try:
        file = (folder / "evaluations.lock").open("a")
    except OSError:  # a folder that may only be read
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            yield not isinstance(error, BlockingIOError)
        else:
            yield True


def require_film_makers() -> None:
    """Raises ConfigError if a package that films is missing."""
    try:
        import imageio  # noqa: F401
        import imageio_ffmpeg  # noqa: F401, or imageio fails later and says less
    except ImportError as error:
        raise config_lib.ConfigError([f"--video: needs {error.name}; pip install 'impala[video]'"]) from None


def record(
    folder: Path, *, greedy: bool, best: bool = False, seed: int | None = None,
    on_picture: Callable[[], object] = lambda: None,
) -> list[tuple[Path, float]]:  # fmt: skip
    """Films an episode of every task of the run into `folder`/videos; returns the files and the scores.

    By default it is one that no evaluation has played, and another one after each.

    Raises:
      ConfigError: the packages that film are missing, an environment cannot draw itself here, or a file cannot be
        written.
    """
    require_film_makers()
    from impala.nodes.playing import evaluation_seed, watch

    config = config_lib.load(folder / "config.yaml")
    network, state = load_network(folder, config, best=best)
    seed, films = evaluation_seed(config, evaluations.num_rows(folder), 0, 0) if seed is None else seed, []
    for task, name in enumerate(config.environment.tasks):
        stem = f"{name.replace(':', '_').replace('/', '_')}_{state['updates']:010d}" + "_greedy" * greedy
        path = folder / "videos" / f"{stem}.mp4"
        pictures = watch(network, config, greedy=greedy, seed=seed, task=task)
        films.append((path, _film(path, pictures, on_picture)))
    return films


def _film(path: Path, watched: Iterable[tuple[np.ndarray, float]], on_picture: Callable[[], object]) -> float:
    """Writes the pictures of `nodes.playing.watch` into a file, whole or not at all; returns the last score."""
    import imageio

    temporary = path.with_suffix(".new.mp4")
    try:
        path.parent.mkdir(exist_ok=True)
        film = imageio.get_writer(temporary, fps=_FRAMES_PER_SECOND, macro_block_size=2)
        with contextlib.closing(film):  # as its own `with` leaves ffmpeg running after an exception
            for picture, score in watched:  # noqa: B007
                on_picture()
                size = 2 * max(1, _PICTURE_PIXELS // 2 // max(picture.shape[:2]))
                film.append_data(np.kron(picture, np.ones((size, size, 1), np.uint8)))
        imageio.get_reader(temporary).close()  # fails if ffmpeg ended early, e.g. of a full disk, which nobody says
        temporary.replace(path)
        return score
    except OSError as error:
        what = error.strerror or str(error).partition("\n")[0]
        raise config_lib.ConfigError([f"--video: {path}: {what}; expected a folder with room for a film"]) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def require_run(folder: Path) -> None:
    """Raises ConfigError when `folder` does not hold the run of one agent."""
    if not (folder / "config.yaml").exists():
        near = Path("runs") / folder
        hint = f"; did you mean {near}?" if (near / "config.yaml").exists() else "; expected a run folder"
        raise config_lib.ConfigError([f"{folder}: holds no config.yaml{hint}"])
    if members := sorted(folder.glob("member_*")):
        raise config_lib.ConfigError([f"{folder}: holds a population; expected one of its members, like {members[0]}"])


def main(folder: Path, *, num_episodes: int, greedy: bool, best: bool, video: bool) -> int:
    """The command `impala evaluate`."""
    require_run(folder)
    from impala.learning import checkpoints
    from impala.nodes import hangs

    config = config_lib.load(folder / "config.yaml")
    try:
        if video:
            require_film_makers()
        with hangs.watched(config, "is played") as step:
            rows = evaluate(folder, num_episodes=num_episodes, greedy=greedy, best=best, should_stop=step)
            _print(rows, folder, num_episodes, _way(config, greedy=greedy))
            if video:  # last: an environment that does not draw itself costs no scores
                for path, score in record(folder, greedy=greedy, best=best, on_picture=step):
                    print(f"{path}: a further episode, of score {score:g}")
    except checkpoints.Unusable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _way(config: config_lib.Config, *, greedy: bool) -> str:
    """Returns in a word how actions are chosen."""
    samples = not hasattr(agents.of(config), "EXPLORATION")  # others are greedy, but for what they add to explore
    if greedy or not (samples or getattr(config.agent, "evaluation_epsilon", 0.0)):
        return "greedy"
    return "sampled" if samples else "ε-greedy"


def _print(rows: list[dict], folder: Path, num_episodes: int, how: str) -> None:
    for row in rows:
        task = f"{row['environment']}: " if len(rows) > 1 else ""
        score = f"{row['mean']:.2f} (one {how} episode)"
        if num_episodes > 1:
            interval = f"95 % interval of the mean of {num_episodes} {how} episodes"
            score = f"{row['mean']:.2f} ± {row['half_interval_95']:.2f} ({interval})"
        print(f"{task}{score}, weights of update {row['updates']} · {folder / 'evaluations.csv'}")
    normalised = {row["environment"]: row["human_normalised"] for row in rows}
    if None in normalised.values():
        return
    if len(rows) == 1:
        print(f"{100 * rows[0]['human_normalised']:.0f} % human-normalised ({scores.TABLE})")
    else:
        summary = scores.summary(normalised)
        print(
            f"human-normalised: median {100 * summary['median']:.0f} %, interquartile mean "
            f"{100 * summary['interquartile_mean']:.0f} %, mean capped at 100 % {100 * summary['capped_mean']:.0f} % "
            f"({scores.TABLE})"
        )
