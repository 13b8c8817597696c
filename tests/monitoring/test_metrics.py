"""Counters, rows, files and the verdict."""

import json
import time

import numpy as np
import pytest
from rich.console import Console

from impala.monitoring import dashboard, logs, metrics
from impala.types import Episode

UPDATE = dict.fromkeys(metrics.LOSS_COLUMNS, 0.5) | {"num_transitions": 150.0}


def chunks(*versions, replayed=(), task=(), num_valid=(), oldest=()):
    """Columns [B] of an update's chunks."""
    n = len(versions)
    filled = dict(oldest_version=oldest or versions, is_replayed=replayed or n * [0], task=task or n * [0], num_valid=num_valid or n * [20])
    return {name: np.array(column, float) for name, column in (dict(weights_version=versions) | filled).items()}


def make_monitor(folder, state=None, tasks=("catch",), **kwargs):
    return metrics.Monitor(
        folder, tasks=tasks, frames_per_step=4, measure_memory=lambda: {"launcher": 12.0, "total": 30.0}, state=state or {},
        started=time.monotonic() - 10, **kwargs,
    )


def write_row(monitor):
    return monitor.write_row(scheduled=dict(learning_rate=1e-3, entropy_cost=0.01), queue_fill=0.5, counts=dict(skipped_updates=0))


@pytest.mark.parametrize(
    "learner_wait, actor_blocked, queue_fill, expected",
    [
        (0.4, 0.0, 0.0, "actor-bound"), (0.0, 0.4, 1.0, "learner-bound"), (0.4, 0.4, 0.4, "table-bound"),
        (0.01, 0.01, 0.5, "balanced"), (0.3, 0.25, 0.0, "table-bound"), (0.06, 0.5, 0.95, "learner-bound"),
        (0.001, 0.085, 0.5, "learner-bound"), (0.2, 0.5, 0.5, "table-bound"),
    ],
)  # fmt: skip
def test_verdict(learner_wait, actor_blocked, queue_fill, expected):
    assert metrics.verdict(learner_wait=learner_wait, actor_blocked=actor_blocked, queue_fill=queue_fill) == expected


def test_a_maximum_is_the_largest_of_its_period_and_all_else_is_a_mean(tmp_path):
    monitor = make_monitor(tmp_path)
    for update, value in ((8, 1.0), (9, 4.0)):
        metrics_of = UPDATE | {"log_rho_max": value, "entropy": value}
        monitor.add_update(update, metrics_of, chunks(7))
    row = write_row(monitor)
    assert (row["log_rho_max"], row["entropy"]) == (4.0, 2.5)


def test_what_only_some_updates_measure_is_the_mean_of_those(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorflow import make_ndarray

    monitor = make_monitor(tmp_path)
    nan = float("nan")
    for update, (explained, silent) in enumerate([(0.5, 0.5), (nan, nan), (0.7, 0.25)], 8):
        units = {"silent_units/conv_1": silent, "dormant_units/conv_1": 1.0, "silent_units/dense": nan, "dormant_units/dense": nan}
        monitor.add_update(update, UPDATE | units | {"explained_variance": explained, "trace_length": nan}, chunks(7))
    row = write_row(monitor)
    assert row["explained_variance"] == pytest.approx(0.6) and np.isnan(row["trace_length"])
    assert (row["silent_units"], row["dormant_units"]) == ("conv_1:0.38", "conv_1:1.00")
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    of_units = {tag: make_ndarray(events.Tensors(tag)[0].tensor_proto) for tag in events.Tags()["tensors"] if "_units" in tag}
    assert of_units == {"silent_units/conv_1": 0.375, "dormant_units/conv_1": 1.0}
    monitor.add_update(11, UPDATE, chunks(7))
    assert write_row(monitor)["silent_units"] == "", "a network that tells of no hidden layer"


def test_tensorboards_histogram_of_lags_is_of_fresh_chunks_as_the_columns_are(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorflow import make_ndarray

    monitor = make_monitor(tmp_path)
    monitor.add_update(900, UPDATE, chunks(897, 0, replayed=(0, 1)))
    lag = write_row(monitor)["lag_max"]
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    buckets = make_ndarray(events.Tensors("lag")[0].tensor_proto)  # [n, 3]: from, to, count
    assert buckets[:, 2].sum() == 1 and buckets[:, :2].max() < lag + 1 < 10


def test_a_layer_is_silent_as_far_as_it_was_for_twelve_rows(tmp_path):
    """Rows that measured nothing do not count."""
    monitor = make_monitor(tmp_path)
    for update, silent in enumerate([0.9, 0.4, *[0.6] * 11, float("nan")], 8):
        assert monitor.silent_units == ({} if update < 20 else {"dense": 0.4})
        units = {"silent_units/dense": silent, "dormant_units/dense": silent}
        monitor.add_update(update, UPDATE | units, chunks(7))
        write_row(monitor)
    assert monitor.silent_units == {"dense": 0.4}
    monitor.add_update(22, UPDATE | {"silent_units/dense": 0.7, "dormant_units/dense": 0.7}, chunks(7))
    write_row(monitor)
    assert monitor.silent_units == {"dense": 0.6}


def test_steps_of_later_weights_than_the_checkpoint_resumed_from_have_no_lag(tmp_path):
    """A replay table may outlive the learner that filled it."""
    monitor = make_monitor(tmp_path)
    monitor.add_update(8, UPDATE, chunks(9, 5))
    assert write_row(monitor)["lag_mean"] == 1.0, "0 and 2"


def test_a_mean_lag_below_1_is_in_the_bin_of_0():
    """Of a chunk whose weights changed within it."""
    lags = np.array([0.0, 0.5, 0.99, 1.0, 1.9, 2.0, 3.5])
    assert metrics.lag_columns(lags, lags, np.zeros(7, bool))["lag_histogram"] == "0:3 1:2 2:2"


def test_counts_frames_lag_and_time(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(8, UPDATE, chunks(7, 5))  # trained on weights 7: lags 0 and 2
    monitor.add_update(9, UPDATE, chunks(4, 8, 1, replayed=[0, 0, 1]))  # on weights 8: lags 4, 0; 7
    monitor.add_wait(0.01)
    row = write_row(monitor)
    assert row["frames"] == 1200 and row["agent_steps"] == 300 and row["updates"] == 9
    assert (row["lag_mean"], row["lag_max"], row["lag_histogram"]) == (1.5, 4, "0:2 2:1 4:1")  # fresh ones
    assert (row["replay_lag_mean"], row["replay_lag_max"]) == (7, 7)
    assert 10 <= row["wall_seconds"] < 30  # start-up counts
    assert row["rss_launcher_mb"] == 12 and row["rss_mb"] == 30 and row["rss_table_mb"] is None
    empty = write_row(monitor)
    assert empty["loss"] is None and empty["lag_mean"] is None  # nothing happened in this period
    (first, second) = logs.read_csv(tmp_path / "metrics.csv")
    assert first["frames"] == "1200" and second["loss"] == "" and second["lag_mean"] == ""


def test_frames_that_came_without_an_update_are_progress_until_a_row_holds_them(tmp_path):
    monitor = make_monitor(tmp_path)
    assert not monitor.has_progressed
    monitor.add_steps(5)
    assert monitor.has_progressed and write_row(monitor)["frames"] == 20 and not monitor.has_progressed
    monitor.add_update(1, UPDATE, chunks(0))
    assert monitor.has_progressed


def test_return_mean_waits_for_a_hundred_episodes(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_actor_report({}, [Episode(1.0, 9, 0, i, 0) for i in range(99)])
    assert monitor.return_mean is None and write_row(monitor)["return_mean"] is None
    monitor.add_actor_report({}, [Episode(101.0, 9, 0, 0, 0)])
    assert monitor.return_mean == pytest.approx(2.0)
    monitor.add_actor_report({}, [Episode(1.0, 9, 0, 0, 0)])
    assert monitor.return_mean == pytest.approx(2.0)  # the window slides
    assert len(logs.read_csv(tmp_path / "episodes.csv")) == 101


def test_the_last_row_holds_the_return_that_ended_the_run(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(1, UPDATE, chunks(0))
    monitor.add_actor_report({}, [Episode(1.0, 9, 0, 0, 0)] * 100)
    assert not monitor.has_reached(1.5)
    write_row(monitor)
    assert not monitor.has_reached(1.0), "there is no update to write yet"
    monitor.add_update(2, UPDATE, chunks(1))
    assert monitor.has_reached(1.0)
    monitor.add_actor_report({}, [Episode(-1.0, 9, 0, 0, 0)] * 100)  # too late
    assert monitor.has_reached(1.0) and write_row(monitor)["return_mean"] == 1.0


def test_a_target_is_reached_by_two_evaluations_in_a_row_also_across_a_resume(tmp_path):
    def make(state):
        monitor = make_monitor(tmp_path, state=state, target_is_evaluated=True)
        monitor.add_update(1, UPDATE, chunks(0))
        monitor.add_actor_report({}, [Episode(9.0, 9, 0, 0, 0)] * 100)  # says nothing there
        return monitor

    monitor = make({})
    assert not monitor.has_reached(0.9) and monitor.evaluation_mean is None
    for update, (mean, is_reached) in enumerate(((1.0, False), (0.3, False), (0.9, False))):
        monitor.add_evaluation(mean, 100 * update)
        assert monitor.has_reached(0.9) == is_reached and monitor.evaluation_mean == mean
    resumed = make(monitor.state())
    assert not resumed.has_reached(0.9) and resumed.evaluation_mean == 0.9
    resumed.add_evaluation(1.0, 201)
    assert not resumed.has_reached(0.9) and resumed.evaluation_mean == 1.0, "of nearly the same weights"
    resumed.add_evaluation(1.0, 300)
    assert resumed.has_reached(0.9)
    resumed.add_evaluation(-1.0, 400)  # too late
    assert resumed.has_reached(0.9) and write_row(resumed)["evaluation_mean"] == 1.0


def test_two_evaluations_of_nearly_the_same_weights_are_one(tmp_path):
    """The evaluator alone may be started again, and its call be repeated; it evaluates at once after a resume."""
    monitor = make_monitor(tmp_path, target_is_evaluated=True)
    monitor.add_update(1, UPDATE, chunks(0))
    for mean, updates in ((0.95, 40), (0.96, 40), (0.97, 41), (0.98, 100), (1.0, 139)):
        monitor.add_evaluation(mean, updates)
    assert monitor.evaluation_mean == 1.0 and not monitor.has_reached(0.9)
    monitor.add_evaluation(0.97, 140)
    assert monitor.has_reached(0.9)


def test_of_evaluations_of_nearly_the_same_weights_the_worst_counts(tmp_path):
    """Or else two that reach the target, of weights one update apart, would do: the last of one hundred, the first of the next."""
    monitor = make_monitor(tmp_path, target_is_evaluated=True)
    monitor.add_update(1, UPDATE, chunks(0))
    for mean, updates in ((-1.0, 0), (1.0, 99), (1.0, 100), (1.0, 199)):
        monitor.add_evaluation(mean, updates)
        assert not monitor.has_reached(0.9) and monitor.evaluation_mean == mean
    monitor.add_evaluation(1.0, 200)
    assert monitor.has_reached(0.9)


def test_what_comes_after_the_end_counts_for_nothing(tmp_path, caplog):
    monitor = make_monitor(tmp_path)
    monitor.close()
    monitor.add_actor_report({"table": 0.1}, [Episode(1.0, 9, 0, 0, 0)])
    assert monitor.num_episodes == 0 and not monitor._actor_shares and not caplog.text


def test_resuming_cuts_rows_past_the_checkpoint(tmp_path):
    monitor = make_monitor(tmp_path)
    for updates in (5, 10, 15):
        monitor.add_update(updates, UPDATE, chunks(0))
        write_row(monitor)
        if updates == 10:
            state = monitor.state() | {"updates": 10}
    monitor.close()
    resumed = make_monitor(tmp_path, state)
    assert [row["updates"] for row in logs.read_csv(tmp_path / "metrics.csv")] == ["5", "10"]
    assert resumed.frames == 1200 and resumed.wall_seconds > state["wall_seconds"]
    resumed.add_update(11, UPDATE, chunks(10))
    assert write_row(resumed)["frames"] == 1800


@pytest.mark.parametrize("updates", [0, 5])
def test_resuming_cuts_rows_past_the_checkpoint_also_where_steps_came_without_an_update(tmp_path, updates):
    monitor = make_monitor(tmp_path)
    for _ in range(3):
        monitor.add_steps(100)
        monitor.add_episodes([Episode(1.0, 9, 0, 0, 0)])
        if updates:
            monitor.add_update(updates, UPDATE | {"num_transitions": 0.0}, chunks(0))
        write_row(monitor)
        if monitor.frames == 800:
            state = monitor.state() | {"updates": updates}
    monitor.close()
    make_monitor(tmp_path, state)
    assert [row["frames"] for row in logs.read_csv(tmp_path / "metrics.csv")] == ["400", "800"]
    assert [row["frames"] for row in logs.read_csv(tmp_path / "episodes.csv")] == ["400", "800"]


def test_a_number_of_an_agent_of_ones_own_is_in_the_row_and_not_in_the_file(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(5, UPDATE, chunks(0))
    row = monitor.write_row(scheduled=dict(learning_rate=1e-3, temperature=0.5), queue_fill=0.5, counts={})
    (written,) = logs.read_csv(tmp_path / "metrics.csv")
    assert row["temperature"] == 0.5 and "temperature" not in written and float(written["learning_rate"]) == 1e-3


def test_an_evaluation_that_is_no_number_counts_for_nothing(tmp_path):
    monitor = make_monitor(tmp_path)
    for update, mean in enumerate((0.5, float("nan"), float("inf"))):
        monitor.add_evaluation(mean, update)
    assert monitor.evaluation_mean == 0.5
    json.dumps(monitor.state(), allow_nan=False)


def test_a_fresh_run_does_not_keep_rows_of_one_that_died_before_its_first_checkpoint(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(5, UPDATE, chunks(0))
    write_row(monitor)
    make_monitor(tmp_path)
    assert logs.read_csv(tmp_path / "metrics.csv") == []


def test_a_score_that_is_no_number_is_kept_in_its_row_and_counts_in_no_mean(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_actor_report({}, [Episode(1.0, 9, 0, 0, 0)] * 100 + [Episode(float("inf"), 9, 0, 0, 0), Episode(float("nan"), 9, 0, 0, 0)])
    assert monitor.return_mean == monitor.fitness() == 1.0 and monitor.num_episodes == 102
    json.dumps(monitor.state(), allow_nan=False)
    assert len(logs.read_csv(tmp_path / "episodes.csv")) == 102


def test_dashboard_in_a_terminal_and_without_one(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(8, UPDATE, chunks(7, 5))
    row = write_row(monitor)
    plain = Console(file=open(tmp_path / "plain", "w+"), force_terminal=False, width=200)
    with dashboard.Dashboard("run", total_frames=10_000, console=plain) as screen:
        screen.update({})
        screen.update(row)
        screen.update(row)  # the same row again: no second line
    plain.file.seek(0)
    (line,) = plain.file.read().splitlines()
    assert "frames 600" in line and "lag 1.0/1.9/2" in line and row["verdict"] in line
    live = Console(file=open(tmp_path / "live", "w+"), force_terminal=True, width=120, height=40)
    with dashboard.Dashboard("run", total_frames=10_000, console=live) as screen:
        screen.update(row | dict(restarts=2, lost_frames=12_000, places="2 hosts: a: learner/0; b: actor/0"))
    live.file.seek(0)
    drawn = live.file.read()
    for word in ("policy lag", "queue fill", "learner waits", "memory", "left", row["verdict"], "entropy", "2, 12,000 frames lost",
                 "2 hosts: a: learner/0; b: actor/0"):  # fmt: skip
        assert word in drawn, word


def test_a_parameter_server_has_no_verdict_but_its_time(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(8, UPDATE, chunks(7, 5))
    row = monitor.write_row(
        scheduled={}, queue_fill=None, counts=dict(skipped_updates=0, server_busy_fraction=0.031, target_copies=None)
    )
    assert logs.read_csv(tmp_path / "metrics.csv")[-1]["verdict"] == ""
    plain = Console(file=open(tmp_path / "plain", "w+"), force_terminal=False, width=200)
    with dashboard.Dashboard("run", total_frames=10_000, console=plain) as screen:
        screen.update(row)
    plain.file.seek(0)
    assert "server busy 3" in plain.file.read()


def test_the_dashboard_of_an_agent_that_replays(tmp_path):
    monitor = make_monitor(tmp_path)
    monitor.add_update(48, UPDATE | dict(td_error=0.25), chunks(7, 17, replayed=(1, 1)))
    row = monitor.write_row(scheduled=dict(learning_rate=1e-3), queue_fill=None, counts=dict(
        skipped_updates=0, replay_size=30_000, replay_capacity=40_000, samples_per_insert=4.02, priority_p50=0.125,
        priority_p95=0.5, priority_max=2.25, exploration_epsilon=0.0926, exploration_epsilon_first=0.4,
        exploration_epsilon_middle=0.0131, exploration_epsilon_last=0.4**8, exploration_epsilon_actors="0.18 0.0053",
    ))  # fmt: skip
    live = Console(file=open(tmp_path / "live", "w+"), force_terminal=True, width=140, height=40)
    with dashboard.Dashboard("run", total_frames=10_000, console=live) as screen:
        screen.update(row)
    live.file.seek(0)
    drawn = live.file.read()
    for word in ("30,000 of 40,000 (75 %)", "age of what is sampled mean/max", "35 / 40 updates", "samples per insert", "4.02",
                 "priority p50/p95/max", "0.125 / 0.500 / 2.250", "ε mean/first/middle/last", "0.093 / 0.4000 / 0.0131 / 0.0007", "ε of each actor", "0.18 0.0053"):  # fmt: skip
        assert word in drawn, word
    of_values, of_loss = dashboard._of_action_values(row | dict(replay_capacity=None, exploration_epsilon_first=None))
    assert ("transitions in replay", "30,000") in of_values and ("ε", "0.093") in of_loss
    many = dashboard._rungs(row | dict(exploration_epsilon_actors=" ".join(f"0.{i}" for i in range(10, 99))))
    assert many[1] == ("ε of each actor", "0.10 0.11 0.12 0.13 0.14 … 0.98")
    assert len(dashboard._rungs(row | dict(exploration_epsilon_actors="0.09"))) == 1, "of one actor the mean says it"
    written = logs.read_csv(tmp_path / "metrics.csv")[0]
    assert written["replay_capacity"] == "40000" and float(written["exploration_epsilon_middle"]) == 0.0131


def test_the_line_says_how_old_what_is_learned_is():
    row = dict.fromkeys(metrics.COLUMNS) | dict(
        frames=5, frames_per_second=1.0, updates=3, episodes=2, return_mean=0.5, wall_seconds=1.0, verdict="balanced",
        rss_mb=1.0, exploration_epsilon=0.1, evaluation_mean=1.0, samples_per_insert=4.0,
    )  # fmt: skip
    screen = dashboard.Dashboard("run", total_frames=10, console=Console(file=open("/dev/null", "w")))
    of_queue = dict(queue_fill=0.5, lag_mean=2.0, lag_p95=3.0, lag_max=4)
    of_server = dict(
        staleness_mean=1.25, staleness_expected=1, staleness_max=5, staleness_histogram="0:1 1:80 2:40 5:9",
        accepted_gradients=1130, stale_gradients=3, outlier_gradients=0, nonfinite_gradients=1, repeated_gradients=2,
    )  # fmt: skip
    for more, said in [({}, "samples/insert 4.00"), (of_queue, "lag 2.0/3.0/4"), (of_server, "staleness 1.25")]:
        assert said in screen.line(row | more) and "ε 0.100" in screen.line(row | more)
    drawn = [pair for side in dashboard._columns(row | of_server | dict(
        silent_units="", loss=1.0, learning_rate=1e-3, skipped_updates=0,
    )) for pair in side]  # fmt: skip
    assert ("staleness mean/expected/max", "1.25 / 1 / 5 updates") in drawn
    assert ("gradients of staleness 0 to 5", "▁█▄  ▁") in drawn
    assert ("gradients accepted", "1,130") in drawn and ("stale/outlier/not finite/repeated", "3 / 0 / 1 / 2") in drawn
    none_accepted = dict(staleness_mean=None, staleness_expected=None, staleness_max=None, staleness_histogram=None)
    shown = dashboard._gradients(row | of_server | none_accepted)
    assert [label for label, _ in shown] == ["gradients accepted", "stale/outlier/not finite/repeated"], "of that period"
    many = " ".join(f"{number}:{number}" for number in range(1, 49))
    assert len(dashboard._bars(many)) == 17 and dashboard._bars(many)[-2:] == "█▃", "three a bar, and the last one"
    assert dashboard._bars("") == "–"


def test_time_left():
    assert dashboard.time_left(dict(frames=400, frames_per_second=100.0), 1000) == 6.0
    assert dashboard.time_left(dict(frames=400, frames_per_second=0.0), 1000) is None
