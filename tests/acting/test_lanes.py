"""What is remembered of lanes: requests that are repeated, late, doubled or of another life."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest

from impala.acting import actors, chunks, policies
from impala.acting.inference import Gatherer
from impala.acting.lanes import Lanes
from impala.acting.remote import Client, LaneId, NoWriter, Refused, new_life
from impala.types import Chunk, Origin, Step
from tests.acting import scripted

T = 6

SCRIPTS = [[(3, "terminated"), (9, "truncated")], [(5, "both")], [(40, "terminated")]]


def make_environment():
    return scripted.Scripted(SCRIPTS, shape=(2,), num_stacked=3)


class Network:
    """Logits that tell what was seen, and a version that rises with every call."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, window, is_first, *memory):
        self.num_calls += 1
        logits = np.stack([plane[:, 0] for plane in window.astype(np.float32)], axis=1)  # [N, k]: k actions
        version = np.full(len(logits), self.num_calls, np.int64)
        return logits, logits.sum(1), version


def make_lanes(unrolls, *, network=None, on_episodes=lambda episodes: None):
    spec = make_environment().spec
    network = network or Network()

    def make_writer(lane, n):
        origin = Origin(0, lane.actor, lane.first_environment, lane.life, 0)
        return chunks.UnrollWriter(
            spec, n, unroll_length=T, origin=origin, sink=unrolls.append, version_per_step=True
        )

    return Lanes(
        lambda lane, n: policies.FeedForwardPolicy(network, spec, n, seed=1), make_writer, unroll_length=T, spec=spec,
        on_episodes=on_episodes,
    )


LANE = LaneId(actor=2, first_environment=10, life=1)


def play(lanes, num_steps, *, lane=LANE, environment=None, step=None, number=0):
    """A client: steps its environments with what the lanes decide. Returns where it stands."""
    environment = environment or make_environment()
    step = environment.reset(0) if step is None else step
    for _ in range(num_steps):
        environment.send(lanes.step(lane, number, step).action)
        step, number = environment.receive(), number + 1
    return environment, step, number


def test_unrolls_are_those_of_an_actor_with_a_policy_of_its_own():
    central, local, episodes = [], [], []
    play(make_lanes(central, on_episodes=episodes.extend), 5 * T + 1)
    environment, network = make_environment(), Network()
    loop = actors.Actor(
        environment, policies.FeedForwardPolicy(lambda *x: network(*x)[:2], environment.spec, 3, seed=1),
        chunks.UnrollWriter(
            environment.spec, 3, unroll_length=T, origin=Origin(0, 2, 10, 1, 0), sink=local.append
        ),
        lambda: 0, unroll_length=T, origin=Origin(0, 2, 10, 1, 0),
    ).steps(0)  # fmt: skip
    ended = []
    while len(local) < 5:
        ended += next(loop)
    assert len(central) == 5
    for ours, theirs in zip(central, local):
        for one, other in zip(ours, theirs):
            for name in set(Chunk._fields) - {"weights_version", "core_state", "is_replayed", "importance"}:
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert [e[:4] for e in episodes] == [e[:4] for e in ended][: len(episodes)] and len(episodes) >= 8


def test_every_step_has_the_version_of_the_weights_that_decided_it():
    unrolls = []
    play(make_lanes(unrolls), 2 * T + 1)
    assert unrolls[0][0].weights_version.tolist() == [1, 2, 3, 4, 5, 6]
    assert unrolls[1][2].weights_version.tolist() == [7, 8, 9, 10, 11, 12]


def test_a_request_that_is_repeated_is_answered_alike_and_counted_once():
    once, twice = [], []
    play(make_lanes(once), 3 * T + 1)
    lanes, environment = make_lanes(twice), make_environment()
    step = environment.reset(0)
    for number in range(3 * T + 1):
        decision = lanes.step(LANE, number, step)
        again = lanes.step(LANE, number, step)
        assert again is decision
        environment.send(decision.action)
        step = environment.receive()
    for ours, theirs in zip(once, twice, strict=True):
        for one, other in zip(ours, theirs):
            np.testing.assert_array_equal(one.r_t, other.r_t)
            np.testing.assert_array_equal(one.a_tm1, other.a_tm1)


@pytest.mark.parametrize("wrong", [-1, 3, 6])  # 5 is in turn
def test_a_request_out_of_turn_is_refused_and_changes_nothing(wrong):
    unrolls = []
    lanes = make_lanes(unrolls)
    environment, step, number = play(lanes, 5)
    with pytest.raises(Refused, match=rf"request {wrong}; expected 5"):
        lanes.step(LANE, wrong, step)
    play(lanes, 2 * T, environment=environment, step=step, number=number)
    expected = []
    play(make_lanes(expected), 5 + 2 * T)
    np.testing.assert_array_equal(unrolls[-1][0].observation, expected[-1][0].observation)


def test_a_new_life_never_meets_the_old_one_in_an_unroll():
    unrolls = []
    lanes = make_lanes(unrolls)
    play(lanes, T + 3)  # in the midst of its second unroll
    environment, step, number = play(lanes, T + 1, lane=LANE._replace(life=2))
    assert lanes.num_dropped_unrolls == 3
    assert [unroll[0].origin[3] for unroll in unrolls] == [1, 2]
    first_frames = np.unique(unrolls[1][0].observation[:2])
    assert first_frames.tolist() == [0], "older frames than the life's first are zero"
    with pytest.raises(Refused, match="life 2 of it has begun; expected that or a later one"):
        lanes.step(LANE, T + 3, step)
    play(lanes, 1, lane=LANE._replace(life=2), environment=environment, step=step, number=number)


def test_after_a_restart_of_the_server_a_lane_goes_on_as_if_an_episode_began():
    unrolls = []
    environment, step, number = play(make_lanes([]), 2)
    assert not step.is_first.any()
    episodes = []
    lanes = make_lanes(unrolls, on_episodes=episodes.extend)
    play(lanes, T + 1, environment=environment, step=step, number=number)
    assert lanes.num_dropped_unrolls == 3, "which were under way when it was killed"
    # The first environment's episode of three steps was in its midst, and the second's of five: no scores of parts.
    assert {e.environment for e in episodes} == set()
    assert unrolls[0][0].is_first[0] and not unrolls[0][0].observation[:2].any() and unrolls[0][0].observation[2].any()
    assert unrolls[0][0].previous_reward == 0.0


def test_another_number_of_environments_is_refused():
    lanes = make_lanes([])
    _, step, number = play(lanes, 2)
    fewer = step._replace(**{name: getattr(step, name)[:2] for name in step._fields})
    with pytest.raises(Refused, match="2 environments; expected 3 as before"):
        lanes.step(LANE, number, fewer)


@pytest.mark.parametrize(
    "field, value, words",
    [("observation", np.zeros((3, 4), np.uint8), r"observation is uint8\[3, 4\]; expected uint8\[3, 2\]"),
     ("observation", np.zeros((3, 2), np.float64), r"observation is float64\[3, 2\]; expected uint8\[3, 2\]"),
     ("is_first", np.zeros(3, np.uint8), r"is_first is uint8\[3\]; expected bool\[3\]")],
)  # fmt: skip
def test_a_client_with_other_spaces_is_refused(field, value, words):
    lanes = make_lanes([])
    environment, step, number = play(lanes, 2)
    assert step.observation.dtype == np.uint8
    with pytest.raises(Refused, match=words):
        lanes.step(LANE, number, step._replace(**{field: value}))
    play(lanes, 1, environment=environment, step=step, number=number)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_that_is_not_finite_is_refused(value):
    lanes = make_lanes([])
    _, step, number = play(lanes, 2)
    with pytest.raises(Refused, match="reward holds a value that is not finite"):
        lanes.step(LANE, number, step._replace(reward=np.array([0.0, value, 0.0], np.float32)))


def test_of_two_requests_at_once_a_repetition_is_answered_and_another_refused():
    """The line broke while the first was under way, say."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Network):
        def __call__(self, *inputs):
            entered.set()
            assert go_on.wait(10)
            return super().__call__(*inputs)

    lanes, step = make_lanes([], network=Slow()), make_environment().reset(0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(lanes.step, LANE, 0, step)
        assert entered.wait(10)
        with pytest.raises(Refused, match="request 1 while 0 is under way"):
            lanes.step(LANE, 1, step)
        again = pool.submit(lanes.step, LANE, 0, step)
        go_on.set()
        assert first.result(10) is again.result(10)


def test_a_lane_whose_decision_failed_begins_anew():
    class Failing(Network):
        def __call__(self, *inputs):
            if self.num_calls == T + 2:
                self.num_calls += 1
                raise FloatingPointError("once")
            return super().__call__(*inputs)

    unrolls = []
    lanes = make_lanes(unrolls, network=Failing())
    environment, step, number = play(lanes, T + 2)
    with pytest.raises(FloatingPointError):
        lanes.step(LANE, number, step)
    assert lanes.num_dropped_unrolls == 3
    play(lanes, T + 1, environment=environment, step=step, number=number)
    assert len(unrolls) == 2 and unrolls[1][0].is_first[0]
    assert [unroll[0].origin[4] for unroll in unrolls] == [0, 1], "else it would be taken for one that came twice"


def test_of_two_copies_of_a_request_each_is_answered_whichever_comes_first():
    lanes, environment = make_lanes([]), make_environment()
    step = environment.reset(0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number in range(200):
            barrier = threading.Barrier(2)

            def ask_with_the_other(number=number, step=step, barrier=barrier):
                barrier.wait(10)
                return lanes.step(LANE, number, step)

            one, other = (pool.submit(ask_with_the_other) for _ in range(2))
            assert one.result(10) is other.result(10)
            environment.send(one.result().action)
            step = environment.receive()


def test_a_copy_of_a_request_that_comes_after_the_next_gets_no_decision_of_another_step():
    lanes = make_lanes([])
    _, step, number = play(lanes, 3)
    (kept,) = lanes._lanes.values()
    kept.busy.acquire()  # the next request overtakes the copy, which waits here
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        copy = pool.submit(lanes.step, LANE, number - 1, step)
        time.sleep(0.3)
        kept.number = number
        kept.busy.release()
        with pytest.raises(Refused, match="a later request of it has begun"):
            copy.result(10)


def test_environments_belong_to_one_lane():
    """Another lane of the same actor may not have them; a later life of the actor may divide them otherwise."""
    unrolls = []
    lanes = make_lanes(unrolls)
    _, step, _ = play(lanes, T + 3)
    with pytest.raises(Refused, match="environments 10 to 12 are another lane's"):
        lanes.step(LANE._replace(first_environment=12), 0, step)
    play(lanes, 1, lane=LANE._replace(first_environment=13))
    play(lanes, 1, lane=LANE._replace(actor=3, first_environment=11))
    play(lanes, 1, lane=LANE._replace(first_environment=9, life=2))
    assert lanes.num_dropped_unrolls == 3, "those of environments 10 to 12; 13 to 15 had none"
    with pytest.raises(Refused, match="environments 9 to 11 are another lane's"):
        lanes.step(LANE, T + 3, step)


def test_a_life_is_later_than_those_before_and_names_its_launch():
    lives = [new_life(0), time.sleep(0.002) or new_life(0), new_life(1)]
    assert lives == sorted(set(lives)) and lives[-1] < 2**62
    assert [LaneId(0, 0, life).incarnation for life in lives] == [0, 0, 1]


def test_one_lane_steps_while_the_other_is_decided_for_even_where_send_takes_the_whole_step():
    """Catch and whatever has no threads of its own: requests of both lanes are under way at the same time."""
    spec, events = make_environment().spec, []

    class Elsewhere:
        def __init__(self, name):
            self._name, self._policy = name, policies.FeedForwardPolicy(Network(), spec, 3, seed=1)

        def __call__(self, number, *step):
            events.append((self._name, "asks"))
            self._policy.observe(Step(*step))
            return self

        def wait(self, seconds):
            return True

        def result(self):
            events.append((self._name, "is answered"))
            decision = self._policy.decide()
            return decision.action, decision.version

    class Sync(scripted.Scripted):
        def send(self, action):
            events.append((self.name, "steps"))
            super().send(action)

    loops = []
    for name in "ab":
        environment = Sync(SCRIPTS, shape=(2,), num_stacked=3)
        environment.name = name
        actor = actors.Actor(environment, Client(Elsewhere(name)), NoWriter(), lambda: 0, unroll_length=4)
        loops.append(actor.steps(0))
    for _, _ in zip(range(40), actors.interleave(loops)):
        pass
    asked = [i for i, event in enumerate(events) if event == ("a", "asks")]
    answered = [i for i, event in enumerate(events) if event == ("a", "is answered")]
    meanwhile = [("b", "steps") in events[i:j] for i, j in zip(asked[1:], answered[1:])]
    assert len(meanwhile) > 10 and all(meanwhile), events[:20]


def test_many_clients_get_their_own_answers_in_order():
    """16 lanes in threads of their own through one gatherer; every unroll is what its lane alone would have written."""
    together, lock = {}, threading.Lock()

    def keep(unroll):
        with lock:
            together.setdefault(int(unroll[0].origin[1]), []).append(unroll)

    def network(window, is_first):
        return Network()(window, is_first)[:2]

    spec = make_environment().spec
    gatherer = Gatherer(network, max_environments=24, timeout_seconds=0.005)

    def make_writer(lane, n):
        return chunks.UnrollWriter(spec, n, unroll_length=T, origin=Origin(0, lane.actor, 0, 1, 0), sink=keep)

    lanes = Lanes(lambda lane, n: policies.FeedForwardPolicy(gatherer, spec, n, seed=lane.actor), make_writer, unroll_length=T, spec=spec)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda i: play(lanes, 10 * T + 1, lane=LaneId(i, 0, 1)), range(16)))
    assert gatherer.log.num_environments == 16 * 3 * (10 * T + 1) and gatherer.log.num_batches < 16 * (10 * T + 1) / 2
    for actor in range(16):
        alone = []
        single = Lanes(
            lambda lane, n: policies.FeedForwardPolicy(network, spec, n, seed=lane.actor),
            lambda lane, n: chunks.UnrollWriter(spec, n, unroll_length=T, origin=Origin(0, lane.actor, 0, 1, 0), sink=alone.append),
            unroll_length=T, spec=spec,
        )  # fmt: skip
        play(single, 10 * T + 1, lane=LaneId(actor, 0, 1))
        for ours, theirs in zip(together[actor], alone, strict=True):
            for one, other in zip(ours, theirs):
                np.testing.assert_array_equal(one.a_tm1, other.a_tm1)
                np.testing.assert_array_equal(one.observation, other.observation)
