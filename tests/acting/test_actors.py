"""The order of things: who steps while who decides."""

import itertools

import numpy as np

from impala.acting import actors, chunks, policies
from impala.types import Origin
from tests.acting import scripted


class Telling(scripted.Scripted):
    """Writes down when it is sent an action and when it is asked for the step."""

    def __init__(self, name, log):
        super().__init__([[(5, "terminated")]] * 2, shape=(1, 1))
        self._name, self._log = name, log

    def send(self, action):
        self._log.append(f"{self._name} steps")
        super().send(action)

    def receive(self):
        self._log.append(f"{self._name} is received")
        return super().receive()


def make_loop(name, log, unroll_length=2):
    environment, logits = Telling(name, log), scripted.Recording(3)

    def decide(window, is_first):
        log.append(f"{name} decides")
        return logits(window, is_first)

    def sync():
        log.append(f"{name} syncs")
        return 0

    writer = chunks.UnrollWriter(
        environment.spec, 2, unroll_length=unroll_length, origin=Origin(0, 0, 0, 0, 0),
        sink=lambda unroll: log.append(f"{name} writes {len(unroll)}"),
    )  # fmt: skip
    policy = policies.FeedForwardPolicy(decide, environment.spec, 2, seed=0)
    return actors.Actor(environment, policy, writer, sync, unroll_length=unroll_length).steps(0)


def test_one_actor():
    log = []
    loop = make_loop("a", log)
    for _ in range(4):
        log.append("·")
        next(loop)
    assert log == [
        "·",  # before the unroll, and before its weights are fetched
        "·", "a syncs", "a decides", "a steps",
        "·", "a is received", "a decides", "a steps",
        "·", "a is received", "a writes 2",
    ]  # fmt: skip


def test_while_one_lane_steps_the_other_decides():
    log = []
    loop = actors.interleave([make_loop("a", log), make_loop("b", log)])
    for _ in range(8):
        next(loop)
    assert log == [
        "a syncs", "a decides", "a steps",
        "b syncs", "b decides", "b steps",
        "a is received", "a decides", "a steps",
        "b is received", "b decides", "b steps",
        "a is received", "a writes 2",
        "b is received", "b writes 2",
    ]  # fmt: skip
    # In between, every lane but the one at work is stepping.
    running = set()
    for event in log[:12]:
        lane, what = event.split(maxsplit=1)
        if what == "steps":
            running.add(lane)
        elif what == "is received":
            running.remove(lane)
        elif what == "decides" and lane == "b":
            assert "a" in running


def test_interleave_takes_turns_and_passes_on_what_is_yielded():
    loops = [itertools.count(start) for start in (0, 100, 200)]
    taken = list(itertools.islice(actors.interleave(loops), 7))
    assert taken == [0, 100, 200, 1, 101, 201, 2]


def test_time_is_accounted_for():
    environment = scripted.Scripted([[(5, "terminated")]], shape=(1, 1))
    actor = actors.Actor(
        environment, policies.FeedForwardPolicy(scripted.Recording(3), environment.spec, 1, seed=0),
        chunks.UnrollWriter(environment.spec, 1, unroll_length=3, origin=Origin(0, 0, 0, 0, 0), sink=lambda unroll: None),
        lambda: 0, unroll_length=3,
    )  # fmt: skip
    loop = actor.steps(0)
    for _ in range(50):
        next(loop)
    shares = actor.account.fractions()
    assert set(shares) == {"weights", "inference", "environment", "table"}
    assert all(share > 0 for share in shares.values()) and sum(shares.values()) <= 1.0


def test_actions_reach_the_environment_as_decided():
    environment = scripted.Scripted([[(5, "terminated")]] * 3, shape=(1, 1))
    unrolls, logits = [], scripted.Recording(3)
    actor = actors.Actor(
        environment, policies.FeedForwardPolicy(logits, environment.spec, 3, seed=0),
        chunks.UnrollWriter(environment.spec, 3, unroll_length=4, origin=Origin(0, 0, 0, 0, 0), sink=unrolls.append),
        lambda: 0, unroll_length=4,
    )  # fmt: skip
    loop = actor.steps(0)
    while not unrolls:
        next(loop)
    np.testing.assert_array_equal(np.stack(environment.actions), [[1] * 3, [2] * 3, [0] * 3, [1] * 3])
    assert environment.actions[0].dtype == np.int32
