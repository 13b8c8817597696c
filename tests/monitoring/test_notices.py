"""What is said to whoever watches a run, and when."""

import datetime
import functools

import pytest

from impala.launching.beats import Node, patience
from impala.launching.roles import Roles
from impala.launching.supervising import doing_of, late
from impala.monitoring import logs
from impala.monitoring.notices import COLUMNS, Notices, Record
from impala.programs.impala import ROLES

WELL = Node(silent_seconds=0.5, is_frozen=False, doing="running", rss_mb=600.0, facts={})


def notices():
    roles = Roles(ROLES)
    find = Notices(
        patience=lambda doing: patience(doing, 300.0), growth=1.0, allowed_mb=lambda name: 2_000.0 * roles.of(name).stores,
        plays=lambda name: roles.of(name).plays,
    )  # fmt: skip
    return lambda nodes: find(nodes, doing_of(nodes, roles))


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


def test_a_copy_of_the_replay_table_that_fails_is_said_until_one_succeeds():
    (words,) = notices()({"table/0": WELL._replace(facts=dict(copy_error="No space left on device"))}).values()
    assert words.startswith("the replay table could not be copied to disk (No space left on device)")
    assert not notices()({"table/0": WELL._replace(facts=dict(copy_error=""))})


def test_memory_may_grow_where_chunks_are_stored_and_a_leak_is_of_who_plays():
    find = notices()
    find({name: WELL for name in ("table/0", "learner/0", "actor/0")})
    grown = find({name: WELL._replace(rss_mb=2_500.0) for name in ("table/0", "learner/0", "actor/0")})
    assert set(grown) == {"learner/0 memory", "actor/0 memory"}, "a table is allowed 2,000 MB here"
    assert "environment" in grown["actor/0 memory"] and "environment" not in grown["learner/0 memory"]


def test_chunks_and_rows_that_are_dropped_are_said():
    said = notices()({"learner/0": WELL._replace(facts=dict(unsound={"action": 3, "version": 1, "task": 0}, lost_rows=9))})
    assert said["learner/0 chunks"].startswith("4 chunks were unsound and dropped (action 3, version 1)")
    assert said["learner/0 logs"].startswith("9 rows of logs")


def test_a_learner_that_waits_for_a_peer_that_saves_is_not_silent():
    learners = {"learner/0": WELL._replace(doing="saving", silent_seconds=20.0), "learner/1": WELL._replace(silent_seconds=20.0)}
    assert notices()(learners) == {
        "learner/0 silent": "learner/0 has been writing a checkpoint for 20 s",
        "learner/1 silent": "learner/1 has been waiting for a peer that is writing a checkpoint for 20 s",
    }
    assert late(learners, Roles(ROLES), 10.0) == []
    learners["learner/0"] = WELL
    assert late(learners, Roles(ROLES), 10.0) == ["learner/1"]


def test_who_starts_or_saves_may_be_silent_for_longer():
    for doing, limit in (("running", 20.0), ("starting", 120.0), ("saving", 80.0)):
        for seconds, found in ((limit - 1, []), (limit + 1, ["actor/0"])):
            nodes = {"actor/0": WELL._replace(doing=doing, silent_seconds=seconds), "table/0": WELL}
            assert late(nodes, Roles(ROLES), 20.0) == found, (doing, seconds)


def test_who_froze_while_it_saved_is_given_no_more_time_than_others():
    frozen = {"learner/0": WELL._replace(doing="saving", silent_seconds=21.0, is_frozen=True), "actor/0": WELL}
    assert late(frozen, Roles(ROLES), 20.0) == ["learner/0"]
    assert "nothing is heard of its process); after 300 s" in notices()(frozen)["learner/0 silent"]


def test_what_was_wrong_with_a_node_that_ended_stays_so():
    find = notices()
    said = find({"actor/0": WELL._replace(silent_seconds=42.0), "table/0": WELL})
    assert find({"table/0": WELL}) == find({}) == said
    assert find({"actor/0": WELL, "table/0": WELL}) == {}


def test_a_layer_that_falls_silent_is_said():
    facts = dict(silent_units={"conv_1": 0.24, "conv_2": 0.25, "dense": 0.5})
    (words,) = notices()({"learner/0": WELL._replace(facts=facts)}).values()
    assert words.startswith("units active for no observation in twelve rows: 25% of conv_2, 50% of dense; ")


def test_a_notice_is_recorded_when_it_begins_and_when_it_is_over(tmp_path):
    path = tmp_path / "notices.csv"
    find, record = notices(), Record(functools.partial(logs.append, path, columns=COLUMNS))
    for silent_seconds in (0.5, 42.0, 43.0, 0.5):
        record(find({"actor/0": WELL._replace(silent_seconds=silent_seconds)}))
    began, over = logs.read_csv(path)
    assert (began["notice"], began["state"], over["notice"], over["state"]) == ("actor/0 silent", "begins", "actor/0 silent", "over")
    assert began["text"].startswith("actor/0 has been silent for 42 s (it runs, but") and not over["text"]
    datetime.datetime.strptime(began["time"], "%Y-%m-%dT%H:%M:%S%z")


def test_a_full_disk_costs_a_notice_its_row_and_nothing_else():
    def write(rows):
        raise OSError("No space left on device")

    Record(write)({"learner/0 units": "50 % of dense"})


def test_memory_that_grows_is_said():
    find = notices()

    def of(**megabytes):
        return find({f"{role}/0": WELL._replace(rss_mb=mb) for role, mb in megabytes.items()})

    assert not of(actor=300.0, table=100.0, learner=400.0)
    assert not of(actor=1_090.0, table=2_600.0, learner=1_290.0), "half a gigabyte and as much again; a table may fill"
    said = of(actor=1_110.0, table=2_710.0, learner=1_310.0)
    assert said["actor/0 memory"] == "actor/0's memory grew from 300 to 1,110 MB since it began; its environment may leak"
    assert set(said) == {"actor/0 memory", "table/0 memory", "learner/0 memory"}


def test_memory_before_a_node_begins_is_not_compared():
    find = notices()
    assert not find({"actor/0": WELL._replace(rss_mb=10.0, doing="starting")})
    assert not find({"actor/0": WELL._replace(rss_mb=1_000.0)})
