"""What a launcher makes of who ended, on nodes that are told here."""

import itertools
from types import SimpleNamespace

import pytest

from impala.launching import beats, interrupts, restarts, supervising
from impala.launching.roles import ACTOR, LEARNER, TABLE, Role, Roles

ROLES = Roles([
    Role("actor", turn=0, tells=False, returns_alone=True), Role("learner", turn=1, tells=True, is_head=True),
])  # fmt: skip


class Nodes:
    """A learner and an actor, of which the learner has told `facts`."""

    roles, can_start_again, keeps_addresses, wants_end = ROLES, True, True, False

    def __init__(self, **facts):
        self.facts = facts

    def log(self, name):
        return None

    def node(self, name):
        return beats.Node(0.0, False, "running", 100.0, self.facts if name == "learner/0" else {})


def supervisor(**facts):
    return supervising.Supervisor(
        Nodes(**facts), None, on_tick=lambda: None, say=print, restarts=None, new_incarnation=None
    )


@pytest.mark.parametrize("facts, unasked", [
    ({"is_done": True, "status": 0}, set()), ({"status": 0}, set()),
    ({"is_done": False, "status": 0}, {"learner/0"}),  # somebody sent it, and it alone, a SIGTERM
    ({}, {"learner/0"}), ({"is_done": False}, {"learner/0"}),  # an environment in its process has called C's exit
])  # fmt: skip
def test_a_learner_that_says_its_status_is_done_unless_it_says_that_it_is_not(facts, unasked):
    assert set(supervisor(**facts)._unasked({"learner/0": 0})) == unasked
    assert set(supervisor(**facts)._unasked({"learner/0": 0, "actor/0": 0})) == unasked | {"actor/0"}
    assert set(supervisor(**facts)._unasked({"learner/0": 1})) == {"learner/0"}


LOST = {"lost_peer": True}


@pytest.mark.parametrize("facts, comes_later, keeps_addresses, interrupts, waits", [
    ({"learner/0": LOST}, {}, False, 0, "long"),
    ({"learner/0": LOST}, {"learner/1": {"lost_host": True}}, False, 0, 3),  # what its peer was lost by
    ({"learner/0": LOST}, {"learner/1": LOST}, False, 0, 3),  # all have ended: nothing is left to come
    ({"learner/0": LOST | {"lost_host": True}}, {}, False, 0, 0), ({"learner/0": {}}, {}, False, 0, 0),
    ({"learner/0": LOST, "table/1": {}}, {}, False, 0, 0), ({"actor/0": {}}, {}, False, 0, 0),
    ({"learner/0": LOST}, {}, False, 1, 0), ({"learner/0": LOST}, {}, True, 0, 0),  # on one machine all come at once
])  # fmt: skip
def test_on_a_cluster_a_learner_that_lost_its_peer_awaits_what_became_of_it(
    monkeypatch, facts, comes_later, keeps_addresses, interrupts, waits
):
    monkeypatch.setattr(supervising, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(supervising, "_CAUSE_SECONDS", 0.5)
    known, ticks = dict(facts), []

    def on_tick():
        ticks.append(1)
        if len(ticks) == 3:
            known.update(comes_later)

    watching = supervisor()
    watching._on_tick, watching._interrupts = on_tick, SimpleNamespace(count=interrupts)
    watching._nodes = SimpleNamespace(
        can_start_again=True, keeps_addresses=keeps_addresses, roles=Roles([ACTOR, LEARNER, TABLE]), ended=lambda: dict.fromkeys(known, 75),
        names=lambda: ["learner/0", "learner/1", "table/0", "table/1", "actor/0"],
        node=lambda name: beats.Node(0.0, False, "running", 1.0, known[name]),
    )
    watching._let_causes_arrive()
    assert len(ticks) > 10 if waits == "long" else len(ticks) == waits


@pytest.mark.parametrize("died, left, keeps_addresses, kept", [
    ("learner/0", {"table/0", "table/1", "actor/0"}, True, ["table/0", "table/1"]),
    ("learner/0", {"table/0", "table/1"}, False, []),  # on a cluster they would not be found again
    ("table/1", {"table/0", "learner/0"}, True, []), ("learner/0", {"table/0", "actor/0"}, True, []),
    ("table/1", {"table/0", "table/1", "learner/0"}, True, []),  # it is silent
])  # fmt: skip
def test_tables_outlive_their_learners_unless_one_of_them_ended_too(died, left, keeps_addresses, kept):
    class Replaying(Nodes):
        names = staticmethod(lambda: ["table/0", "table/1", "learner/0", "actor/0"])

        def node(self, name):
            return beats.Node(0.0, False, "running", 100.0, {"outlives_learners": name.startswith("table")})

    Replaying.left, Replaying.keeps_addresses = staticmethod(lambda: list(left)), keeps_addresses
    watching = supervising.Supervisor(
        Replaying(), None, on_tick=lambda: None, say=print, restarts=None, new_incarnation=None
    )
    assert watching._kept(died) == kept


def test_a_learner_that_dies_again_before_it_saved_goes_on_from_the_moment_of_the_older_checkpoint():
    class Again(Nodes):
        names = staticmethod(lambda: ["learner/0", "actor/0"])
        starts = []

        def start_again(self, name, seconds, since):
            self.starts.append((name, since))

    nodes = Again(saved_at=100.0)
    watching = supervising.Supervisor(
        nodes, None, on_tick=lambda: None, say=print, restarts=None, new_incarnation=None
    )
    for nodes.facts in ({"saved_at": 100.0}, {"saved_at": None}, {"saved_at": 300.0}):
        watching._start_all_but(["actor/0"])
    assert nodes.starts == [("learner/0", 100.0), ("learner/0", 100.0), ("learner/0", 300.0)]
    assert watching.since == 300.0


class Members(Nodes):
    """A population of two: the first is done and has saved all, the other has 300 frames since its checkpoint."""

    told = {
        "learner/0": dict(is_done=True, status=0, saved_updates=50, saved_frames=500, frames=500),
        "learner/1": dict(is_done=False, status=0, saved_updates=20, saved_frames=200, frames=500),
    }  # fmt: skip

    def node(self, name):
        return beats.Node(0.0, False, "running", 100.0, self.told.get(name, {}))

    def names(self):
        return ["learner/0", "learner/1", "actor/0"]

    def left(self):
        return self.names()

    def stop(self, should_kill):
        pass

    def lived_seconds(self, name):
        return 6 * 3600.0


def test_of_a_population_every_member_counts(monkeypatch):
    """What is lost, whether training gets on, and who is done."""
    said, kept, nodes = [], [], Members()
    keeping = restarts.Restarts(max_in_a_row=2, max_per_hour=60)
    monkeypatch.setattr(keeping, "keep", lambda **row: kept.append(row))
    found = supervising.Supervisor(
        nodes, SimpleNamespace(count=0), on_tick=lambda: None, say=said.append, restarts=keeping, new_incarnation=None
    )  # fmt: skip
    assert set(found._unasked({"learner/1": 0})) == {"learner/1"} and not found._unasked({"learner/0": 0})
    found._bring_back("learner/1", "ended with signal 9", 0.0)
    assert said[-1] == "300 frames are lost; the newest checkpoints are of update 50, 20" and kept[-1]["lost_frames"] == 300
    for saved in (20, 30, 40, 50, 60):  # the first one saves nothing any more
        monkeypatch.setitem(nodes.told["learner/1"], "saved_updates", saved)
        assert found._seconds_to_return("learner/1", -9) is not None


@pytest.mark.parametrize("words, is_refusal", [("server.num_shards=9: too many", True), ("", False)])
def test_only_a_node_that_says_why_refuses_the_run(monkeypatch, words, is_refusal):
    """An environment in C may exit with status 2."""

    class Ended(Nodes):
        names, ended = (lambda self: ["learner/0", "actor/0"]), (lambda self: {"actor/0": 2})
        stop, lived_seconds = (lambda self, should_kill: None), (lambda self, name: 3600.0)

        def node(self, name):
            return super().node(name)._replace(facts=dict(last_words=words, has_trained=True))

    said, brought = [], []
    watched = supervising.Supervisor(
        Ended(), SimpleNamespace(count=0), on_tick=lambda: None, say=said.append, new_incarnation=None,
        restarts=restarts.Restarts(max_in_a_row=2, max_per_hour=60),
    )  # fmt: skip
    monkeypatch.setattr(watched, "_bring_back", lambda *how: brought.append(how[:2]))
    outcome = watched._bury_ended()
    assert outcome == (supervising.Outcome(2) if is_refusal else None)
    assert brought == ([] if is_refusal else [("actor/0", "ended with status 2")])


@pytest.mark.parametrize("has_saved, status, says", [(True, 0, "the newest checkpoint is as before"), (False, 130, "nothing new to save")])
def test_ctrl_c_while_nodes_start_again_is_no_early_one(has_saved, status, says):
    class Starting(Nodes):
        names, ended, stop = (lambda self: ["learner/0"]), (lambda self: {"learner/0": 130}), (lambda self, should_kill: None)

    told, counted = [], restarts.Restarts(max_in_a_row=5, max_per_hour=9)
    counted.has_saved = has_saved
    watched = supervising.Supervisor(
        Starting(), SimpleNamespace(count=1), on_tick=lambda: None, say=told.append, restarts=counted, new_incarnation=None
    )
    assert watched._end() == status and says in told[-1]


def test_the_last_words_of_a_long_log_are_few(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 2_000_000 + "\nTraceback (most recent call last):\n  here\nValueError: why\n" + "later\n" * 10_000)
    words = supervising._end_of_log(log).splitlines()
    assert words[:3] == ["Traceback (most recent call last):", "  here", "ValueError: why"] and len(words) == 200
    log.write_text("\n".join(map(str, range(50))))
    assert supervising._end_of_log(log).splitlines() == [str(number) for number in range(30, 50)]


@pytest.mark.parametrize("has_trained, is_mistake", [(False, True), (True, False)])
def test_a_node_that_fails_at_its_first_start_ends_only_a_run_that_has_not_trained(has_trained, is_mistake):
    """Hours later it is one host that has just joined, where something is missing."""

    class Late(Nodes):
        def node(self, name):
            return super().node(name)._replace(doing="starting" if name == "actor/0" else "running")

        def lived_seconds(self, name):
            return 3.0

    watched = supervising.Supervisor(
        Late(has_trained=has_trained), None, on_tick=lambda: None, say=print, new_incarnation=None,
        restarts=restarts.Restarts(max_in_a_row=2, max_per_hour=60),
    )  # fmt: skip
    seconds = [watched._seconds_to_return("actor/0", 1) for _ in range(3)]
    assert seconds == [None] * 3 if is_mistake else None not in seconds[:2] and seconds[2] is None


@pytest.mark.parametrize("limits, status, says", [
    (dict(max_in_a_row=2, max_per_hour=60), 1, "actor/0 died 3 times in a row"),
    (dict(max_in_a_row=5, max_per_hour=2), 75, "2 restarts within an hour"),
    (dict(max_in_a_row=0, max_per_hour=60), 75, "ending the run"),
])  # fmt: skip
def test_a_node_that_freezes_too_often_ends_the_run_as_one_that_dies_does(monkeypatch, limits, status, says):
    class Frozen(Nodes):
        dump_stacks, stop, kill, start_again = (lambda *args, **kwargs: None,) * 4

        def node(self, name):
            return super().node(name)._replace(silent_seconds=300.0)

        def lived_seconds(self, name):
            return 320.0  # of which it was frozen for 300

    said, clock = [], itertools.count(0, 100)
    monkeypatch.setattr(supervising, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # of no other thread
    watched = supervising.Supervisor(
        Frozen(has_trained=True), SimpleNamespace(count=0), on_tick=lambda: None, say=said.append, new_incarnation=None,
        restarts=restarts.Restarts(**limits),
    )  # fmt: skip
    outcomes = [watched._bury_silent(["actor/0"]) for _ in range(1 if limits["max_in_a_row"] == 0 else 3)]
    assert outcomes[:-1] == [None] * (len(outcomes) - 1) and outcomes[-1].status == status
    assert any(says in line for line in said)


@pytest.mark.parametrize("facts, seconds", [({"lost_host": True}, True), ({}, False)])
def test_a_node_whose_host_is_lost_young_comes_back_however_often(facts, seconds):
    class OnHosts(Nodes):
        def node(self, name):
            return super().node(name)._replace(facts=facts if name == "actor/0" else {})

        def lived_seconds(self, name):
            return 3.0

    watched = supervising.Supervisor(
        OnHosts(), None, on_tick=lambda: None, say=print, new_incarnation=None,
        restarts=restarts.Restarts(max_in_a_row=1, max_per_hour=60),
    )  # fmt: skip
    found = [watched._seconds_to_return("actor/0", 75) is not None for _ in range(3)]
    assert found == 3 * [True] if seconds else found[1:] == [False, False]


@pytest.mark.parametrize("fact, cause, statuses", [
    ("lost_host", "learner/1", {"learner/0": 75, "learner/1": 75}),
    ("ends_run", "learner/0", {"learner/0": 75, "learner/1": 0}),  # no checkpoint could be written for hours
])  # fmt: skip
def test_of_a_group_the_one_that_knows_why_it_ended_is_to_blame(fact, cause, statuses):
    """Its peers notice, and end by themselves before it is said of a host; or they were told to end by it."""

    class Group(Nodes):
        def node(self, name):
            return super().node(name)._replace(facts={"has_trained": True, "is_done": False, fact: name == cause})

        def ended(self):
            return statuses

    blamed = []
    watched = supervising.Supervisor(
        Group(), SimpleNamespace(count=0), on_tick=lambda: None, say=print, restarts=None, new_incarnation=None
    )  # fmt: skip
    watched._seconds_to_return = lambda name, status: blamed.append(name) or 1.0
    watched._bring_back = lambda *_: supervising.LAUNCH_AGAIN
    assert watched._bury_ended() == supervising.LAUNCH_AGAIN and blamed == [cause]


def test_a_node_that_asks_for_the_end_ends_the_run_in_order():
    class Asking(Nodes):
        wants_end, stopped = False, False

        def nodes(self):
            return {name: self.node(name) for name in self.names()}

        def names(self):
            return ["learner/0", "actor/0"]

        def ended(self):
            return dict.fromkeys(self.names(), 0) if self.stopped else {}

        def start_due(self, new_incarnation):
            self.wants_end = True

        def stop(self, should_kill):
            self.stopped = True

        def kill(self, name=None):
            pass

    said, nodes = [], Asking(has_trained=True)
    watched = supervising.Supervisor(
        nodes, interrupts.Interrupts(), on_tick=lambda: None, say=said.append, new_incarnation=None,
        restarts=restarts.Restarts(max_in_a_row=2, max_per_hour=60),
    )  # fmt: skip
    assert watched.run() == supervising.Outcome(0) and nodes.stopped and nodes.wants_end, "not before it asked"
    assert said[0] == "a node has called lp.stop()" and said[1].startswith("stopping: actor, learner (writes a checkpoint)")
