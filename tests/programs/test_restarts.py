"""What dies comes back: real processes, killed, frozen and broken, and what the run and its files say of it."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from impala import config as config_lib
from impala.learning import checkpoints
from tests.faults.figures import keep, within
from tests.programs.running import (
    CATCH,
    END_SECONDS,
    IMPALA,
    ROOT,
    START_SECONDS,
    WATCHED,
    alive,
    end_of,
    ends_in_order,
    has_played,
    learns_on,
    node,
    restarts,
    rows,
    start,
    survivors,
    table_address,
    wait_for,
    wait_until_it_trains,
)  # fmt: skip

EMPTIED = "the table is emptied: "  # the learner's log
PERIOD = 2  # of checkpoints, in seconds
BACK_SECONDS = 150.0  # never reached
ACTS_SECONDS = 15.0  # until a killed actor acts again
GROUP_SECONDS = 60.0  # until learners, or what holds the state, are beyond their death


def updates(folder):
    return int(rows(folder)[-1]["updates"])


def comes_back(process, victim, name):
    """Waits until another process has the name of `victim`."""

    def other():
        try:
            return node(process, name).pid != victim.pid
        except (StopIteration, psutil.NoSuchProcess):
            return False

    wait_for(other, BACK_SECONDS, f"{name} is back")


@pytest.fixture
def catch(tmp_path):
    """Starts Catch without an end, and waits until it trains; returns the process and the run's folder."""

    def start_it(*arguments, config=CATCH):
        process = start(*config, "--run", tmp_path / "run", *WATCHED, *arguments)
        wait_until_it_trains(tmp_path / "run", 5)
        return process, tmp_path / "run"

    return start_it


def kill_an_actor(process, folder):
    """It acts again, what it writes is accepted, and training never stops."""
    victim, learner, frames = node(process, "actor/0"), node(process, "learner/0").pid, int(rows(folder)[-1]["frames"])

    now = updates(folder)
    with within(ACTS_SECONDS, "an actor is killed: another acts, and 200 episodes of that actor's have counted since"):
        victim.kill()
        comes_back(process, victim, "actor/0")
        frames = max(frames, int(restarts(folder)[-1]["frames"]))
        wait_for(lambda: has_played(folder, 0, frames) and len(restarts(folder)) == 1, BACK_SECONDS, "its episodes count")
    wait_for(lambda: updates(folder) > now, 20, "training goes on")
    assert node(process, "learner/0").pid == learner
    (row,) = restarts(folder)
    assert (row["node"], row["cause"], row["lost_frames"]) == ("actor/0", "ended with signal 9", "0")
    assert {int(row["unsound_chunks"] or 0) for row in rows(folder)} == {0}


def kill_what_holds_the_state(process, folder, name):
    """All come back from the newest checkpoint; what is lost is said, and counted."""
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    victim, actor, num_restarts = node(process, name), node(process, "actor/0"), len(restarts(folder))
    before = checkpoints.read_state(folder / "checkpoints")["frames"]
    with within(GROUP_SECONDS, f"{name} is killed: there are more frames than before"):
        victim.kill()
        before_it = rows(folder)
        comes_back(process, victim, name)
        wait_for(lambda: not actor.is_running(), 5, "the old actor is gone")
        row = restarts(folder)[num_restarts]
        learns_on(folder)
    output = ends_in_order(process)
    assert f"{name} ended with signal 9: all nodes start again, from the newest checkpoint" in output
    assert f"{int(row['lost_frames']):,} frames are lost; the newest checkpoint is of update" in output
    saved = int(row["frames"]) - int(row["lost_frames"])
    assert saved >= before and (name == "learner/0" or int(row["lost_frames"]) == 0)
    assert f"{saved:,} frames" in output, "what it resumed from is what it said"
    pace = pace_of(before_it, "frames")
    what = f"{name} is killed, checkpoints every {PERIOD} s: what is lost, at the run's own rate"
    keep(what, int(row["lost_frames"]) / pace, "s", at_most=PERIOD + 2)
    check_the_gap(rows(folder))
    return output


def pace_of(written, column):
    """Returns how much was done in a second from the first row of metrics to the last."""
    (first, since), (last, now) = ((float(row[column]), float(row["wall_seconds"])) for row in (written[0], written[-1]))
    return (last - first) / (now - since)


def check_the_gap(written):
    """No count goes back or leaps ahead of what the seconds allow, and those that the node was away count."""
    columns = {name: [float(row[name]) for row in written] for name in ("wall_seconds", "frames", "updates")}
    steps = {name: np.diff(column) for name, column in columns.items()}
    assert all(min(step) >= 0 for step in steps.values()), steps
    gap = int(np.argmax(steps["wall_seconds"]))
    assert 3 < steps["wall_seconds"][gap] < 100 and gap > 0
    for name in ("frames", "updates"):
        pace = pace_of(written[: gap + 1], name)
        assert steps[name][gap] <= 1.5 * pace * steps["wall_seconds"][gap], name


def test_a_killed_actor_acts_again_and_a_killed_learner_brings_all_back_from_the_newest_checkpoint(catch):
    keys = {"num-actors": 2, "num-environments": 16}
    keys = [word for name, value in keys.items() for word in (f"--actor.{name}", value)]
    process, folder = catch(*keys, "--checkpoint-period-seconds", PERIOD)
    kill_an_actor(process, folder)
    output = kill_what_holds_the_state(process, folder, "learner/0")
    assert "actor/0 ended with signal 9: it starts again" in output and ", 2 restarts ·" in output


@pytest.mark.soak
def test_a_killed_table_brings_all_back_from_the_newest_checkpoint(catch):
    kill_what_holds_the_state(*catch("--checkpoint-period-seconds", PERIOD), "table/0")


SHARED = ["train", "--config", "configs/gorila_catch.yaml", "--replay.shared", "true"]


@pytest.mark.soak
@pytest.mark.parametrize("config, name", [
    (["train", "apex_catch"], "learner/0"), (["train", "apex_catch", "--num-learners", 2], "learner/1"),
    (["train", "dqn_catch"], "learner/0"), (["train", "r2d2_catch"], "learner/0"), (SHARED, "server/0"),
])  # fmt: skip
def test_what_is_replayed_outlives_the_learner(catch, config, name):
    """Its table goes on; what was played by weights that are lost is drawn as all else is."""
    process, folder = catch("--checkpoint-period-seconds", 2, config=config)
    kept = [each for each in ("table/0", "table/1") if not each.endswith("1") or "--num-learners" in config]
    tables = [node(process, table).pid for table in kept]
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    victim, last = node(process, name), rows(folder)[-1]
    program = "gorila_catch" if config == SHARED else config[1]
    with within(GROUP_SECONDS, f"{name} of {program} is killed: there are more frames than before"):
        victim.kill()
        comes_back(process, victim, name)
        learns_on(folder)
    since = [row for row in rows(folder) if float(row["wall_seconds"]) > float(last["wall_seconds"]) + 3]
    if config != SHARED:  # a server of parameters does not look into the table
        assert int(since[-1]["replay_size"]) >= int(last["replay_size"]) >= 500, "of the first learner's table"
    assert [node(process, table).pid for table in kept] == tables and len(restarts(folder)) == 1
    output = ends_in_order(process)
    assert f"{name} ended with signal 9: all nodes but {', '.join(kept)} start again, from the newest checkpoint" in output
    assert rows(folder)[-1]["unsound_chunks"] in ("0", ""), "a server of parameters sees none"
    seconds = [float(each["wall_seconds"]) for each in rows(folder)]
    assert seconds == sorted(seconds) and seconds[-1] < 300


@pytest.mark.soak
def test_a_killed_evaluator_evaluates_again(catch):
    process, folder = catch(config=["train", "apex_catch"])
    column = lambda: [row["evaluation_mean"] for row in rows(folder) if row["evaluation_mean"]]  # noqa: E731
    wait_for(column, START_SECONDS, "an evaluation")
    victim, learner = node(process, "evaluator/0"), node(process, "learner/0").pid
    victim.kill()
    comes_back(process, victim, "evaluator/0")
    evaluations = folder / "evaluations.csv"
    before = evaluations.read_text().count("\n")
    wait_for(lambda: evaluations.read_text().count("\n") > before + 1, BACK_SECONDS, "it evaluates again")
    assert [row["node"] for row in restarts(folder)] == ["evaluator/0"] and node(process, "learner/0").pid == learner
    ends_in_order(process)


@pytest.mark.soak
def test_a_learner_that_dies_before_its_first_checkpoint_begins_anew(catch):
    process, folder = catch("--checkpoint-period-seconds", 3600)
    victim = node(process, "learner/0")
    victim.kill()
    comes_back(process, victim, "learner/0")
    (row,) = restarts(folder)
    assert row["lost_frames"] == row["frames"] != "0"
    further = int(row["frames"]) + 1000  # at first there are no rows at all
    wait_for(lambda: (found := rows(folder)) and int(found[-1]["frames"]) > further, START_SECONDS, "it trains")
    assert f"{int(row['frames']):,} frames are lost; there is no checkpoint: it begins anew" in ends_in_order(process)
    assert checkpoints.read_state(folder / "checkpoints")["updates"] == int(rows(folder)[-1]["updates"])


@pytest.mark.soak
@pytest.mark.parametrize("name", ["actor/0", "learner/0", "table/0"])
def test_a_frozen_node_is_replaced(catch, name):
    process, folder = catch("--liveness-seconds", 15)
    victim = node(process, name)
    with within(15 + 10, f"{name} is frozen: after liveness_seconds, 15, another is in its place"):
        victim.send_signal(signal.SIGSTOP)
        comes_back(process, victim, name)
    (row,) = restarts(folder)
    learns_on(folder)
    output = ends_in_order(process)
    assert row["node"] == name and "gave no sign of life" in row["cause"] and row["lost_frames"] == "0"
    assert f"{name} was silent for" in output
    assert "most recent call first" in (folder / "logs" / name).read_text(), "its stacks are in the log"


@pytest.mark.soak
@pytest.mark.parametrize("most", [1, 4])
def test_what_fails_again_and_again_ends_the_run_with_its_last_words(tmp_path, monkeypatch, most):
    monkeypatch.setenv("IMPALA_TEST_FAULT", "raise:2000")
    process = start("train", "--config", faulty(tmp_path), "--run", tmp_path / "run", "--restarts.max-in-a-row", most)
    output, errors = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 1 and "the game is broken" in errors, errors
    assert "actor/0 ended with status 1: it starts again" in output
    assert f"actor/0 died {most + 1} times in a row, the last time within 60 s of its start: the run ends" in output
    assert len(restarts(tmp_path / "run")) == most and survivors(process) == []
    log = (tmp_path / "run/logs/actor-0.log").read_text()
    assert log.count("RuntimeError: the game is broken") == most + 1
    num_environments = config_lib.load(tmp_path / "run/config.yaml").actor.num_environments
    assert log.count("the game is closed") == (most + 1) * num_environments, "also where one of them fails"


def test_what_fails_before_it_ever_ran_is_a_mistake_and_ends_the_run_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("IMPALA_TEST_FAULT", "raise:0")
    process = start("train", "--config", faulty(tmp_path), "--run", tmp_path / "run")
    errors = end_of(process)
    assert process.returncode == 1 and "the game is broken" in errors
    assert restarts(tmp_path / "run") == []


@pytest.mark.soak
@pytest.mark.parametrize("frozen, waiting", [("learner/0", "actor/0"), ("table/0", "actor/0"), ("actor/0", "learner/0")])
def test_a_node_that_waits_for_another_hears_that_it_is_to_end(catch, frozen, waiting):
    """An actor for room in the queue, or for a table that does not answer; a learner for a batch."""
    process, folder = catch("--checkpoint-period-seconds", 2)
    victim, other = node(process, waiting), node(process, frozen)
    other.suspend()
    time.sleep(3.0)
    with within(5, f"{waiting}, which waits for the frozen {frozen}, gets SIGTERM: it has ended"):
        victim.terminate()
        wait_for(lambda: not alive([victim]), 30, "its end")
    wait_for(lambda: restarts(folder), 30, "that is noticed")
    with contextlib.suppress(psutil.NoSuchProcess):  # with the learner all begin again
        other.resume()
    learns_on(folder)
    ends_in_order(process)


@pytest.mark.soak
def test_a_spent_budget_ends_the_run_with_a_checkpoint_and_status_75(catch):
    process, folder = catch("--restarts.max-per-hour", 0)
    with within(35, "a death too many: the run has ended with its checkpoint"):
        node(process, "actor/0").kill()
        output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 75 and "actor/0 ended with signal 9" in errors
    assert "0 restarts within an hour, restarts.max_per_hour: the run ends" in output
    assert checkpoints.read_state(folder / "checkpoints")["updates"] == updates(folder)


@pytest.mark.soak
def test_ctrl_c_while_all_are_away_ends_at_once(catch):
    process, folder = catch("--checkpoint-period-seconds", 2)
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    node(process, "learner/0").kill()
    wait_for(lambda: restarts(folder), 20, "its death is noticed")
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode in (0, 130), errors
    assert survivors(process) == []


@pytest.mark.soak
def test_a_learner_that_somebody_else_ends_is_not_done(catch):
    process, folder = catch("--checkpoint-period-seconds", 2)
    victim = node(process, "learner/0")
    with within(30, "a learner gets SIGTERM: it has saved its last update and ended"):
        victim.terminate()
        wait_for(lambda: not alive([victim]), 60, "its end")
    comes_back(process, victim, "learner/0")
    learns_on(folder)
    (row,) = restarts(folder)
    assert row["cause"] == "ended with status 0" and row["lost_frames"] == "0", "its last update was saved"
    ends_in_order(process)


@pytest.mark.soak
@pytest.mark.parametrize("program", ["seed", "ga3c"])
def test_actors_of_central_inference_return(catch, program):
    process, folder = catch(config=["train", "--config", f"configs/{program}_catch.yaml"])
    victim = node(process, "actor/0")
    victim.kill()
    comes_back(process, victim, "actor/0")
    now = updates(folder)
    wait_for(lambda: updates(folder) > now + 100, BACK_SECONDS, "training goes on")
    ends_in_order(process)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["server/0", "shard/0"])
def test_a_killed_shard_of_a_parameter_server_brings_all_back_from_the_newest_checkpoint(catch, name):
    """Shard 0 is in the process server/0; in shard/0 is another one, half of whose parameters nobody else has."""
    process, folder = catch("--checkpoint-period-seconds", 2, "--server.num-shards", 2, config=["train", "--config", "configs/a3c_catch.yaml"])
    has_saved = lambda: (checkpoints.read_state(folder / "checkpoints") or {"updates": 0})["updates"] >= 100  # noqa: E731
    wait_for(has_saved, START_SECONDS, "a checkpoint of an update that is not soon reached again")
    before = checkpoints.read_state(folder / "checkpoints")["frames"]
    names = ["server/0", "shard/0", "actor/0", "actor/1"]
    nodes = {each: node(process, each) for each in names}
    nodes[name].kill()
    for each in names:
        comes_back(process, nodes[each], each)
    wait_for(lambda: not any(old.is_running() for old in nodes.values()), 5, "all old ones are gone")
    learns_on(folder)
    seen = len(rows(folder))
    wait_for(lambda: any(row["staleness_mean"] and float(row["staleness_mean"]) > 0.8 for row in rows(folder)[seen:]), 60, "both workers send")
    output = ends_in_order(process)
    (row,) = restarts(folder)
    assert (row["node"], row["cause"]) == (name, "ended with signal 9")
    saved = int(row["frames"]) - int(row["lost_frames"])
    assert before <= saved and int(row["lost_frames"]) >= 0
    assert f"{name} ended with signal 9: all nodes start again, from the newest checkpoint" in output
    assert f"{saved:,} frames" in output, "what it resumed from is what it said"
    last = rows(folder)[-1]
    assert (last["repeated_gradients"], last["nonfinite_gradients"], last["stale_gradients"]) == ("0", "0", "0")
    assert checkpoints.read_state(folder / "checkpoints")["updates"] == updates(folder), "the end was saved"
    for column in ("frames", "updates", "wall_seconds"):
        values = [float(each[column]) for each in rows(folder)]
        assert values == sorted(values), column


@pytest.mark.soak
@pytest.mark.parametrize("name, number", [("learner/1", signal.SIGKILL), ("learner/0", signal.SIGKILL), ("learner/1", signal.SIGSTOP)])
def test_two_learners_return_together(catch, name, number):
    """A frozen one is noticed by the other, which ends, and both begin again; they compare their weights at the end."""
    two = ["--learner.num-learners", 2, "--learner.batch-size", 8]
    process, folder = catch(*two, "--checkpoint-period-seconds", 2)
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    victim, what = node(process, name), f"{name} of two gets {number.name}"
    with within(GROUP_SECONDS, f"{what}: there are more frames than before"):
        with within(2 if number == signal.SIGKILL else 15, f"{what}: it is noticed"):
            victim.send_signal(number)
            wait_for(lambda: restarts(folder), 30, "it is noticed")
        comes_back(process, victim, name)
        assert not victim.is_running()
        learns_on(folder)
    (row,) = restarts(folder)
    assert 0 <= int(row["lost_frames"]) < int(row["frames"])
    ends_in_order(process)


def faulty(tmp_path):
    from tests.programs.test_faults import CONFIG

    path = tmp_path / "faulty.yaml"
    path.write_text(CONFIG)
    return path


@pytest.mark.soak
@pytest.mark.parametrize("fault", ["nan:2000", "nans:2000"])
def test_a_reward_that_is_not_a_number_ends_its_episode_ten_their_actor_and_nothing_of_it_is_learned(fault, tmp_path, monkeypatch):
    monkeypatch.setenv("IMPALA_TEST_FAULT", fault)
    name, budget = ["--environment.name", "tests.faults.game:Faulty-v0"], ["--total-frames", 20_000]
    process = start(*CATCH, "--run", tmp_path / "run", *name, *budget, "--restarts.max-in-a-row", 1)
    errors, is_one = end_of(process), fault.startswith("nan:")
    assert process.returncode == (0 if is_one else 1), errors
    log = "".join(path.read_text() for path in (tmp_path / "run" / "logs").glob("actor-*.log"))
    assert ("its episode is dropped, and a new one begins" if is_one else "10 times within 20,000 steps") in log
    assert is_one or "mend the environment" in errors, errors
    assert len(restarts(tmp_path / "run")) == (0 if is_one else 1)
    kept = [row for row in rows(tmp_path / "run") if row["loss"]]
    assert kept and {(row["unsound_chunks"], row["skipped_updates"]) for row in kept} == {("0", "0")}


@pytest.mark.soak
@pytest.mark.parametrize("victim, what", [("actor/0", "no node can be started"), ("learner/0", "the nodes cannot be started")])
def test_a_run_whose_folder_is_gone_ends_in_a_line_when_a_node_has_to_start_again(catch, victim, what):
    process, folder = catch()
    shutil.rmtree(folder)
    with within(35, f"the run's folder is gone, {victim} is killed: the run has ended"):
        node(process, victim).kill()
        output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 75 and "Traceback" not in errors
    assert f"{what} any more ([Errno 2] No such file or directory" in output
    assert survivors(process) == []


@pytest.mark.soak
def test_a_table_that_a_strangers_priority_ended_is_found_and_comes_back(catch):
    process, folder = catch(config=["train", "apex_catch"])
    command = [sys.executable, "-m", "tests.faults.stranger", table_address(process), "-1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "the table took Flush call did not complete" in done.stdout, done
    with within(45, "a priority below 0 has ended a table: it is noticed"):
        wait_for(lambda: restarts(folder), 90, "that is noticed")
    learns_on(folder)
    (row,) = restarts(folder)
    assert (row["node"], row["cause"]) == ("table/0", "ended with status 75")
    assert "nothing goes into or out of the table 'replay' any more" in ends_in_order(process)


@pytest.mark.soak
@pytest.mark.parametrize("priority, reason", [("inf", "priority"), ("1e30", "unreadable")])
def test_a_table_that_a_strangers_priority_spoiled_is_emptied_and_training_goes_on(catch, priority, reason):
    """Whatever is drawn, it is the stranger's or has no probability; nothing else would be trained on any more."""
    process, folder = catch(config=["train", "apex_catch"])
    command = [sys.executable, "-m", "tests.faults.stranger", table_address(process), priority]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    with within(20, f"a priority of {priority} has spoiled a table: it is emptied"):
        wait_for(lambda: EMPTIED in (folder / "logs/learner-0.log").read_text(), 90, "it is emptied")
    wait_for(lambda: reason in rows(folder)[-1]["unsound_reasons"], 20, "that is told")
    now = updates(folder)
    wait_for(lambda: updates(folder) > now + 100, 60, "training goes on")
    assert not restarts(folder) and (folder / "logs/learner-0.log").read_text().count(EMPTIED) == 1
    ends_in_order(process)
    frames = [int(row["frames"]) for row in rows(folder)]
    assert frames == sorted(frames), "what the table has forgotten still counts"


@pytest.mark.soak
def test_a_replay_that_is_kept_survives_its_tables_end(catch):
    """All nodes start again: the table, told to end by somebody else, writes its copy, and its successor reads that."""
    process, folder = catch(
        "--replay.checkpoint-minutes", 60, "--checkpoint-period-seconds", 2, config=["train", "apex_catch"]
    )
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    assert list((folder / "replay").glob("*/*/DONE")) == [], "no copy is due for an hour"
    learner, table, size = node(process, "learner/0"), node(process, "table/0"), int(rows(folder)[-1]["replay_size"])
    assert size >= 1_000
    table.terminate()
    comes_back(process, table, "table/0")
    assert not learner.is_running()
    learns_on(folder)
    assert len(list((folder / "replay").glob("*/*/DONE"))) == 1
    (row,) = restarts(folder)
    output = ends_in_order(process)
    assert "table/0 ended with status 0: all nodes start again, from the newest checkpoint" in output
    (said,) = [line for line in output.splitlines() if "transitions in the replay table" in line]
    assert "the first update waits" not in said
    num_read = int(said.split("with ")[1].split()[0].replace(",", ""))
    assert size <= num_read <= size + 16 * 100 * 30, "what came until all had ended, a hundred steps a second each"
    after = [each for each in rows(folder) if int(each["updates"]) > int(row["updates"]) and each["replay_size"]]
    assert after and all(int(each["replay_size"]) >= num_read for each in after)
    assert {each["unsound_chunks"] for each in rows(folder)} == {"0"}


def frames_per_second(folder, seconds):
    frames, began = int(rows(folder)[-1]["frames"]), time.monotonic()
    time.sleep(seconds)
    return (int(rows(folder)[-1]["frames"]) - frames) / (time.monotonic() - began)


@pytest.mark.soak
def test_one_of_eight_actors_costs_its_share_for_seconds(catch):
    process, folder = catch("--actor.num-actors", 8, "--actor.num-environments", 4)
    time.sleep(10.0)  # until all eight act
    undisturbed, learner = frames_per_second(folder, 20), node(process, "learner/0").pid
    for name in ("actor/0", "actor/5", "actor/7"):
        victim = node(process, name)
        victim.kill()
        disturbed = frames_per_second(folder, 20)
        share = 100 * disturbed / undisturbed
        keep(f"{name} of eight is killed: frames of the 20 s after it", share, "% of undisturbed", at_least=88)
        assert node(process, name).pid != victim.pid, "it is back"
    assert node(process, "learner/0").pid == learner and len(restarts(folder)) == 3
    ends_in_order(process)
    assert {int(row["unsound_chunks"] or 0) for row in rows(folder)} == {0}


def kill_half_of_the_actors(process, folder, *, num_actors, seconds, times):
    """Kills half of the actors again and again, and compares the rate with the undisturbed one before."""
    launcher, chance = psutil.Process(process.pid), random.Random(0)
    undisturbed, learner = frames_per_second(folder, 30), node(process, "learner/0").pid
    rates, opened, memory, of_others = [], [], [], []
    for _ in range(times):
        for number in chance.sample(range(num_actors), num_actors // 2):
            with contextlib.suppress(StopIteration):  # it waits for its next start
                node(process, f"actor/{number}").kill()
        rates.append(frames_per_second(folder, seconds))
        opened.append(launcher.num_fds())
        memory.append(launcher.memory_info().rss)
        of_others.append([float(rows(folder)[-1][column] or "nan") for column in ("rss_learner_mb", "rss_table_mb")])
        assert not [child for child in launcher.children() if child.status() == psutil.STATUS_ZOMBIE]
    what = f"{num_actors // 2} of {num_actors} actors are killed {times} times, every {seconds} s: "
    keep(what + "frames", 100 * np.mean(rates) / undisturbed, "% of undisturbed", at_least=40)
    keep(what + "memory of the launcher", 100 * (memory[-1] / memory[0] - 1), "% more", at_most=2)
    for name, first, last in zip(("learner", "table"), of_others[0], of_others[-1]):
        keep(what + f"memory of the {name}", 100 * (last / first - 1), "% more", at_most=2)
    keep(what + "its open files", opened[-1] - max(opened[:3]), "more", at_most=2)
    assert node(process, "learner/0").pid == learner
    ends_in_order(process)
    assert {int(row["unsound_chunks"] or 0) for row in rows(folder)} == {0}


@pytest.mark.soak
def test_half_of_the_actors_killed_again_and_again_cost_no_more_than_their_time(catch):
    """Each time after more than a minute: shorter lives, in a row, are a crash loop, which ends the run."""
    process, folder = catch("--actor.num-actors", 4, "--actor.num-environments", 8)
    kill_half_of_the_actors(process, folder, num_actors=4, seconds=70, times=5)
    assert len(restarts(folder)) == 10


@pytest.mark.soak
def test_half_of_the_actors_killed_every_ten_seconds_leave_two_fifths_of_the_frames(catch):
    """Where so many deaths in a row are allowed; by default they are a crash loop."""
    allowed = ["--restarts.max-in-a-row", 1_000, "--restarts.max-per-hour", 10_000]
    process, folder = catch("--actor.num-actors", 8, "--actor.num-environments", 4, *allowed)
    kill_half_of_the_actors(process, folder, num_actors=8, seconds=10, times=30)
    assert len(restarts(folder)) > 60


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="process ids of one's own need root")
def test_a_run_whose_process_ids_are_those_of_a_container_trains_and_ends(tmp_path):
    """As in a container: the launcher is process 1, and ids are those of other processes outside."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", *IMPALA, *map(str, CATCH), "--run", str(tmp_path / "run")]
    done = subprocess.run([*command, "--total-frames", "20000"], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(rows(tmp_path / "run")[-1]["frames"]) >= 20_000
