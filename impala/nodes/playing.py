"""Episodes that nobody trains on: an evaluation's scores, and what a person watches."""

import contextlib
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from impala import agents
from impala.config import Config, ConfigError
from impala.nodes.parts import make_environment, make_policy


def evaluation_seed(config: Config, *counts: int) -> int:
    """Returns a seed to evaluate a run with, which differs with `counts`; never one of training (`lane_seed`)."""
    drawn = int(np.random.SeedSequence([config.seed, len(counts), *counts]).generate_state(1)[0])
    return 2**30 + drawn % (2**30 - 64)  # environments also use the numbers that follow


def play(
    network, config: Config, *, num_episodes: int, greedy: bool, seed: int, task: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[float]:  # fmt: skip
    """Plays episodes of a task in up to 16 environments at once and returns their raw scores; see `acting.episodes`."""
    from impala.acting import episodes, policies

    num_environments = max(n for n in range(1, 17) if num_episodes % n == 0)
    environment = make_environment(config, num_environments, num_threads=2, task=task)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, num_environments, seed=seed,
        behaviour=agents.of(config).make_behaviour(config, environment.spec, greedy=greedy),
    )  # fmt: skip
    try:
        return episodes.play(environment, policy, num_episodes=num_episodes, seed=seed, should_stop=should_stop)
    finally:
        environment.close()


def watch(network, config: Config, *, greedy: bool, seed: int, task: int = 0) -> Iterator[tuple[np.ndarray, float]]:
    """Plays an episode of a task; yields after every step what a person sees, RGB [H, W, 3], and the score so far.

    It is cut short where an evaluation's is, too.

    Raises:
      ConfigError: the environment does not draw itself.
    """
    from impala.acting import episodes, policies

    name = config.environment.tasks[task]
    with _drawing(name):
        environment = make_environment(config, task=task, with_picture=True)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, 1, seed=seed,
        behaviour=agents.of(config).make_behaviour(config, environment.spec, greedy=greedy),
    )  # fmt: skip
    try:
        step, score = environment.reset(seed), 0.0
        yield _picture(environment, name), score
        for _ in range(episodes.max_steps(environment.spec)):
            policy.observe(step)
            environment.send(policy.decide().action)
            step = environment.receive()
            score = 0.0 if step.is_first[0] else score + float(step.reward[0])
            yield _picture(environment, name), score
            if step.is_last[0]:
                break
    finally:
        environment.close()


def _picture(environment, name: str) -> np.ndarray:
    with _drawing(name):
        picture = np.asarray(environment.picture())
        if picture.ndim != 3 or picture.shape[2] != 3:
            raise RuntimeError(f"its picture has shape {picture.shape}")
    return picture


@contextlib.contextmanager
def _drawing(name: str) -> Iterator[None]:
    """Turns whatever is raised while an environment draws itself, a user's own perhaps, into a line."""
    try:
        with warnings.catch_warnings():  # gymnasium warns of the same in several lines
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise ConfigError([
            f"--video: {name} does not draw itself here ({type(error).__name__}: {error}); expected gymnasium's "
            "render_mode rgb_array, or a method picture() that returns RGB [H, W, 3]"
        ]) from None  # fmt: skip
