"""The grid: what it runs, in which order, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from impala.config import ConfigError
from impala.lab.grid import FINAL, SWEEP, Block, Grid

LAB = Path(__file__).parents[2] / "configs" / "lab"
SMALL = dict(
    tasks={"catch": {"scale": [-1.0, 1.0]}}, schemes=["none", "vtrace"], lags=[0, 2], replay_fractions=[0.0, 0.5],
    learning_rates=[1e-3, 3e-3], entropy_costs=[0.01, 0.1], num_best=2, num_seeds=3,
)  # fmt: skip


@pytest.fixture
def make(tmp_path):
    def make(**changes):
        (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | changes))
        return Grid(tmp_path / "grid.yaml")

    return make


def refused(make, **changes):
    with pytest.raises(ConfigError) as caught:
        make(**changes)
    return caught.value.lines


def test_blocks_are_the_product(make):
    blocks = list(make().blocks())
    assert len(blocks) == len(set(blocks)) == 2 * 2 * 2
    assert Block("catch", "vtrace", 0.5, 2) in blocks


def test_the_best_settings_of_the_sweep_get_seeds_of_their_own(make):
    grid = make()
    block = next(grid.blocks())
    sweep = grid.sweep(block)
    assert [(c.learning_rate, c.entropy) for c in sweep] == [(1e-3, 0.01), (1e-3, 0.1), (3e-3, 0.01), (3e-3, 0.1)]
    assert {(c.phase, c.seed) for c in sweep} == {(SWEEP, 0)}
    returns = dict(zip(sweep, [0.1, 0.9, -0.5, 0.4]))
    assert grid.finals(block, dict(list(returns.items())[:3])) == []  # before the sweep is done
    finals = grid.finals(block, returns)
    assert [(c.learning_rate, c.entropy, c.seed) for c in finals] == [
        (1e-3, 0.1, 1), (1e-3, 0.1, 2), (1e-3, 0.1, 3), (3e-3, 0.1, 1), (3e-3, 0.1, 2), (3e-3, 0.1, 3),
    ]  # fmt: skip
    assert {c.phase for c in finals} == {FINAL}


def test_every_cell_becomes_available_once_and_then_is_done(make):
    grid, returns = make(), {}
    while cells := list(grid.available(returns)):
        assert len(cells) == len(set(cells))
        returns[cells[0]] = float(len(returns))
    assert len(returns) == grid.num_cells == 8 * (4 + 2 * 3)


def test_a_single_setting_needs_no_sweep(make):
    grid = make(learning_rates=[1e-3], entropy_costs=[0.01])
    assert all(cell.phase == FINAL for cell in grid.available({}))
    assert grid.num_cells == 8 * 3


def test_a_cells_configuration_differs_in_what_the_cell_says_only(make):
    grid = make(parameters={"vtrace": {"clip_rho": 2.0}})
    cell = grid.sweep(Block("catch", "vtrace", 0.5, 2))[3]
    config, base = grid.cell_config(cell), grid.cell_config(grid.sweep(Block("catch", "none", 0.0, 0))[0])
    assert (config.loss.correction, config.loss.clip_rho, config.replay.fraction) == ("vtrace", 2.0, 0.5)
    assert (config.learner.learning_rate, config.loss.entropy_cost, config.seed) == (3e-3, 0.1, 0)
    changed = base.model_copy(update=dict(loss=config.loss, replay=config.replay, learner=config.learner))
    assert changed == config and base.loss.clip_rho == 1.0


@pytest.mark.parametrize("changes, line", [
    (dict(schemes=["vtrase"]), "did you mean vtrace?"),
    (dict(lags=[-1]), "lags.0: got -1; input should be greater than or equal to 0"),
    (dict(lags=[100_000]), "lags: 100000 updates; expected fewer than the 312 updates of a run on catch"),
    (dict(replay_fractions=[1.0]), "replay_fractions.0: got 1.0; input should be less than 1"),
    (dict(replay_fractions=[0.3]),
     "catch, none: replay.fraction=0.3 of learner.batch_size=32 is 9.6 chunks; expected a whole number"),
    (dict(num_seed=3), "num_seed: unknown key; did you mean num_seeds?"),
    (dict(learning_rates=[]), "learning_rates"),
    (dict(learning_rates=[-1.0]), "learning_rates.0: got -1.0; input should be greater than 0"),
    (dict(tasks={"pnog": {"scale": [0.0, 1.0]}}), "pnog.yaml: No such file or directory"),
    (dict(parameters={"vtrace": {"clip_roh": 2.0}}), "loss.clip_roh: unknown key; did you mean loss.clip_rho?"),
    (dict(parameters={"vtrace": {"clip_c": 2.0}}), "clip_c=2.0 > clip_rho=1.0"),
])  # fmt: skip
def test_refusals_name_the_reason(make, changes, line):
    lines = refused(make, **changes)
    assert any(line in written for written in lines), lines


def test_the_shipped_grids_are_valid_and_have_the_promised_size():
    assert Grid(LAB / "corrections.yaml").num_cells == 5 * 4 * 2 * (9 + 15)
    assert Grid(LAB / "lag.yaml").num_cells == 2 * 4 * 4 * 5
