"""A small grid for real: workers, results.csv, a kill, a second start, table and figures."""

import contextlib
import csv
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent import futures
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from impala import cli
from impala import config as config_lib
from impala.config import shipped
from impala.lab import cells, compare, figures, report
from impala.lab import scores as scores_lib
from impala.lab.grid import FINAL, SWEEP, Block, Condition, Grid, cell_of
from impala.nodes import hangs, own_parts
from tests.lab.test_grid import LAB, SMALL
from tests.programs import running
from tests.test_own_parts import tried_out_here

QUICK = dict(
    schemes=["none", "vtrace"], lags=[1], replay_fractions=[0.0], learning_rates=[3e-3], entropy_costs=[0.01, 0.1],
    num_best=1, num_seeds=2, tasks={"catch": {"scale": [-1.0, 1.0], "total_frames": 1_500}},
)  # fmt: skip
NUM_CELLS = 2 * (2 + 2)


def rows(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison that was killed after its first cell and started again."""
    import yaml

    folder = tmp_path_factory.mktemp("lab")
    (folder / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
    (folder / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK))
    command = ["compare", "--config", folder / "grid.yaml", "--output", folder / "out"]
    process = running.start(*command, "--workers", 1)
    running.wait_for(lambda: (folder / "out" / "results.csv").exists() and rows(folder / "out"), 120, "a first cell")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = rows(folder / "out")
    with (folder / "out" / "results.csv").open("a") as file:
        file.write("final,catch,vtr")  # the kill may cut a line short
    result = running.run(*command, "--workers", 1, timeout=240)
    return folder, kept, result


def test_finishes_without_losing_a_cell(finished):
    folder, kept, result = finished
    assert result.returncode == 0, result.stderr
    done = rows(folder / "out")
    assert len(done) == NUM_CELLS and done[: len(kept)] == kept
    assert len({cell_of(row) for row in done}) == NUM_CELLS
    assert all(row["command"].startswith("impala compare --config") and row["skipped_updates"] == "0" for row in done)
    assert all(row["status"] == "done" and row["commit"] and "tensorflow=2.15.1" in row["versions"] for row in done)
    assert all(-1 <= float(row["return"]) <= 1 and len(row["curve"].split()) == cells.NUM_POINTS for row in done)
    assert len(set(compare.COLUMNS)) == len(compare.COLUMNS), "two columns of one name"
    assert all({row["entropy"] for row in done} == {"0.01", "0.1"} and 0 < float(row["policy_entropy"]) < 1.1 for row in done)
    assert "impala compare --config" in (folder / "out" / "command.txt").read_text()


def test_writes_a_table_and_figures(finished):
    folder, _, result = finished
    table = (folder / "out" / "table.md").read_text()
    assert "| `vtrace` |" in table and "No replay, lag 1" in table and "The whole sweep" in table
    for name in ("curves.png", "means.png", "robustness.png"):
        assert (folder / "out" / name).read_bytes()[:4] == b"\x89PNG" and str(folder / "out" / name) in result.stdout


def test_a_grid_with_other_settings_refuses_the_cells_that_are_there(finished, capsys):
    folder, _, _ = finished
    before = (folder / "out" / "results.csv").read_bytes()
    command = ["compare", "--config", folder / "grid.yaml", "--output", folder / "out", "--total-frames", 20_000]
    (line,) = running.refused(capsys, *command)
    assert "trained with other settings" in line and "another --output" in line
    assert (folder / "out" / "results.csv").read_bytes() == before


def test_a_third_start_runs_nothing(finished):
    folder, _, _ = finished
    before = (folder / "out" / "results.csv").read_bytes()
    assert cli.main(["compare", "--config", str(folder / "grid.yaml"), "--output", str(folder / "out")]) == 0
    assert (folder / "out" / "results.csv").read_bytes() == before


def test_a_cell_says_with_every_update_and_step_of_an_evaluation_that_it_goes_on(monkeypatch):
    """Else one that takes longer than `liveness_seconds` in all would be ended as one that hangs."""
    called = []
    monkeypatch.setattr(hangs, "watched", lambda config, doing: contextlib.nullcontext(lambda: bool(called.append(1))))
    config = config_lib.load(LAB / "catch.yaml", {"total_frames": 1_500})
    num_updates = cells.run(config, 0)["updates"]
    assert len(called) == num_updates > 1
    called.clear()
    cells.run(config, 0, num_evaluations=2)
    assert len(called) >= num_updates + 9, "an episode of Catch has nine steps"


@pytest.fixture
def checkout(finished, tmp_path, monkeypatch):
    """The current folder: a checkout whose grid is recorded. Returns the folder of what is recorded."""
    folder, _, _ = finished
    (tmp_path / "configs").mkdir()
    shutil.copytree(folder, tmp_path / "configs/lab", ignore=shutil.ignore_patterns("out"))
    shutil.copytree(folder / "out", tmp_path / "docs/results/grid")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "configs")
    return tmp_path / "docs/results/grid"


def test_keys_leave_a_recorded_grid_as_it_is(checkout, tmp_path, capsys):
    """They select a part of it, or more, in a folder that begins with what is recorded."""
    recorded = checkout
    with (recorded / "results.csv").open("a") as file:
        file.write("final,catch,vtr")  # to be written again it would be opened for writing
    before = {file: file.read_bytes() for file in recorded.iterdir() if file.suffix == ".csv" or file.name == "command.txt"}
    command = ["compare", "--config", "configs/lab/grid.yaml"]
    assert cli.main([*command, "--schemes", "[vtrace]", "--workers", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"all {NUM_CELLS // 2} cells in runs/compare/grid were trained before; only the report is written again"
    assert "`none`" not in (tmp_path / "runs/compare/grid/table.md").read_text()
    table = (recorded / "table.md").read_bytes()
    assert cli.main([*command, "--num-seeds", "3", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("2 of 10 cells to train, into runs/compare/grid;")
    assert len(rows(tmp_path / "runs/compare/grid")) == NUM_CELLS + 2 and (recorded / "table.md").read_bytes() == table
    assert cli.main(command) == 0 and before == {file: file.read_bytes() for file in before}
    assert cli.main([*command, "--output", "runs/short", "--total-frames", "3000", "--schemes", "[none]", "--workers", "1"]) == 0
    assert {row["frames"] for row in rows(tmp_path / "runs/short")} != {row["frames"] for row in rows(recorded)}


def test_what_is_trained_otherwise_now_is_not_taken_from_what_is_recorded(checkout, tmp_path):
    grid = Grid("configs/lab/grid.yaml", {"total_frames": 3_000})
    results = compare.Results(tmp_path / "results.csv", grid)
    results.take(checkout / "results.csv")
    assert not results.rows
    results = compare.Results(tmp_path / "results.csv", Grid("configs/lab/grid.yaml", {"schemes": ["none"]}))
    results.take(checkout / "results.csv")
    assert len(results.rows) == len(rows(tmp_path)) == NUM_CELLS // 2


def test_a_record_that_is_not_complete_is_gone_on_with_elsewhere(checkout, tmp_path, capsys):
    lines = (checkout / "results.csv").read_text().splitlines(keepends=True)
    (checkout / "results.csv").write_text("".join(lines[:-1]))
    before = {file: file.read_bytes() for file in checkout.iterdir()}
    assert cli.main(["compare", "--config", "configs/lab/grid.yaml", "--workers", "1"]) == 0
    assert f"1 of {NUM_CELLS} cells to train, into runs/compare/grid;" in capsys.readouterr().out
    assert before == {file: file.read_bytes() for file in checkout.iterdir()}
    assert len(rows(tmp_path / "runs/compare/grid")) == NUM_CELLS


def test_what_is_recorded_is_found_from_another_folder(checkout, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert cli.main(["compare", "--config", "../configs/lab/grid.yaml"]) == 0
    assert f"all {NUM_CELLS} cells in ../docs/results/grid were trained before" in capsys.readouterr().out


def test_a_grid_of_ones_own_of_a_recorded_ones_name_is_another(checkout, tmp_path, capsys):
    shutil.copytree("configs/lab", "mine")
    before = {file: file.read_bytes() for file in checkout.iterdir()}
    assert cli.main(["compare", "--config", "mine/grid.yaml", "--schemes", "[none]", "--total-frames", "3000", "--workers", "1"]) == 0
    assert before == {file: file.read_bytes() for file in checkout.iterdir()}
    assert len(rows(tmp_path / "runs/compare/grid")) == NUM_CELLS // 2


@pytest.mark.soak
def test_a_cell_is_deterministic(finished):
    folder, _, _ = finished
    row = rows(folder / "out")[-1]
    cell = cell_of(row)
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context, cells.prepare_worker) as pool:
        again = pool.submit(cells.run, Grid(folder / "grid.yaml").cell_config(cell), cell.lag).result()
    assert f"{again['return']:.6g}" == row["return"]
    assert " ".join(f"{x:.4g}" for x in again["curve"]) == row["curve"]


@pytest.mark.soak
def test_ctrl_c_keeps_what_is_done(tmp_path):
    import yaml

    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK | dict(num_seeds=100)))
    process = running.start("compare", "--config", tmp_path / "grid.yaml", "--output", tmp_path / "out", "--workers", 2)
    running.wait_for(lambda: (tmp_path / "out" / "results.csv").exists() and rows(tmp_path / "out"), 120, "a first cell")
    running.press_ctrl_c(process)
    assert process.wait(30) == 130
    assert "the same command goes on" in process.stderr.read()
    running.wait_for(lambda: not running.survivors(process), 10, "the end of its workers")
    done = rows(tmp_path / "out")
    assert 0 < len(done) < 200 and all(row["status"] == "done" and len(row) == len(compare.COLUMNS) for row in done)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["once", "always", "dies"])
def test_a_cell_that_fails_is_tried_again_and_ends_nothing_else(tmp_path, how):
    import yaml

    text = (LAB / "catch.yaml").read_text()
    (tmp_path / "catch.yaml").write_text(text.replace("{name: catch}", "{name: 'tests.lab.flaky:Catch'}"))
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK | dict(schemes=["none"], entropy_costs=[0.01])))
    (tmp_path / "how").write_text(how)
    workers = 2 if how == "dies" else 1  # what runs beside it goes down with it, and is run again
    command = ["compare", "--config", tmp_path / "grid.yaml", "--output", tmp_path / "out", "--workers", workers]
    result = running.run(*command, FLAKY=str(tmp_path / "how"))
    done = rows(tmp_path / "out")
    if how == "once":
        assert result.returncode == 0 and len(done) == 2, result.stderr
    else:
        error = "ValueError: as asked for" if how == "always" else "BrokenProcessPool: "
        assert result.returncode == 1 and error in result.stderr and "\n1 cells are kept" in result.stderr
        assert len(done) == 1 and (how == "dies" or done[0]["seed"] == "2"), "the other seed's"


def test_code_that_changes_while_a_grid_runs_ends_it(tmp_path, monkeypatch):
    import yaml

    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK))
    grid = Grid(tmp_path / "grid.yaml")
    results = compare.Results(tmp_path / "results.csv", grid)
    commits = iter(["abc", "abc-dirty", "abc", "unknown"])
    monkeypatch.setattr(compare, "_code", lambda grid: next(commits))
    with pytest.raises(RuntimeError, match="the code was abc and is abc-dirty now; start again"):
        compare.run(grid, results, num_workers=1, command="")
    monkeypatch.setattr(compare.concurrent.futures, "ProcessPoolExecutor", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # it goes on where git did not answer
        compare.run(grid, results, num_workers=1, command="")


def test_results_from_before_sizes_of_the_replay_count(finished, tmp_path):
    folder, _, _ = finished
    path, grid = tmp_path / "results.csv", Grid(folder / "grid.yaml")
    with path.open("w", newline="") as file:
        names = [name for name in compare.COLUMNS if name not in ("replay_size", "replay_age")]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows(folder / "out"))
    assert compare.Results(path, grid).returns == compare.Results(folder / "out" / "results.csv", grid).returns


@pytest.mark.parametrize("lacking", ["status", "curve", "skipped_updates", "wall_seconds", "machine", "return"])
def test_a_file_without_a_column_that_is_needed_is_refused(finished, tmp_path, capsys, lacking):
    folder, _, _ = finished
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [name for name in compare.COLUMNS if name != lacking], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows(folder / "out"))
    (line,) = running.refused(capsys, "compare", "--config", folder / "grid.yaml", "--output", tmp_path)
    assert "its first line is not that of a comparison's results" in line


def test_a_damaged_row_is_named(finished, tmp_path, capsys):
    folder, _, _ = finished
    damaged = rows(folder / "out")
    damaged[1]["learning_rate"] = "3e-x"
    with (tmp_path / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, compare.COLUMNS)
        writer.writeheader()
        writer.writerows(damaged)
    (line,) = running.refused(capsys, "compare", "--config", folder / "grid.yaml", "--output", tmp_path)
    assert "the row of catch" in line and "is damaged: could not convert string to float: '3e-x'" in line


@pytest.mark.parametrize("damage", [lambda line: line.replace(b",", b"", 1), lambda line: line.rpartition(b",")[0] + b","])
def test_a_file_with_lines_that_are_no_rows_is_refused_and_left_as_it_is(finished, tmp_path, capsys, damage):
    folder, _, _ = finished
    lines = (folder / "out" / "results.csv").read_bytes().split(b"\n")
    lines[2] = damage(lines[2])
    (tmp_path / "results.csv").write_bytes(b"\n".join(lines))
    (line,) = running.refused(capsys, "compare", "--config", folder / "grid.yaml", "--output", tmp_path)
    assert "results.csv: 1 of its lines cannot be read as rows; expected them mended, or removed" in line
    assert (tmp_path / "results.csv").read_bytes() == b"\n".join(lines)


def test_a_scheme_of_ones_own_that_was_edited_is_another_one(tmp_path, monkeypatch):
    import yaml

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own_parts, "subprocess", SimpleNamespace(run=tried_out_here))  # git runs in its own
    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
    grids, digests, codes = {}, [], []
    cases = [("a = 1", "schemes_of_one:mine"), ("a = 2", "schemes_of_one:mine"), ("a = 2", "none"), ("a = 1", "none"), ("a = 1", "schemes_of_one:mine")]
    for text, scheme in cases:
        (tmp_path / "schemes_of_one.py").write_text(f"from impala.corrections import none as mine\n{text}\n")
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK | dict(schemes=[scheme])))
        grid = grids[scheme] = grids.get(scheme) or Grid(tmp_path / "grid.yaml")
        digests.append(grid.digest(next(iter(grid.cells({})))))
        codes.append(compare._code(grid))
    for found in (digests, codes):
        assert found[4] == found[0] != found[1] and found[2] == found[3]


@pytest.mark.soak
def test_a_scheme_of_ones_own_that_is_edited_while_cells_train_keeps_none_of_them_as_its_own(tmp_path, monkeypatch):
    import yaml

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "schemes_that_change.py"
    file.write_text("from impala.corrections import none as mine\n")
    (tmp_path / "catch.yaml").write_text((LAB / "catch.yaml").read_text())
    settings = dict(schemes=["schemes_that_change:mine"], entropy_costs=[0.01])
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | QUICK | settings))
    grid = Grid(tmp_path / "grid.yaml")
    results = compare.Results(tmp_path / "results.csv", grid)
    with pytest.raises(RuntimeError, match="a part of your own was edited meanwhile"):
        compare.run(grid, results, num_workers=1, command="", on_cell=lambda *_: file.write_text(file.read_text() + "a = 2\n"))
    assert len(results.rows) == 1, "what was trained before"


def is_worker(process: psutil.Process) -> bool:
    """Returns whether `process` trains cells; a short command that has ended since it was listed does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return "spawn_main" in " ".join(process.cmdline())
    return False


def test_workers_end_with_a_command_that_is_killed(tmp_path, finished):
    folder, _, _ = finished
    endless = ["--total-frames", 10**7, "--workers", 1]
    process = running.start("compare", "--config", folder / "grid.yaml", "--output", tmp_path / "out", *endless)
    parent = psutil.Process(process.pid)
    running.wait_for(lambda: any(map(is_worker, parent.children())), 60, "a worker")
    time.sleep(1)
    workers = parent.children()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert workers and not alive


def test_a_second_command_in_the_same_folder_is_refused(tmp_path, capsys):
    with compare._alone_in(tmp_path):
        (line,) = running.refused(capsys, "compare", "--config", LAB / "lag.yaml", "--output", tmp_path)
    assert "another command writes results there" in line


def test_bad_usage_is_refused_before_tensorflow(tmp_path):
    code = (
        "import sys\nfrom impala import cli\n"
        f"status = cli.main(['compare', '--config', '{LAB}/corrections.yaml', '--lags', '[1000000]'])\n"
        "assert 'tensorflow' not in sys.modules\nsys.exit(status)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=running.ROOT, check=False)
    assert result.returncode == 2 and "expected fewer than the" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [
    [], ["--config", "nowhere.yaml"], ["--config", LAB / "lag.yaml", "--workers", 0], ["--config", LAB / "lag.yaml", "--workers", 10_000],
    ["--config", LAB / "lag.yaml", "--resume"],
])  # fmt: skip
def test_wrong_arguments(arguments, capsys):
    assert len(running.refused(capsys, "compare", *arguments)) == 1


# --- the numbers of the report


def test_curve_and_late_mean():
    frames, scores = [5, 10, 95, 99], [1.0, 3.0, 5.0, 9.0]
    curve = cells.curve(frames, scores, 100)
    assert curve[1] == 1.0 and curve[2] == 3.0 and curve[23] == 5.0 and curve[24] == 9.0 and np.isnan(curve[5])
    assert cells._late_mean(frames, scores, 100) == 7.0
    assert cells._late_mean([5], [4.0], 100) == 4.0


@pytest.fixture(autouse=True)
def few_bootstrap_samples(monkeypatch):
    """What these tests compare does not depend on their number, and 2,000 of them take ten seconds."""
    monkeypatch.setattr(scores_lib, "_NUM_BOOTSTRAP", 100)


@pytest.fixture
def by_hand(tmp_path):
    """Two tasks, two settings, two seeds; every return written down. The scales are 0 to 10 and −1 to 1."""
    import yaml

    for task in ("catch", "cartpole"):
        (tmp_path / f"{task}.yaml").write_text((LAB / f"{task}.yaml").read_text())
    changes = dict(
        tasks={"cartpole": {"scale": [0.0, 10.0]}, "catch": {"scale": [-1.0, 1.0]}}, schemes=["none", "vtrace"],
        lags=[1], replay_fractions=[0.0], learning_rates=[1e-3, 3e-3, 1e-2], entropy_costs=[0.01], num_best=2, num_seeds=2,
    )  # fmt: skip
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(SMALL | changes))
    grid = Grid(tmp_path / "grid.yaml")
    sweeps = {("cartpole", "none"): [1, 5, 4], ("catch", "none"): [0, 0.2, -1],
              ("cartpole", "vtrace"): [9, 8, 2], ("catch", "vtrace"): [1, 0, 0.5]}  # fmt: skip
    # best setting first, seed 1 and 2 of each; the second "none" of cartpole diverged
    finals = {("cartpole", "none"): [4, "diverged", 2, 2], ("catch", "none"): [0, 0, 0.5, 0.5],
              ("cartpole", "vtrace"): [8, 10, 8, 10], ("catch", "vtrace"): [1, 1, 0, 0]}  # fmt: skip
    table_rows, returns = [], {}

    def add(cell, value):
        status, number = ("done", value) if value != "diverged" else ("diverged", 7)
        row = {name: str(x) for name, x in cell._asdict().items()}
        frames = grid.total_frames(cell.task) // (1 if status == "done" else 5)
        row |= {"return": str(number), "status": status, "curve": " ".join([str(number)] * cells.NUM_POINTS)}
        row |= {"frames": str(frames), "wall_seconds": "36", "skipped_updates": "3" if value == "diverged" else "0", "commit": "abc", "date": "2026-11-20", "machine": "two cores"}
        returns[cell] = grid.score(cell, row)
        table_rows.append(row)

    for block in grid.blocks():
        for cell, value in zip(grid.sweep(block), sweeps[block.task, block.scheme], strict=True):
            add(cell, value)
        for cell, value in zip(grid.finals(block, returns), finals[block.task, block.scheme], strict=True):
            add(cell, value)
    return grid, table_rows


def test_the_bar_counts_cells_and_estimates_by_their_frames(by_hand, monkeypatch, capsys):
    """In a terminal; half of the frames done in a minute leave a minute, however many cells that are."""
    grid, table_rows = by_hand
    of = {name: [row for row in table_rows if row["task"] == name] for name in ("catch", "cartpole")}
    assert grid.num_frames == sum(len(of[name]) * grid.total_frames(name) for name in of)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    bar = compare._Progress(grid, SimpleNamespace(returns={cell_of(row): grid.score(cell_of(row), row) for row in of["catch"]}))
    clock = [0.0]
    monkeypatch.setattr(bar._bar, "get_time", lambda: clock[0])
    with bar as on_cell:
        for row in of["cartpole"][: len(of["cartpole"]) // 2]:
            clock[0] += 60.0
            on_cell(cell_of(row), {"return": 1.0, "wall_seconds": 60.0})
        (task,) = bar._bar.tasks
        remaining = task.time_remaining
    left = len(of["cartpole"]) - len(of["cartpole"]) // 2
    assert remaining == pytest.approx(60.0 * left, rel=0.01)
    shown = capsys.readouterr().out
    assert f"{len(of['catch']) + len(of['cartpole']) // 2}/{len(table_rows)} cells" in shown and "cartpole none" in shown


def test_scores_are_means_over_settings_seed_by_seed(by_hand):
    grid, table_rows = by_hand
    scores = scores_lib.Scores(grid, table_rows)
    np.testing.assert_array_equal(scores.finals(Block("cartpole", "none", 0.0, 1)), [3, 1])  # (4+2)/2, (0+2)/2
    np.testing.assert_array_equal(scores.finals(Block("catch", "vtrace", 0.0, 1)), [0.5, 0.5])
    np.testing.assert_array_equal(scores.sweep(Block("catch", "none", 0.0, 1)), [0.2, 0, -1])
    np.testing.assert_allclose(scores.by_task("none", Condition(0.0, 1)), [[0.3, 0.1], [0.625, 0.625]])
    np.testing.assert_allclose(scores.by_task("vtrace", Condition(0.0, 1)), [[0.8, 1.0], [0.75, 0.75]])
    assert scores_lib.Scores(grid, table_rows[:-1]).by_task("vtrace", Condition(0.0, 1)) is None


def test_curves_are_those_of_the_scores(by_hand):
    grid, table_rows = by_hand
    curves = scores_lib.Scores(grid, table_rows).curves(Block("cartpole", "none", 0.0, 1))
    assert curves.shape == (2, cells.NUM_POINTS)
    np.testing.assert_array_equal(curves[0], [3.0] * cells.NUM_POINTS)  # (4+2)/2
    np.testing.assert_array_equal(curves[1], [4.5] * 5 + [1.0] * 20)  # 7 until it diverged after a fifth, then 0; and 2
    np.testing.assert_allclose(scores_lib.Scores(grid, table_rows).areas(Block("cartpole", "none", 0.0, 1)), [3.0, 1.7])


def test_a_report_says_where_its_numbers_come_from(by_hand, tmp_path):
    grid, table_rows = by_hand
    report.write(grid, table_rows, tmp_path)
    last = (tmp_path / "table.md").read_text().splitlines()[-1]
    assert last == "28 runs of 0.3 hours on one core in all, 2026-11-20; commits abc; two cores."


def test_a_block_whose_runs_are_too_short_for_an_episode_has_no_curve(by_hand, tmp_path):
    grid, table_rows = by_hand
    nothing = " ".join(["nan"] * cells.NUM_POINTS)
    rows = [row | ({"curve": nothing} if row["task"] == "catch" and row["status"] == "done" else {}) for row in table_rows]
    report.write(grid, rows, tmp_path)
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_sweep_that_is_not_done_says_so(by_hand):
    grid, table_rows = by_hand
    sweeps = [row for row in table_rows if row["phase"] == SWEEP]
    assert "| `none` | 3 (1 to 5, 2 of 3) | – |" in report.table(scores_lib.Scores(grid, sweeps[:2]))


def test_the_table_says_these_numbers(by_hand):
    grid, table_rows = by_hand
    table = report.table(scores_lib.Scores(grid, table_rows))
    half = 12.706205 * 2**0.5 / 2**0.5  # t of one degree of freedom; standard deviation of (3, 1) is √2
    # (0.2 + 0.625) / 2, ± t of one degree of freedom times √0.01 / 2
    assert f"| `none` | 2 ± {half:.2g}, 1 run diverged | 0.25 ± 0 | 0.412 [-0.223, 1.048]" in table
    assert "Updates that were not finite, and so skipped: 3 of `none`." in table
    assert "| `vtrace` | 9 ± 13 | 0.5 ± 0 |" in table
    # (0.7 + 0.125) / 2, ± t of two degrees of freedom, 4.302653, times √0.02 / 2; p is 0.028
    assert "| `none` | 0.412 [0.108, 0.717] † | 1.000 |" in table  # of two tasks no interval over tasks
    assert "| `none` | 2.35 ± 8.3, 1 run diverged | 0.25 ± 0 |" in table  # areas: 3 and 1.7
    assert "Chosen, learning rate / entropy cost; 5 and 0 of 8 at an edge of the sweep (*)." in table
    assert "| `none` | 0.003 / 0.01, 0.01* / 0.01 | 0.003 / 0.01, 0.001* / 0.01 |" in table
    assert "| `none` | 4 (1 to 5) | 0 (-1 to 0.2) |" in table and "| `vtrace` | 8 (2 to 9) | 0.5 (0 to 1) |" in table


def test_schemes_with_the_same_runs_are_compared_once(by_hand, tmp_path):
    """As CLEAR without replay, which is V-trace: twice they would only make the other comparisons stricter."""
    import yaml

    grid, table_rows = by_hand
    rows = [row for row in table_rows if row["scheme"] == "vtrace"]
    table = report.table(scores_lib.Scores(grid, rows + [row | {"scheme": "none"} for row in rows]))
    assert "The same runs: `vtrace`, `none`." in table and "†" not in table
    nothing = {"return": "nan", "curve": " ".join(25 * ["nan"])}
    without_episodes = [row | nothing if row["phase"] == "final" else row for row in rows]
    assert "The same runs: `vtrace`, `none`." in report.table(
        scores_lib.Scores(grid, without_episodes + [row | {"scheme": "none"} for row in without_episodes])
    )
    content = yaml.safe_load((tmp_path / "grid.yaml").read_text())
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content | {"schemes": ["none", "epsilon_max", "vtrace"]}))
    twins = [row | {"scheme": "epsilon_max"} for row in table_rows if row["scheme"] == "none"]
    table = report.table(scores_lib.Scores(Grid(tmp_path / "grid.yaml"), table_rows + twins))
    assert "†: not 0 over seeds, at 5 % (Welch's test). The same runs, compared once: `none`, `epsilon_max`." in table


def test_every_panel_has_a_schemes_colour_whichever_are_done(by_hand):
    grid, table_rows = by_hand
    left_out = [row for row in table_rows if (row["task"], row["scheme"]) != ("cartpole", "none")]
    figure = figures.curves(scores_lib.Scores(grid, left_out))
    cartpole, catch = figure.axes
    (vtrace,), (none, also_vtrace) = ([line.get_color() for line in axis.lines] for axis in (cartpole, catch))
    assert vtrace == also_vtrace != none
    named = {text.get_text(): line.get_color() for text, line in zip(cartpole.get_legend().texts, cartpole.get_legend().get_lines())}
    assert named == {"none": none, "vtrace": vtrace}


def test_tasks_that_others_choose_for_have_no_panel_of_a_sweep(by_hand, tmp_path):
    import yaml

    _, table_rows = by_hand
    content = yaml.safe_load((tmp_path / "grid.yaml").read_text())
    content["tasks"]["catch"]["sweep"] = False
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(content))
    (axis,) = figures.robustness(scores_lib.Scores(Grid(tmp_path / "grid.yaml"), table_rows)).axes
    assert axis.get_title().startswith("cartpole")


def test_figures_of_conditions_that_are_gone_go_too(by_hand, tmp_path):
    grid, table_rows = by_hand
    for name in ("surface.png", "lag.png", "mine.png"):
        (tmp_path / name).write_text("of an earlier grid")
    written = {path.name for path in report.write(grid, table_rows, tmp_path)}
    assert not written & {"surface.png", "lag.png"}
    assert (tmp_path / "mine.png").exists() and not any((tmp_path / name).exists() for name in ("surface.png", "lag.png"))


def test_rows_that_are_not_of_the_grid_count_for_nothing(by_hand):
    grid, table_rows = by_hand
    final = next(row for row in table_rows if row["phase"] == FINAL)
    others = [final | {"seed": "3", "return": "99"}, final | {"learning_rate": "0.5"}, final | {"task": "pong"},
              final | {"learning_rate": "0.001"}]  # fmt: skip  # of cartpole's settings the two better ones go on
    assert report.table(scores_lib.Scores(grid, table_rows + others)) == report.table(scores_lib.Scores(grid, table_rows))
    assert len(scores_lib.Scores(grid, table_rows + others).rows(Block("cartpole", "none", 0.0, 1), SWEEP)) == 3


def test_a_part_of_a_grid_has_a_report_too(by_hand, tmp_path):
    grid, table_rows = by_hand
    for count in (1, 4, 8, 20):
        written = report.write(grid, table_rows[:count], tmp_path)
        assert all(path.stat().st_size for path in written)
    assert "| – | – |" in report.table(scores_lib.Scores(grid, table_rows[:4]))


def test_intervals_by_hand():
    mean, half = scores_lib.interval(np.array([1.0, 2.0, 3.0]))
    assert mean == 2.0 and abs(half - 4.302653 / 3**0.5) < 1e-5
    assert scores_lib.interval(np.array([1.0]))[0] == 1.0


def test_intervals_are_the_same_at_every_call_and_leave_numpys_generator_alone():
    random = np.random.default_rng(0)
    one, other = random.normal(size=(2, 5, 5))
    np.random.seed(3)
    expected = np.random.random(2)
    np.random.seed(3)
    first = np.random.random()
    intervals = [(scores_lib.mean_of_tasks(one), scores_lib.improvement(one, other)) for _ in range(2)]
    assert intervals[0] == intervals[1]
    assert [first, np.random.random()] == expected.tolist()


@pytest.mark.parametrize("reduce, numpys", [(scores_lib.mean_of_tasks, np.mean), (scores_lib.median_of_tasks, np.median)])
def test_numbers_over_tasks_with_different_numbers_of_seeds(reduce, numpys):
    tasks = [np.array([0.0, 1.0]), np.array([4.0]), np.array([1.0, 2.0, 6.0, 11.0])]
    value, over_seeds, over_tasks = reduce(tasks)
    assert value == pytest.approx(numpys([0.5, 4.0, 5.0]))
    assert over_seeds is None and over_tasks[0] < value < over_tasks[1], "nobody knows how far another seed lies from the one"
    tasks[1] = np.array([4.0, 4.2])
    value, over_seeds, over_tasks = reduce(tasks)
    assert over_tasks[0] < over_seeds[0] <= value <= over_seeds[1] < over_tasks[1]


def test_tasks_that_agree_widen_no_interval_and_seeds_that_agree_leave_the_tasks(monkeypatch):
    monkeypatch.setattr(scores_lib, "_NUM_BOOTSTRAP", 2_000)
    seeds = np.random.default_rng(2).normal(size=20)
    one_task, three = scores_lib.mean_of_tasks([seeds]), scores_lib.mean_of_tasks([np.full(3, x) for x in (0.0, 1.0, 5.0)])
    assert one_task.over_tasks is None and scores_lib.median_of_tasks([seeds, seeds]).over_tasks is None
    alike = scores_lib.mean_of_tasks(5 * [seeds])  # a task that is drawn twice has other seeds each time
    assert np.ptp(alike.over_tasks) == pytest.approx(np.ptp(alike.over_seeds), rel=0.1)
    assert three.over_seeds == (2.0, 2.0) and three.over_tasks[0] < 1.0 < 3.0 < three.over_tasks[1]


def test_intervals_cover_as_often_as_they_say(monkeypatch):
    """Five seeds of three tasks, 500 times: the true mean lies within 95 % of the intervals; of percentile ones, 84 %."""
    random, hits = np.random.default_rng(1), 0
    monkeypatch.setattr(scores_lib, "_NUM_BOOTSTRAP", 2)
    for _ in range(500):
        one, other = random.normal(size=(2, 3, 5)) * [[1.0], [2.0], [0.1]]
        hits += all(low < 0.0 < high for low, high in (scores_lib.mean_of_tasks(one).over_seeds,))
        hits += all(low < 0.0 < high for low, high in (scores_lib.difference(one, other).over_seeds,))
    assert 0.93 < hits / 1000 < 0.98


def test_comparisons_are_welchs_and_holms():
    from scipy import stats

    random = np.random.default_rng(0)
    one, other = random.normal(size=5), 0.5 + 3 * random.normal(size=9)
    assert scores_lib.p_value([one], [other]) == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue)
    assert scores_lib.p_value([one], [one]) == 1.0 and scores_lib.p_value([np.ones(3)], [np.zeros(3)]) == 0.0
    assert scores_lib.p_value([np.ones(1)], [np.zeros(5)]) == 1.0 == scores_lib.p_value(2 * [one], [np.zeros(1), other])
    assert scores_lib.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert scores_lib.holm([0.9, 0.5]) == [1.0, 1.0]


def test_areas_carry_what_was_known_over_gaps():
    curve = np.array([np.nan, 1.0, np.nan, np.nan, 4.0, np.nan])
    np.testing.assert_array_equal(scores_lib._carried(curve, -2.0), [-2, 1, 1, 1, 4, 4])


def test_a_run_without_an_episode_counts_as_the_tasks_zero_at_its_end_and_on_the_way(by_hand):
    grid, table_rows = by_hand
    nothing = {"return": "nan", "curve": " ".join(25 * ["nan"])}
    is_meant = [row["task"] == "catch" and row["scheme"] == "none" and row["phase"] == FINAL for row in table_rows]
    scores = scores_lib.Scores(grid, [row | nothing if meant else row for row, meant in zip(table_rows, is_meant)])
    block = Block("catch", "none", 0.0, 1)
    assert scores.finals(block).tolist() == scores.areas(block).tolist() == [-1.0, -1.0]
    assert "nan" not in report.table(scores)


def test_difference_and_probability_of_improvement():
    low, high = np.linspace(0, 1, 20).reshape(2, 10), np.linspace(2, 3, 20).reshape(2, 10)
    wins, less = scores_lib.improvement(high, low), scores_lib.difference(high, low)
    assert wins == (1.0, (1.0, 1.0), None) and scores_lib.improvement(3 * [high[0]], 3 * [low[0]])[2] is not None
    assert less.value == pytest.approx(2.0) and 1.5 < less.over_seeds[0] < 2.0 < less.over_seeds[1] < 2.5
    assert scores_lib.improvement(low, low).value == 0.5 and scores_lib.difference(low, low).value == 0.0


def test_the_probability_of_improvement_is_rliables():
    """Ties count half; as many seeds of one as of the other are not needed."""
    from rliable import metrics

    random = np.random.default_rng(0)
    for _ in range(20):
        one, other = random.integers(0, 6, (5, 3)), random.integers(0, 6, (7, 3))
        expected = metrics.probability_of_improvement(one.astype(float), other.astype(float))
        assert scores_lib.improvement(one.T, other.T).value == pytest.approx(expected)
