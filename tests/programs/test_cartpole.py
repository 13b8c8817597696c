"""CartPole by the shipped configurations of each program reaches gymnasium's threshold (R2D2 does not see velocities): `make soak`."""

import pytest

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
