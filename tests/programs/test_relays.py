"""Relays between the learner's weights and the actors, through real processes."""

import signal

import pytest

from tests.programs.running import (
    CATCH,
    WATCHED,
    ends_in_order,
    learns_on,
    node,
    restarts,
    rows,
    run,
    start,
    wait_for,
    wait_until_it_trains,
)

RELAYS = ["--actor.num-actors", 2, "--actor.num-relays", 2]


@pytest.mark.soak
@pytest.mark.parametrize("config, best", [("catch", 0.8), ("apex_catch", 0.8)])
def test_it_learns_catch(tmp_path, config, best):
    done = run("train", config, *RELAYS, "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    written = rows(tmp_path / "run")
    column = "evaluation_mean" if config == "apex_catch" else "return_mean"
    assert float([row[column] for row in written if row[column]][-1]) > best
    assert {row["unsound_chunks"] or "0" for row in written} == {"0"}


@pytest.mark.soak
def test_a_killed_relay_brings_all_back(tmp_path):
    """Actors know where it stands, so it comes back with all others."""
    process, folder = start(*CATCH, *WATCHED, *RELAYS, "--checkpoint-period-seconds", 2, "--run", tmp_path / "run"), tmp_path / "run"
    wait_until_it_trains(folder, 5)
    node(process, "relay/1").send_signal(signal.SIGKILL)
    wait_for(lambda: restarts(folder), 30, "it is noticed")
    learns_on(folder)
    assert [row["node"] for row in restarts(folder)] == ["relay/1"]
    assert "relay/1 ended with signal 9: all nodes start again" in ends_in_order(process)
