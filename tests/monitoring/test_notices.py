"""What is said to whoever watches a run, and when."""

import time

import pytest

from impala.launching.beats import Node
from impala.monitoring.notices import Notices

WELL = Node(silent_seconds=0.5, is_frozen=False, doing="running", rss_mb=600.0, facts={})


def notices(**kwargs):
    return Notices(**dict(liveness_seconds=300.0, growth=1.0, allowed_mb={"table": 2_000.0}) | kwargs)


def test_nothing_is_said_of_nodes_that_are_well():
    facts = dict(save_error="", checkpoint_mb=3.0, free_mb=1000.0, unsound={"action": 0}, lost_rows=0)
    assert notices()({"actor/0": WELL, "learner/0": WELL._replace(facts=facts)}) == {}


@pytest.mark.parametrize("changes, words", [
    (dict(silent_seconds=42.0, is_frozen=True), "actor/0 has been silent for 42 s (nothing is heard of its process); after 300 s the run ends"),
    (dict(silent_seconds=42.0), "actor/0 has been silent for 42 s (it runs, but its loop makes no step: an environment that hangs?); after 300 s the run ends"),
    (dict(silent_seconds=42.0, doing="saving"), "actor/0 has been writing a checkpoint for 42 s"),
    (dict(silent_seconds=42.0, doing="starting"), None),  # imports
    (dict(silent_seconds=100.0, doing="starting", is_frozen=True), "actor/0 has been silent for 100 s (nothing is heard of its process); after 300 s the run ends"),
    (dict(silent_seconds=10.0), None),
])  # fmt: skip
def test_silence_is_said_with_its_likely_reason(changes, words):
    said = notices()({"actor/0": WELL._replace(**changes), "table/0": WELL})
    assert said == ({} if words is None else {"actor/0 silent": words})


def test_a_checkpoint_that_fails_or_will_is_said_with_what_would_be_lost():
    facts = dict(frames=513_000, saved_frames=1_000, saved_updates=7, checkpoint_mb=3.0, free_mb=100.0, save_error="")
    assert not notices()({"learner/0": WELL._replace(facts=facts)})
    (words,) = notices()({"learner/0": WELL._replace(facts=facts | dict(free_mb=1.0))}).values()
    assert words == (
        "the next checkpoint will fail: it takes 3.0 MB, and the run's disk has 1.0 MB free; not saved yet: "
        "512,000 frames since update 7"
    )
    facts |= dict(save_error="No space left on device", failing_seconds=31.0)
    (words,) = notices()({"learner/0": WELL._replace(facts=facts)}).values()
    assert words == (
        "no checkpoint could be written for 31 s (No space left on device); if the run ended now, it would lose "
        "512,000 frames since update 7"
    )


def test_chunks_and_rows_that_are_dropped_are_said():
    said = notices()({"learner/0": WELL._replace(facts=dict(unsound={"action": 3, "version": 1, "task": 0}, lost_rows=9))})
    assert said["learner/0 chunks"].startswith("4 chunks were unsound and dropped (action 3, version 1)")
    assert said["learner/0 logs"].startswith("9 rows of logs")


def test_memory_that_grows_is_said_once_a_node_has_settled(monkeypatch):
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    find = notices()

    def after(seconds, **nodes):
        nonlocal now
        now += seconds
        return find({f"{role}/0": WELL._replace(rss_mb=megabytes) for role, megabytes in nodes.items()})

    assert not after(0, actor=300.0, table=100.0)
    assert not after(10, actor=600.0, table=100.0), "the largest of the first seconds is what it began with"
    assert not after(10, actor=1_190.0, table=2_500.0), "less than twice as much; a table may fill"
    said = after(10, actor=1_300.0, table=2_700.0)
    assert said["actor/0 memory"] == "actor/0's memory grew from 600 to 1,300 MB since it began; its environment may leak"
    assert "table/0 memory" in said
