"""What a launcher makes of who ended, on nodes that are told here."""

import pytest

from impala.launching import beats, supervising
from impala.launching.roles import Role, Roles

ROLES = Roles([
    Role("actor", turn=0, tells=False, returns_alone=True), Role("learner", turn=1, tells=True, is_head=True),
])  # fmt: skip


class Nodes:
    """A learner and an actor, of which the learner has told `facts`."""

    roles, can_start_again = ROLES, True

    def __init__(self, **facts):
        self.facts = facts

    def node(self, name):
        return beats.Node(0.0, False, "running", 100.0, self.facts if name == "learner/0" else {})


def supervisor(**facts):
    return supervising.Supervisor(
        Nodes(**facts), None, on_tick=lambda: None, say=print, restarts=None, new_incarnation=None
    )


@pytest.mark.parametrize("facts, unasked", [
    ({"is_done": True}, set()), ({}, set()),  # its last sign of life may be lost
    ({"is_done": False}, {"learner/0"}),  # somebody sent it, and it alone, a SIGTERM
])  # fmt: skip
def test_a_learner_that_ends_in_order_is_done_unless_it_says_that_it_is_not(facts, unasked):
    assert set(supervisor(**facts)._unasked({"learner/0": 0})) == unasked
    assert set(supervisor(**facts)._unasked({"learner/0": 0, "actor/0": 0})) == unasked | {"actor/0"}
    assert set(supervisor(**facts)._unasked({"learner/0": 1})) == {"learner/0"}


def test_the_last_words_of_a_long_log_are_few(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 2_000_000 + "\nTraceback (most recent call last):\n  here\nValueError: why\n" + "later\n" * 10_000)
    words = supervising._end_of_log(log).splitlines()
    assert words[:3] == ["Traceback (most recent call last):", "  here", "ValueError: why"] and len(words) == 200
    log.write_text("\n".join(map(str, range(50))))
    assert supervising._end_of_log(log).splitlines() == [str(number) for number in range(30, 50)]
