"""The grid: what it runs, in which order, and what it refuses."""

from pathlib import Path

import pytest
import yaml

from impala import config as config_lib
from impala.config import ConfigError
from impala.lab import cells
from impala.lab.grid import FINAL, SWEEP, Block, Condition, Grid, cell_of
from impala.nodes import checking

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


def test_sizes_of_the_replay_are_conditions_where_something_is_replayed(make):
    grid = make(replay_sizes=[16, 160], num_best=1, learning_rates=[1e-3], entropy_costs=[0.01])
    none, small, large = ([Condition(f, lag, size) for lag in (0, 2)] for f, size in ((0.0, 0), (0.5, 16), (0.5, 160)))
    assert grid.conditions() == none + small + large
    assert list(map(str, grid.conditions()))[1::2] == [
        "no replay, lag 2", "50 % replay of the newest 16, lag 2", "50 % replay of the newest 160, lag 2",
    ]  # fmt: skip
    assert grid.num_cells == 2 * 6 * 3
    cells = [grid.finals(Block("catch", "vtrace", *condition), {})[0] for condition in grid.conditions()[1::2]]
    assert [grid.cell_config(cell).replay.size for cell in cells] == [10_000, 16, 160]
    assert len(set(map(grid.digest, cells))) == 3 and all(map(grid.has, cells))
    assert not grid.has(cells[1]._replace(replay_size=0)) and not make().has(cells[1])


def test_rows_from_before_sizes_are_of_the_tasks_own(make):
    cell = make().sweep(Block("catch", "vtrace", 0.5, 2))[0]
    row = {name: str(value) for name, value in cell._asdict().items()}
    assert cell_of(row) == cell
    assert cell_of({name: value for name, value in row.items() if name != "replay_size"}) == cell


@pytest.mark.parametrize("size, lag, age", [
    *(pytest.param(16, lag, float(lag), marks=pytest.mark.soak) for lag in (0, 2)), (160, 0, 4.5),
])  # fmt: skip
def test_the_age_of_what_is_replayed_is_measured(make, size, lag, age):
    """Of 16 fresh chunks an update, the newest 160 are of ten updates: 0 to 9 old, drawn uniformly."""
    grid = make(replay_sizes=[size], lags=[lag])
    cell = grid.sweep(Block("catch", "vtrace", 0.5, lag, size))[0]
    config = grid.cell_config(cell).model_copy(update={"total_frames": 40_000})
    result = cells.run(config, lag)
    assert result["updates"] > 100
    assert result["replay_age"] == pytest.approx(age, abs=0.05 + 0.05 * age)  # the first updates' data are younger


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


TWO_TASKS = {"catch": {"scale": [-1.0, 1.0]}, "other": {"scale": [0.0, 10.0], "num_seeds": 4}}


def test_several_seeds_choose_and_none_of_them_reports(make):
    grid = make(num_sweep_seeds=3, num_best=1)
    block = next(grid.blocks())
    sweep = grid.sweep(block)
    assert len(sweep) == 4 * 3 and {cell.seed for cell in sweep} == {0, 1, 2}
    returns = {cell: {(1e-3, 0.01): [0.9, -0.9, -0.9], (3e-3, 0.1): [0.1, 0.2, 0.1]}.get(
        (cell.learning_rate, cell.entropy), [0.0, 0.0, 0.0])[cell.seed] for cell in sweep}  # fmt: skip
    assert grid.settings(block, returns) == [(3e-3, 0.1)]  # not the one with the best single run
    assert [cell.seed for cell in grid.finals(block, returns)] == [3, 4, 5]
    assert all(grid.has(cell) for cell in (*sweep, *grid.finals(block, returns)))
    assert not grid.has(sweep[0]._replace(seed=3)) and not grid.has(sweep[0]._replace(phase=FINAL, seed=2))


def test_a_task_without_a_sweep_takes_what_the_others_choose(make, tmp_path):
    (tmp_path / "other.yaml").write_text((LAB / "catch.yaml").read_text())
    (tmp_path / "long.yaml").write_text((LAB / "catch.yaml").read_text())
    long = {"scale": [0.0, 1.0], "sweep": False, "num_seeds": 2}
    grid = make(tasks={"long": long} | TWO_TASKS, schemes=["none"], lags=[0], replay_fractions=[0.0], num_best=1)
    swept = Block("catch", "none", 0.0, 0)
    block = swept._replace(task="long")
    assert grid.sweep(block) == [] and grid.finals(block, {}) == []
    # scaled: 0.5 0.5 1.0 0.5 on catch, 0.9 0.1 0.2 0.0 on the other; the sum decides, 1.4 of the first
    returns = dict(zip(grid.sweep(swept), [0.0, 0.0, 1.0, 0.0]))
    assert grid.settings(block, returns) == []  # the other task's sweep is not done
    returns |= dict(zip(grid.sweep(swept._replace(task="other")), [9.0, 1.0, 2.0, 0.0]))
    assert grid.settings(block, returns) == [(1e-3, 0.01)] and grid.settings(swept, returns) == [(3e-3, 0.01)]
    assert [cell.seed for cell in grid.finals(block, returns)] == [1, 2]
    assert not grid.has(grid.finals(block, returns)[0]._replace(phase=SWEEP, seed=0))
    assert grid.num_cells == (0 + 2) + (4 + 3) + (4 + 4)
    assert [cell.task for cell in grid.available({})] == ["catch"] * 4 + ["other"] * 4


def test_settings_at_an_edge_of_the_sweep(make):
    grid = make(learning_rates=[1e-3, 3e-3, 1e-2], entropy_costs=[0.01])
    assert [grid.at_edge("vtrace", (rate, 0.01)) for rate in (1e-3, 3e-3, 1e-2)] == [[True, False], [False, False], [True, False]]


def test_a_cells_configuration_differs_in_what_the_cell_says_only(make):
    grid = make(schemes=["none", "wide"], variants={"wide": {"correction": "vtrace", "clip_rho": 2.0}})
    cell = grid.sweep(Block("catch", "wide", 0.5, 2))[3]
    config, base = grid.cell_config(cell), grid.cell_config(grid.sweep(Block("catch", "none", 0.0, 0))[0])
    assert (config.loss.correction, config.loss.clip_rho, config.replay.fraction) == ("vtrace", 2.0, 0.5)
    assert (config.learner.learning_rate, config.loss.entropy_cost, config.seed) == (3e-3, 0.1, 0)
    changed = base.model_copy(update=dict(loss=config.loss, replay=config.replay, learner=config.learner))
    assert changed == config and base.loss.clip_rho == 1.0


Q_BASED = dict(schemes=["vtrace", "retrace"], policy_epsilons=[0.0, 0.2], num_evaluations=32, q_agent={"target_period": 7})


def test_a_q_based_scheme_is_another_agent_s_on_the_same_chunks(make):
    grid = make(**Q_BASED)
    one, other = (grid.sweep(Block("catch", scheme, 0.5, 2))[1] for scheme in ("vtrace", "retrace"))
    assert (one.learning_rate, one.entropy, other.learning_rate, other.entropy) == (1e-3, 0.1, 1e-3, 0.2)
    v_based, q_based = grid.cell_config(one), grid.cell_config(other)
    assert (q_based.agent.name, q_based.agent.policy_epsilon, q_based.agent.target_period) == ("q_unrolls", 0.2, 7)
    assert q_based.loss.correction == "retrace" and v_based.agent.name == "actor_critic"
    for same in ("environment", "network", "learner", "replay", "actor", "total_frames", "seed"):
        assert getattr(v_based, same) == getattr(q_based, same), same
    assert q_based.loss.discount == v_based.loss.discount and q_based.loss.reduction == v_based.loss.reduction
    assert grid.num_cells == 8 * (4 + 2 * 3) and grid.at_edge("retrace", (1e-3, 0.2))[1]
    assert make(**Q_BASED | {"num_evaluations": 33}).digest(other) != grid.digest(other)


def test_what_a_task_says_reaches_both_agents_whichever_it_names(make, tmp_path):
    make()
    named = {"q_unrolls": "agent: {name: q_unrolls, target_period: 7}\nloss: {lambda: 0.8, correction: retrace}\n"}
    for text in ("loss: {lambda: 0.8, entropy_cost: 0.01}\n", named["q_unrolls"]):
        kept = [line for line in (LAB / "catch.yaml").read_text().splitlines(True) if not line.startswith("loss:")]
        (tmp_path / "catch.yaml").write_text("".join(kept) + text)
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | Q_BASED | dict(schemes=["retrace"])))
        grid = Grid(tmp_path / "grid.yaml")
        cell = grid.sweep(Block("catch", "retrace", 0.5, 2))[1]
        config = grid.cell_config(cell)
        assert (config.loss.lambda_, config.agent.policy_epsilon, config.loss.correction) == (0.8, 0.2, "retrace")


def test_code_of_ones_own_is_hashed_wherever_the_grid_names_it(make, tmp_path, monkeypatch):
    (tmp_path / "own_vtrace.py").write_text("from impala.corrections.vtrace import vtrace as mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    grid = make(schemes=["vtrace", "other"], variants={"other": {"correction": "own_vtrace:mine", "clip_rho": 2.0}})
    assert [*grid.own_hashes()] == ["own_vtrace:mine"]


def test_a_q_based_cell_trains_and_is_evaluated(make):
    grid = make(**Q_BASED)
    cell = grid.sweep(Block("catch", "retrace", 0.5, 2))[0]
    config = grid.cell_config(cell).model_copy(update={"total_frames": 30_000})
    result = cells.run(config, 2, 32)
    assert result["status"] == "done" and result["return"] > -0.9 and 32 * result["return"] % 2 == pytest.approx(0, abs=1e-6)
    assert 0.2 < result["effective_sample_size"] <= 1.0 and result["policy_entropy"] != result["policy_entropy"]
    assert result["frames"] >= 30_000


def variant(**loss):
    return dict(schemes=["other"], variants={"other": loss})


NAN = float("nan")


@pytest.mark.parametrize("changes, line", [
    (dict(schemes=["vtrase"]), "schemes: 'vtrase' is neither a correction nor a variant; did you mean vtrace?"),
    (dict(lags=[-1]), "lags.0: got -1; input should be greater than or equal to 0"),
    (dict(lags=[100_000]), "lags: 100000 updates; expected fewer than the 312 updates of a run on catch"),
    (dict(replay_fractions=[1.0]), "replay_fractions.0: got 1.0; input should be less than 1"),
    (dict(replay_fractions=[0.3]),
     "catch, none: replay.fraction=0.3 of learner.batch_size=32 is 9.6 chunks; expected a whole number"),
    (dict(num_seed=3), "num_seed: unknown key; did you mean num_seeds?"),
    (dict(learning_rates=[]), "learning_rates"),
    (dict(learning_rates=[-1.0]), "learning_rates.0: got -1.0; input should be greater than 0"),
    (dict(tasks={"pnog": {"scale": [0.0, 1.0]}}), "pnog.yaml: No such file or directory"),
    (dict(schemes=["vtrace", "vtrace"]), "schemes: vtrace is named twice; expected each once"),
    (dict(lags=[1, 2, 1]), "lags: 1 is named twice"),
    (dict(replay_sizes=[7, 7]), "replay_sizes: 7 is named twice"),
    (Q_BASED | dict(q_agent={"policy_epsilon": 0.3}), "q_agent: policy_epsilon is what policy_epsilons sets"),
    (dict(replay_sizes=[0]), "replay_sizes.0: got 0; input should be greater than or equal to 1"),
    (dict(q_agent={"target_period": 7}), "q_agent: no scheme is Q-based; expected one, or nothing here"),
    (dict(policy_epsilons=[0.1]), "policy_epsilons: no scheme is Q-based"),
    (dict(replay_sizes=[7], replay_fractions=[0.0]), "replay_sizes=[7]: nothing is replayed; expected a replay fraction"),
    (Q_BASED | dict(policy_epsilons=[0.1, 0.1]), "policy_epsilons: 0.1 is named twice"),
    (dict(tasks={"catch": {"scale": [-1.0, 1.0], "sweep": False}}), "tasks: none is swept; expected one to choose among"),
    (dict(tasks={"catch": {"scale": [-1.0, 1.0], "num_seeds": 0}}), "tasks.catch.num_seeds: got 0"),
    (dict(tasks={"catch": {"scale": [1.0, 1.0]}}), "expected the return that counts as 0, then a larger one"),
    (dict(tasks={"catch": {"scale": [NAN, 1.0]}}), "tasks.catch.scale.0: got 'nan'; input should be a finite number"),
    (variant(correction="vtrace", clip_roh=2.0), "loss.clip_roh: unknown key; did you mean loss.clip_rho?"),
    (variant(correction="vtrace", clip_c=2.0), "clip_c=2.0 > clip_rho=1.0"),
    (dict(schemes=["retrase"]), "schemes: 'retrase' is neither a correction nor a variant; did you mean retrace?"),
    (dict(schemes=["retrace"]), "num_evaluations=0: training episodes of 'retrace' explore and say less"),
    (Q_BASED | dict(policy_epsilons=[0.0]), "policy_epsilons: 1 of them; expected as many as entropy_costs, 2"),
    (Q_BASED | dict(policy_epsilons=[0.0, 2.0]), "policy_epsilons.1: got 2.0"),
    (Q_BASED | dict(q_agent={"target_perod": 7}), "agent.target_perod: unknown key; did you mean agent.target_period?"),
    (variant(correction="vtrase"), "did you mean vtrace?"),
    (variant(correction="vtrace", entropy_cost=0.1), "variants: 'other': entropy_cost is what entropy_costs sets"),
    (variant(clip_rho=2.0), "variants: 'other'; expected a name of its own that `schemes` lists, and its `correction`"),
    (dict(variants={"unused": {"correction": "vtrace"}}), "variants: 'unused'; expected a name of its own"),
    (dict(schemes=["vtrace"], variants={"vtrace": {"correction": "none"}}), "variants: 'vtrace'; expected a name of its own"),
])  # fmt: skip
def test_refusals_name_the_reason(make, changes, line):
    lines = refused(make, **changes)
    assert any(line in written for written in lines), lines


@pytest.mark.parametrize("changes, line", [
    ("program: a3c\nactor: {num_environments: 32, num_lanes: 1}\n", "expected one that learns from unrolls (impala, seed, ga3c)"),
    ("population: {size: 2}\n", "catch, none: population.size=2: one learner trains a cell; expected 1"),
])  # fmt: skip
def test_a_task_that_lockstep_does_not_train_is_refused(make, tmp_path, changes, line):
    make()
    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text() + changes)
    with pytest.raises(ConfigError) as caught:
        Grid(tmp_path / "grid.yaml")
    assert any(line in written for written in caught.value.lines), caught.value.lines


def test_what_is_refused_is_tried_out_once(make, monkeypatch):
    tried, check = [], checking.check
    monkeypatch.setattr(checking, "check", lambda config: tried.append(config) or check(config))
    lines = refused(make, schemes=["nowhere:mine"], lags=[1, 2, 3], tasks={"catch": {"scale": [-1.0, 1.0]}})
    assert len(tried) == 1 and len(lines) == 1 and "nowhere" in lines[0]


def test_tasks_share_the_fresh_chunks_or_are_refused():
    made = config_lib.load("configs/catch.yaml", {"environment.name": ["catch", "river_swim", "cliff_walking"], "actor.num_environments": 6, "actor.num_lanes": 3, "target_return": None})
    with pytest.raises(ConfigError, match="8 fresh chunks a batch; in lockstep expected a multiple of the 3 tasks"):
        checking.check_lockstep(made)


def test_a_digest_is_of_everything_that_a_cell_is_trained_with(make, tmp_path):
    cell = Block("catch", "vtrace", 0.5, 2)
    cells = make().sweep(cell)
    digest = make().digest(cells[0])
    assert len({digest, *(make().digest(c) for c in make().sweep(Block("catch", "vtrace", 0.5, 0)))}) == 5
    assert make(num_seeds=1, schemes=["vtrace"]).digest(cells[0]) == digest  # not of its neighbours
    assert make(tasks={"catch": {"scale": [-1.0, 1.0], "total_frames": 20_000}}).digest(cells[0]) != digest
    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text().replace("[64, 64]", "[64, 65]"))
    assert Grid(tmp_path / "grid.yaml").digest(cells[0]) != digest


@pytest.mark.parametrize("row, score", [
    (dict(status="done", **{"return": "0.5"}), 0.5),
    (dict(status="diverged", **{"return": "0.5"}), -1.0),
    (dict(status="diverged", **{"return": "-1.5"}), -1.5),
    (dict(status="done", **{"return": "nan"}), -1.0),
])  # fmt: skip
def test_a_run_that_diverged_counts_as_the_tasks_zero(make, row, score):
    grid = make()
    assert grid.score(next(grid.available({})), row) == score


def test_which_cells_a_grid_can_have(make):
    grid = make()
    for cell in list(grid.available({})):
        assert grid.has(cell)
        for change in (dict(task="pong"), dict(lag=1), dict(seed=1), dict(learning_rate=0.5), dict(phase=FINAL)):
            assert not grid.has(cell._replace(**change))
        assert grid.has(cell._replace(phase=FINAL, seed=3)) and not grid.has(cell._replace(phase=FINAL, seed=4))


def test_the_shipped_grids_are_valid_and_have_the_promised_size():
    assert Grid(LAB / "corrections.yaml").num_cells == 5 * 4 * 2 * (9 + 15)
    assert Grid(LAB / "lag.yaml").num_cells == 2 * 4 * 4 * 5
    assert Grid(LAB / "lag_values.yaml").num_cells == 2 * 4 * 3 * 5


@pytest.mark.parametrize("word", sorted(path.stem for path in LAB.glob("*.yaml") if "schemes:" in path.read_text()))
def test_keys_select_of_every_shipped_grid(word):
    """What the file has for schemes and replay that a key leaves out is no reason to refuse it."""
    grid = Grid(LAB / f"{word}.yaml")
    whole = {*grid.blocks()}
    for keys in ({"schemes": ["none", "vtrace"]}, {"replay_fractions": [0.0]}, {"num_seeds": 2}, {"lags": grid.config.lags[:1]}):
        part = Grid(LAB / f"{word}.yaml", keys)
        assert 0 < part.num_cells and ("replay_fractions" in keys or {*part.blocks()} <= whole)
    if grid.config.variants:
        name, *_ = grid.config.variants
        assert list(Grid(LAB / f"{word}.yaml", {"schemes": ["vtrace", name]}).config.variants) == [name]
    for value in ("vtrace", [["vtrace"]], [3], None):
        with pytest.raises(ConfigError, match="schemes"):
            Grid(LAB / f"{word}.yaml", {"schemes": value})
