"""CartPole by each program reaches gymnasium's threshold (R2D2 does not see velocities); in lockstep, a part of it in seconds."""

import numpy as np
import pytest

from impala import config as config_lib
from impala import lockstep
from impala.nodes.playing import play
from tests.programs.running import rows, run

WORDS = (
    "cartpole", "seed_cartpole", "ga3c_cartpole", "dqn_cartpole", "apex_cartpole", "a3c_cartpole", "dppo_cartpole",
    "gorila_cartpole", "r2d2_cartpole",
)  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("word", WORDS)
def test_it_learns_to_hold_the_pole(word, tmp_path):
    done = run("train", word, "--run", tmp_path / "run", timeout=900)
    assert done.returncode == 0, done.stderr
    written = rows(tmp_path / "run")
    column = "evaluation_mean" if any(row["evaluation_mean"] for row in written) else "return_mean"
    means = [float(row[column]) for row in written if row[column]]
    print(f"{word}: {max(means):.1f} ({column}), {int(written[-1]['frames']):,} frames, {written[-1]['wall_seconds']} s")
    assert max(means) >= 475.0, "of 500, gymnasium's own threshold"


QUICK = [  # name, what differs from the shipped configuration, updates between evaluations, score to reach
    ("apex_cartpole", {"replay.min_size": 500}, 250, 150.0),
    ("r2d2_catch", {"replay.min_size": 500}, 50, 0.8),
    ("r2d2_cartpole", {"replay.min_size": 700, "learner.learning_rate_schedule": "constant"}, 75, 150.0),
]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("name, keys, every, goal", QUICK)
def test_in_lockstep_it_is_learned_in_seconds(name, keys, every, goal):
    """Not yet to a threshold: 150 of CartPole's 500 steps, from 13, within 16,000 frames, in 5 to 13 s of one core."""
    config = config_lib.load(f"configs/{name}.yaml", keys | {"total_frames": 16_000})
    training = lockstep.of(config)
    score = lambda: np.mean(play(training.network, config, num_episodes=16, greedy=False, seed=2**30))  # noqa: E731
    before, best = score(), -np.inf
    for update in training.updates():
        if update.index % every == 0 and (best := max(best, score())) >= goal:
            break
    training.close()
    assert before < 0.2 * goal and best >= goal, (before, best)
