"""evaluations.csv: rows of one header, whatever an older version had."""

import json
from concurrent import futures

import numpy as np
import pytest
from scipy import stats

from impala.monitoring import evaluations
from impala.monitoring.logs import read_csv


def add(folder, scores=(1.0, 3.0), updates=7):
    row = evaluations.row_of("atari:pong", list(scores), updates=updates, frames=100, greedy=False)
    evaluations.append(folder, row)
    return row


def test_rows_follow_one_another(tmp_path):
    add(tmp_path)
    add(tmp_path, [5.0], updates=8)
    first, second = read_csv(tmp_path / "evaluations.csv")
    assert (first["updates"], first["mean"], json.loads(first["scores"])) == ("7", "2.0", [1.0, 3.0])
    assert float(first["half_interval_95"]) == pytest.approx(12.706) and second["half_interval_95"] == "nan"
    assert float(first["human_normalised"]) == pytest.approx((2.0 + 20.7) / (14.6 + 20.7))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 10, 30, 1000])
def test_the_interval_is_students_however_few_the_scores(n):
    scores = np.random.default_rng(n).normal(3.0, 2.0, n)
    mean, half = evaluations.interval(scores.tolist())
    assert mean == pytest.approx(scores.mean()) and half == pytest.approx(stats.t.ppf(0.975, n - 1) * stats.sem(scores), rel=2e-3)


def test_rows_are_counted(tmp_path):
    assert evaluations.num_rows(tmp_path) == 0
    add(tmp_path), add(tmp_path)
    assert evaluations.num_rows(tmp_path) == 2
    (tmp_path / "evaluations.csv").unlink()
    (tmp_path / "evaluations.csv").mkdir()
    assert evaluations.num_rows(tmp_path) == 0


def test_those_that_append_at_once_cost_each_other_no_row(tmp_path):
    """A run's evaluator and a person's `impala evaluate`; a file that is missing is begun by one of them."""
    for number in range(20):
        (folder := tmp_path / str(number)).mkdir()
        with futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: add(folder), range(16)))
        assert evaluations.num_rows(folder) == 16


def test_who_is_frozen_while_it_appends_holds_up_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluations, "_LOCK_SECONDS", 0.2)
    with evaluations._alone_in(tmp_path):
        add(tmp_path)
    assert evaluations.num_rows(tmp_path) == 1


def test_a_file_with_older_columns_gets_todays(tmp_path):
    path = tmp_path / "evaluations.csv"
    path.write_text('updates,episodes,mean,scores,dropped\n5,2,1.5,"[1.0, 2.0]",x\n')
    add(tmp_path)
    old, new = read_csv(path)
    assert tuple(old) == tuple(new) == evaluations.COLUMNS
    assert (old["updates"], old["mean"], old["environment"], json.loads(old["scores"])) == ("5", "1.5", "", [1.0, 2.0])
    assert new["environment"] == "atari:pong"
