"""The README's recipes and commands, run as written."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from impala.config.sections import CORRECTIONS_OF
from impala.monitoring import metrics

README = (Path(__file__).parents[1] / "README.md").read_text()


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_three_lines_train_an_agent():
    (block,) = [b for b in python_blocks() if "from impala import Impala" in b]
    names = {}
    exec(block.replace("300_000", "3_000"), names)  # the same lines on a smaller budget
    assert names["agent"].config.environment.name == "CartPole-v1"


def test_a_correction_and_a_torso_of_ones_own_train():
    (block,) = [b for b in python_blocks() if "def one_step" in b]
    assert len(block.splitlines()) <= 40
    names = {}
    exec(block.replace("200_000", "3_000"), names)
    v = tf.random.stateless_normal([6, 3], (1, 2))
    targets = names["one_step"](
        v_tm1=v[:-1], v_t=v[1:], r_t=tf.ones([5, 3]), discount_t=tf.fill([5, 3], 0.9), log_rho_tm1=tf.zeros([5, 3])
    )
    np.testing.assert_allclose(targets.target_tm1, 1 + 0.9 * v[1:], rtol=1e-5)
    kernel = names["training"].network.trainable_variables[0]
    assert any(variable.shape == (50, 128) for variable in names["training"].network.trainable_variables), kernel.shape


def test_an_environment_of_ones_own(capsys):
    (block,) = [b for b in python_blocks() if "class Coin" in b]
    exec(block, {})
    assert float(capsys.readouterr().out) >= 0.95


def test_every_column_of_metrics_is_defined():
    defined = set(re.findall(r"`(\w+)`", (Path(__file__).parents[1] / "docs/metrics.md").read_text()))
    assert set(metrics.COLUMNS) <= defined


def test_every_correction_is_explained():
    rows = set(re.findall(r"^\| \[?`(\w+)`", (Path(__file__).parents[1] / "docs/corrections.md").read_text(), flags=re.M))
    words = {word for schemes in CORRECTIONS_OF.values() for word in schemes}
    assert rows == words - {"clip", "penalty"}, "those two are PPO's, explained below the tables"


def test_every_folder_of_results_is_in_its_index():
    folder = Path(__file__).parents[1] / "docs/results"
    index = (folder / "README.md").read_text()
    linked = set(re.findall(r"\]\((\w+)/README.md\)", index))
    assert all((folder / name / "README.md").is_file() for name in linked)
    assert linked | set(re.findall(r"`(\w+)`", index)) == {path.name for path in folder.iterdir() if path.is_dir()}


def test_every_file_and_make_target_that_the_readme_names_exists():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("http") or (root / link).exists(), link
    cells = re.findall(r"^\| (`configs/.*?) \| ", README, flags=re.M)
    words = [word for cell in cells for word in re.findall(r"`(?:configs/)?([^`]+)\.yaml`", cell)]
    named = {word.replace(choices, choice) for word in words for choices in re.findall(r"\{.*\}|$", word)[:1]
             for choice in choices.strip("{}").split(",")}  # fmt: skip
    assert named - {"lab/*"} == {path.stem for path in (root / "configs").glob("*.yaml")}
    makefile = (root / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target


def test_every_command_that_the_readme_names_exists():
    help_text = subprocess.run(
        [sys.executable, "-m", "impala", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in set(re.findall(r"\.venv/bin/impala (\w+)", README)):
        assert f"\n    {command} " in help_text, command
