"""A wheel, built and installed: what it holds, and that it runs where a checkout, or another copy, is the current folder."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GAMES = """
import gymnasium, numpy
class Guess(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,), numpy.float32), gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(2, numpy.float32), {}
    def step(self, action):
        return numpy.ones(2, numpy.float32), float(action), True, False, {}
gymnasium.register("Guess-v0", Guess)
"""


def run(*command, **kwargs):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=240, env=environ, **kwargs)
    assert result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("impala", "configs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "wheel", ".", *options, "-w", folder / "dist", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The bin/ of an environment that has the wheel, and for the rest this one's packages."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    packages = folder / "lib/python3.10/site-packages"
    (packages / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # after its own
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", *options, wheel)
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a game of the user's, and with a copy of the package that nobody may import."""
    (tmp_path / "impala").mkdir()
    (tmp_path / "impala/__init__.py").write_text("raise ImportError('the other copy')")
    (tmp_path / "my_games.py").write_text(GAMES)
    return tmp_path


def test_it_holds_the_configurations_and_a_description(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("impala/"): archive.read(name) for name in archive.namelist() if name.endswith(".yaml")}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    expected = {str(path.relative_to(ROOT)): path.read_bytes() for path in (ROOT / "configs").rglob("*.yaml")}
    assert held == expected and len(held) > 20
    assert "\n\n# IMPALA\n" in metadata and "License-Expression: Apache-2.0" in metadata


def test_its_words_and_remedies_need_no_checkout(installed, elsewhere):
    assert "\npong  " in run(installed / "impala", "train", "--list", cwd=elsewhere)
    assert "\nlag  " in run(installed / "impala", "compare", "--list", cwd=elsewhere)
    code = "import sys; del sys.path[0]; from impala.monitoring import doctor; print(doctor._build_anew())"
    assert "pip install impala-" in run(installed / "python", "-c", code, cwd=elsewhere)


def test_it_trains_on_a_game_of_the_current_folder_with_one_copy_of_itself(installed, elsewhere):
    options = ["--environment.name", "my_games:Guess-v0", "--total-frames", 2000, "--target-return", "null", "--run", "run"]
    out = run(installed / "impala", "train", "catch", *options, cwd=elsewhere)
    assert "starting" in out and "my_games:Guess-v0" in out
    assert len((elsewhere / "run/metrics.csv").read_text().splitlines()) >= 2


def test_a_module_of_the_current_folder_is_found_by_the_console_script(installed, elsewhere):
    """And by nobody before an installed one of its name."""
    (elsewhere / "yaml.py").write_text("raise ImportError('a shadow')")
    options = ["--environment.name", "my_games:Nothing-v0", "--network.torso", "mlp"]
    result = subprocess.run([installed / "impala", "train", *options], cwd=elsewhere, capture_output=True, text=True)
    assert result.returncode == 2 and "Nothing" in result.stderr and "No module named" not in result.stderr


def test_a_bench_runs_the_copy_that_it_is(installed, elsewhere):
    code = (
        "import subprocess, sys; del sys.path[0]; from impala.bench import whole;"
        "sys.exit(subprocess.run([*whole.own_command(), 'train', '--list']).returncode)"
    )
    assert "\npong  " in run(installed / "python", "-c", code, cwd=elsewhere)
