"""`impala evaluate RUN`: plays the newest weights of a run with its training wrappers."""

import csv
import json
import time
from pathlib import Path

import numpy as np

from impala import config as config_lib

# Random and human scores (Mnih et al. 2015; Wang et al. 2016), as in dqn_zoo's atari_data.
HUMAN_SCORES = {
    "beam_rider": (363.9, 16926.5), "breakout": (1.7, 30.5), "pong": (-20.7, 14.6), "qbert": (163.9, 13455.0),
    "seaquest": (68.4, 42054.7), "space_invaders": (148.0, 1668.7),
}  # fmt: skip
_COLUMNS = ("time", "updates", "frames", "episodes", "greedy", "mean", "half_interval_95", "human_normalised", "scores")


def human_normalised(name: str, score: float) -> float | None:
    """Returns (score − random) / (human − random) for `atari:<game>`, or None where the table has no such game."""
    if (game := name.removeprefix("atari:")) not in HUMAN_SCORES:
        return None
    random, human = HUMAN_SCORES[game]
    return (score - random) / (human - random)


def play(network, config: config_lib.Config, *, num_episodes: int, greedy: bool, seed: int) -> list[float]:
    """Plays `num_episodes` episodes and returns their raw scores.

    Each of up to 16 environments plays the same number of episodes, so that short ones are not favoured.
    """
    from impala.acting import policies
    from impala.programs.compose import make_environment, make_policy

    num_environments = max(n for n in range(1, 17) if num_episodes % n == 0)
    environment = make_environment(config, num_environments, num_threads=2)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, num_environments, seed=seed, greedy=greedy,
        core_state_shape=network.core_state_shape,
    )  # fmt: skip
    score, scores = np.zeros(num_environments), [[] for _ in range(num_environments)]
    step = environment.reset(seed)
    while min(map(len, scores)) < num_episodes // num_environments:
        policy.observe(step)
        environment.send(policy.decide().action)
        step = environment.receive()
        score = np.where(step.is_first, 0.0, score + step.reward)
        for i in np.flatnonzero(step.is_last):
            scores[i].append(float(score[i]))
    environment.close()
    return [s for played in scores for s in played[: num_episodes // num_environments]]


def load_network(folder: Path, config: config_lib.Config):
    """Builds the run's network and restores its newest sound checkpoint; returns (network, state)."""
    from impala.learning import checkpoints
    from impala.programs.compose import check, make_learner, make_network

    network = make_network(config, check(config))
    learner = make_learner(config, network)
    state = checkpoints.Checkpoints(
        folder / "checkpoints", num_kept=config.num_checkpoints, network=network, optimizer=learner.optimizer
    ).restore(read_only=True)
    if state is None:
        raise config_lib.ConfigError([f"{folder}: holds no checkpoint; expected a run that has trained for a minute"])
    return network, state


def interval(scores: list[float]) -> tuple[float, float]:
    """Returns mean and half the width of its 95 % interval (normal approximation)."""
    mean = float(np.mean(scores))
    half = 1.96 * float(np.std(scores, ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
    return mean, half


def evaluate(folder: Path, *, num_episodes: int, greedy: bool, seed: int | None = None) -> dict:
    """Plays, appends a row to evaluations.csv and returns it."""
    config = config_lib.load(folder / "config.yaml")
    network, state = load_network(folder, config)
    # Seeds of evaluation never meet those of training.
    seed = 2**30 + config.seed if seed is None else seed
    scores = play(network, config, num_episodes=num_episodes, greedy=greedy, seed=seed)
    mean, half = interval(scores)
    row = dict(
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"), updates=state["updates"], frames=state["frames"],
        episodes=num_episodes, greedy=greedy, mean=mean, half_interval_95=half,
        human_normalised=human_normalised(config.environment.name, mean), scores=json.dumps(scores),
    )  # fmt: skip
    path = folder / "evaluations.csv"
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow(row)
    return row


def require_run(command: str, usage: str, arguments: list[str]) -> tuple[Path, dict]:
    """Returns the run folder that a command was given first, and its options.

    Raises:
      ConfigError: none was given, or it is no run folder.
    """
    if not arguments or arguments[0].startswith("-"):
        raise config_lib.ConfigError([
            f"impala {command}: the run folder is missing; expected impala {command} {usage}"
        ])  # fmt: skip
    folder, overrides = Path(arguments[0]), config_lib.parse_overrides(arguments[1:])
    if not (folder / "config.yaml").exists():
        raise config_lib.ConfigError([f"{folder}: holds no config.yaml; expected a run folder"])
    return folder, overrides


def main(arguments: list[str]) -> int:
    """The command `impala evaluate`."""
    greedy = "--greedy" in arguments
    arguments = [argument for argument in arguments if argument != "--greedy"]
    folder, overrides = require_run("evaluate", "RUN [--episodes N]", arguments)
    episodes = overrides.pop("episodes", 30)
    if not isinstance(episodes, int) or isinstance(episodes, bool) or episodes < 1:
        raise config_lib.ConfigError([f"--episodes {episodes}: expected a number of episodes, 1 or more"])
    if overrides:
        raise config_lib.ConfigError([
            f"--{key}: unknown option{config_lib.nearest(key, ['episodes', 'greedy'])}" for key in overrides
        ])  # fmt: skip
    row = evaluate(folder, num_episodes=episodes, greedy=greedy)
    how = "greedy" if greedy else "sampled"
    print(
        f"{row['mean']:.2f} ± {row['half_interval_95']:.2f} (95 % interval of the mean of {episodes} {how} episodes), "
        f"weights of update {row['updates']} · {folder / 'evaluations.csv'}"
    )
    if row["human_normalised"] is not None:
        print(f"{100 * row['human_normalised']:.0f} % human-normalised")
    return 0
