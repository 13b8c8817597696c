"""The panels that a run's files ask for."""

import csv

import pytest
from matplotlib import pyplot as plt

from impala import config as config_lib
from impala.monitoring import plots

METRICS = dict(wall_seconds=60, return_mean=1, lag_mean=11, entropy=1, rho_clipped_fraction=0.5, frames_per_second=9, rss_mb=900)


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def drawn(monkeypatch):
    """{label: [([x…], [y…]) of each line]} of the panels that were drawn."""
    found = {}

    def close(figure):
        for axis in figure.axes:
            if axis.get_visible():
                found[axis.get_ylabel()] = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]

    monkeypatch.setattr(plt, "close", close)
    return found


def test_a_run_of_several_tasks_shows_each(tmp_path, drawn):
    write(tmp_path / "run" / "metrics.csv", [METRICS | dict(frames=frames) for frames in (3e6, 6e6)])
    tasks = [dict(environment=name, frames=frames, return_mean=score) for name, frames, score in
             [("pong", 1e6, -21), ("boxing", 1e6, 0), ("pong", 2e6, -20), ("boxing", 2e6, "")]]  # fmt: skip
    write(tmp_path / "run" / "tasks.csv", tasks)
    plots.draw([tmp_path / "run"], tmp_path / "curves.png")
    assert drawn["return, pong"] == [([1.0, 2.0], [-21.0, -20.0])]
    assert drawn["return, boxing"] == [([1.0], [0.0])]
    assert drawn["return, mean of 100 episodes"] == [([3.0, 6.0], [1.0, 1.0])] and len(drawn) == 8
    assert plt.imread(tmp_path / "curves.png").shape[0] == 1072


def test_what_a_run_has_no_figures_of_is_not_drawn(tmp_path, drawn):
    """An agent of action values has no entropy; it has evaluations and errors."""
    of_values = METRICS | dict(entropy="", evaluation_mean=3, td_error=0.5, frames=1e6)
    write(tmp_path / "run" / "metrics.csv", [of_values, of_values | dict(frames=2e6, evaluation_mean="")])
    plots.draw([tmp_path / "run"], tmp_path / "curves.png")
    assert drawn["return, newest evaluation"] == [([1.0], [3.0])] and len(drawn) == 7
    assert "error of the action values" in drawn and "entropy, nats" not in drawn
    write(tmp_path / "fresh" / "metrics.csv", [dict.fromkeys(METRICS, "") | dict(frames=0, wall_seconds=1)])
    drawn.clear()
    plots.draw([tmp_path / "fresh"], tmp_path / "curves.png")
    assert list(drawn) == ["return, mean of 100 episodes"]


def test_a_run_that_replays_shows_its_table_and_its_priorities(tmp_path, drawn):
    columns = {"transitions in replay": "replay_size", "samples per insert": "samples_per_insert", "priority, median": "priority_p50",
               "priority, 95th percentile": "priority_p95", "priority, largest": "priority_max"}  # fmt: skip
    first = METRICS | {column: number for number, column in enumerate(columns.values(), 1)} | dict(frames=1e6)
    write(tmp_path / "run" / "metrics.csv", [first, first | dict(frames=2e6, replay_size=7, priority_max="")])
    plots.draw([tmp_path / "run"], tmp_path / "curves.png")
    assert drawn["transitions in replay"] == [([1.0, 2.0], [1.0, 7.0])] and drawn["samples per insert"][0][1] == [2.0, 2.0]
    assert drawn["priority, median"][0][1] == [3.0, 3.0] and drawn["priority, 95th percentile"][0][1] == [4.0, 4.0]
    assert drawn["priority, largest"] == [([1.0], [5.0])]
    uniform = METRICS | dict(frames=1e6, replay_size=7, samples_per_insert=4, **dict.fromkeys(list(columns.values())[2:], ""))
    write(tmp_path / "dqn" / "metrics.csv", [uniform])
    drawn.clear()
    plots.draw([tmp_path / "dqn"], tmp_path / "curves.png")
    assert {*columns} & {*drawn} == {"transitions in replay", "samples per insert"}


def test_a_run_with_a_parameter_server_shows_its_staleness_its_penalty_and_what_it_refused(tmp_path, drawn):
    of_server = dict(lag_mean="", penalty=0.5, stale_gradients=0, outlier_gradients=0)
    rows = [METRICS | of_server | dict(frames=frames, staleness_mean=mean) for frames, mean in ((1e6, 1.0), (2e6, 0.9))]
    rows[1]["outlier_gradients"] = 3
    write(tmp_path / "run" / "metrics.csv", rows)
    plots.draw([tmp_path / "run"], tmp_path / "curves.png")
    (label,) = [label for label in drawn if "staleness" in label]
    assert drawn[label] == [([1.0, 2.0], [1.0, 0.9])] and not [label for label in drawn if "lag" in label]
    assert drawn["weight of the KL penalty, β"][0][1] == [0.5, 0.5]
    assert [label for label in drawn if "refused" in label] == ["outlier gradients, refused"], "none was stale"


def test_an_episode_whose_score_is_no_number_is_left_out(tmp_path, drawn):
    write(tmp_path / "run" / "metrics.csv", [METRICS | dict(frames=frames) for frames in (3e6, 6e6)])
    write(tmp_path / "run" / "episodes.csv", [dict(frames=1, score=""), dict(frames=2, score=5.0)])
    assert plots.draw([tmp_path / "run"], tmp_path / "curves.png").exists() and drawn


@pytest.mark.parametrize("name", ["", "curves", "curves.xyz", "nowhere/curves.png"])
def test_a_name_that_no_picture_can_have_is_refused(tmp_path, name):
    write(tmp_path / "run" / "metrics.csv", [METRICS | dict(frames=3e6)])
    with pytest.raises(config_lib.ConfigError, match=r"--output .*expected a file") as raised:
        plots.main([tmp_path / "run"], tmp_path / name)
    assert len(raised.value.lines) == 1 and [path.name for path in tmp_path.iterdir()] == ["run"]
    assert plots.main([tmp_path / "run"], tmp_path / "curves.PDF") == 0 and (tmp_path / "curves.PDF").stat().st_size > 5_000


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", bytes(range(256))])
def test_a_file_without_rows_of_a_run_is_refused(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(config_lib.ConfigError, match="has no rows with frames and seconds"):
        plots.main([tmp_path], tmp_path / "curves.png")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_population_shows_what_evolves_and_who_was_copied(tmp_path, drawn):
    folders = [tmp_path / f"member_{index}" for index in range(2)]
    for index, folder in enumerate(folders):
        rates = [(1e6, 0.1), (2e6, 0.1), (3e6, 0.2 * (index + 1))]
        write(folder / "metrics.csv", [METRICS | dict(frames=frames, learning_rate=rate) for frames, rate in rates])
        write(folder / "population.csv", [dict(frames=2.5e6, is_copied=index, learning_rate=2)])
    plots.draw(folders, tmp_path / "curves.png")
    whole, rates = [1.0, 2.0, 3.0], drawn["learning rate"]
    assert rates == [(whole, [0.1, 0.1, 0.2]), ([], []), (whole, [0.1, 0.1, 0.4]), ([3.0], [0.4])]
    assert len(drawn) == 7 and len(drawn["policy lag, updates"]) == 2


def test_cells_that_are_no_numbers_leave_gaps(tmp_path, drawn):
    """An editor or a disk may have changed a file."""
    write(tmp_path / "run" / "metrics.csv", [METRICS | dict(frames=1e6), METRICS | dict(frames=2e6, lag_mean="0.x9")])
    write(tmp_path / "run" / "episodes.csv", [{"frames": 1e6, "scroe": 3}])
    plots.draw([tmp_path / "run"], tmp_path / "a.png")
    ((x, y),) = drawn["policy lag, updates"]
    assert x == [1, 2] and y[0] == 11 and y[1] != y[1]


def test_runs_of_one_name_are_told_apart(tmp_path, drawn, monkeypatch):
    legends = []
    monkeypatch.setattr(plt, "close", lambda figure: legends.append([t.get_text() for t in figure.axes[0].get_legend().texts]))
    runs = [tmp_path / topic / "seed_0" for topic in ("pong", "breakout")]
    for run in runs:
        run.parent.mkdir()
        write(run / "metrics.csv", [METRICS | dict(frames=1e6)])
    plots.draw(runs, tmp_path / "a.png")
    assert legends == [["pong/seed_0", "breakout/seed_0"]]


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    write(tmp_path / "run" / "metrics.csv", [METRICS | dict(frames=1e6)])

    def full(figure, path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(plt.Figure, "savefig", full)
    with pytest.raises(OSError, match="No space"):
        plots.draw([tmp_path / "run"], tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
