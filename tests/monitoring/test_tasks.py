"""Frames, returns and human-normalised scores by task."""

import numpy as np
import pytest

from impala.monitoring import logs, scores
from impala.monitoring.tasks import SUMMARY_COLUMNS, TaskLog, summary_columns
from impala.types import Episode

GAMES = ("atari:pong", "atari:boxing")


def chunks(task, num_valid, is_replayed=None):
    n = len(task)
    columns = dict(task=task, num_valid=num_valid, is_replayed=is_replayed or n * [0])
    return {name: np.array(column, float) for name, column in columns.items()}


def episode(score, task):
    return Episode(score, 10, 0, 0, 0, task)


def test_frames_are_those_of_fresh_chunks_of_the_task(tmp_path):
    log = TaskLog(tmp_path, GAMES, frames_per_step=4, state={})
    log.add_update(chunks([0, 1, 1, 0], [20, 19, 20, 20], [0, 0, 0, 1]))
    log.add_update(chunks([1], [7]))
    assert [row["frames"] for row in log.rows()] == [4 * 20, 4 * (19 + 20 + 7)]


def test_returns_are_of_the_last_hundred_episodes_at_most(tmp_path):
    log = TaskLog(tmp_path, GAMES, frames_per_step=4, state={})
    assert [row["return_mean"] for row in log.rows()] == [None, None]
    log.add_episodes([episode(float(i), 0) for i in range(150)] + [episode(12.1, 1)])
    pong, boxing = log.rows()
    assert (pong["episodes"], pong["return_mean"]) == (150, np.mean(range(50, 150)))
    assert pong["human_normalised"] == pytest.approx((99.5 + 20.7) / (14.6 + 20.7))
    assert boxing["human_normalised"] == pytest.approx(1.0)


def test_it_goes_on_where_a_checkpoint_left_it(tmp_path):
    log = TaskLog(tmp_path, GAMES, frames_per_step=1, state={})
    log.add_update(chunks([0, 1], [5, 6]))
    log.add_episodes([episode(1.0, 0)])
    log.write(updates=1, wall_seconds=2.0)
    state = log.state() | {"updates": 1}
    log.add_update(chunks([0, 1], [5, 6]))
    log.write(updates=2, wall_seconds=3.0)
    log.close()
    resumed = TaskLog(tmp_path, GAMES, frames_per_step=1, state=state)
    resumed.add_episodes([episode(3.0, 0)])
    assert [row["frames"] for row in resumed.rows()] == [5, 6]
    assert resumed.rows()[0]["return_mean"] == 2.0 and resumed.rows()[0]["episodes"] == 2
    rows = logs.read_csv(tmp_path / "tasks.csv")
    assert [(row["updates"], row["task"], row["environment"]) for row in rows] == [("1", "0", GAMES[0]), ("1", "1", GAMES[1])]


def test_one_task_has_no_file_of_its_own(tmp_path):
    log = TaskLog(tmp_path, ("catch",), frames_per_step=1, state={})
    log.write(updates=1, wall_seconds=1.0)
    log.close()
    assert not (tmp_path / "tasks.csv").exists()


def test_the_rows_of_a_period_come_and_go_together(tmp_path):
    log = logs.CsvLog(tmp_path / "x.csv", ("updates", "task"), last={}, max_bytes=300, num_together=3)
    for update in range(200):
        log.write(*(dict(updates=update, task=task) for task in range(3)))
    rows = logs.read_csv(tmp_path / "x.csv")
    by_update = {}
    for row in rows:
        by_update.setdefault(row["updates"], []).append(row["task"])
    assert len(by_update) > 3 and all(tasks == ["0", "1", "2"] for tasks in by_update.values())
    assert (tmp_path / "x.csv").stat().st_size < 400


def test_a_summary_needs_every_task():
    assert summary_columns([dict(environment="catch", human_normalised=None)]) == dict.fromkeys(SUMMARY_COLUMNS)
    rows = [dict(environment=n, human_normalised=x) for n, x in (("a", 0.5), ("b", 3.0), ("c", 0.1))]
    assert summary_columns(rows)["human_normalised_median"] == 0.5
    assert summary_columns(rows)["capped_mean"] == pytest.approx((0.5 + 1.0 + 0.1) / 3)


def test_fitness():
    assert scores.fitness({"atari:pong": 18.0}) == pytest.approx((18.0 + 20.7) / (14.6 + 20.7))
    assert scores.fitness({"catch": 0.9}) == 0.9
    assert scores.fitness({"catch": 1.0, "river_swim": 3.0}) == 2.0
    both = {"atari:pong": 14.6 + 5.0, "atari:boxing": 0.1}  # above human counts as human
    assert scores.fitness(both) == pytest.approx(0.5)
