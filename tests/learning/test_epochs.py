"""PPO's batches: every transition once a pass, with the numbers of the time when it was played."""

import numpy as np
import pytest

from impala import config as config_lib
from impala.agents import ppo
from impala.environments import catch
from impala.learning import epochs
from impala.learning.epochs import normalised
from impala.learning.server import Verdict
from impala.nodes import checking, working

BASE = {
    "program": "dppo", "environment.name": "catch", "network.torso": "mlp", "network.hidden_sizes": [16],
    "learner.unroll_length": 12, "learner.batch_size": 6, "actor.num_environments": 6, "actor.num_lanes": 2,
    "agent.num_minibatches": 3, "agent.num_epochs": 2,
}  # fmt: skip
FRAMES = {"environment.name": "atari:pong", "network.torso": "shallow", "learner.unroll_length": 6, "actor.num_environments": 2,
          "learner.batch_size": 2, "actor.num_lanes": 1, "agent.num_minibatches": 4}  # fmt: skip


@pytest.fixture
def play():
    workers = []

    def make(**overrides):
        made = config_lib.build({}, BASE | {k.replace("__", "."): v for k, v in overrides.items()})
        worker = working.Worker(made, checking.check(made), 0)
        workers.append(worker)
        worker.assign(0, 0, [v.numpy() for v in worker.variables], ppo.make_statistics(made, checking.check(made)).initial())
        return made, worker

    yield make
    for worker in workers:
        worker.close()


def unroll_of(worker):
    """Plays one iteration; returns the unrolls and an iterator of its batches."""
    seen, batches = [], worker._batches
    worker._batches = type("Spy", (), {"__call__": lambda self, unroll, **how: (seen.append(unroll), batches(unroll, **how))[1], "state": None, "take": batches.take, "num_batches": batches.num_batches})()
    while (first := worker.batch()) is None:
        worker.act()
    worker._batches = batches

    def rest():
        yield first
        while (batch := worker.batch()) is not None:
            yield batch

    return seen[0], rest()


def test_each_pass_has_every_transition_once_and_in_another_order(play):
    _, worker = play()
    unroll, batches = unroll_of(worker)
    batches = list(batches)
    assert len(batches) == 2 * 3 and all(batch.a_tm1.shape == (1, 24) for batch in batches)
    expected = sorted(zip(*(np.reshape(x, -1).tolist() for x in (unroll.a_tm1, unroll.v_behaviour_tm1, 1.0 - unroll.is_first[1:].numpy()))))
    orders = []
    for batches_of_pass in (batches[:3], batches[3:]):
        fields = [np.concatenate([getattr(batch, name)[0] for batch in batches_of_pass]).tolist() for name in ("a_tm1", "v_behaviour_tm1", "valid_t")]
        assert sorted(zip(*fields)) == expected
        orders.append(fields[1])
    assert orders[0] != orders[1]
    assert 0 < sum(valid for *_, valid in expected) < len(expected), "some lead across a reset"
    fresh = [(value, pass_) for pass_ in (0, 1) for batch in batches[3 * pass_ : 3 * pass_ + 3]
             for value, is_replayed in zip(batch.v_behaviour_tm1[0].tolist(), batch.is_replayed) if not is_replayed]  # fmt: skip
    assert sorted(value for value, _ in fresh) == sorted(orders[0]), "each is counted once"
    assert [pass_ for _, pass_ in fresh] == 36 * [0] + 36 * [1], "half of them in each pass"
    assert all(batch.trains.tolist() == [1, 1] for batch in batches)


def test_a_network_says_the_same_of_a_transition_alone_as_within_its_unroll(play):
    """With four stacked frames, some of which belong to the episode before."""
    _, worker = play(**{k.replace(".", "__"): v for k, v in FRAMES.items()})
    unroll, _ = unroll_of(worker)
    random = np.random.default_rng(0)
    is_first = np.array(unroll.is_first)
    is_first[3, 1] = is_first[2, 0] = True  # a frame of Pong is never as old as an episode here
    observation = random.integers(0, 255, size=unroll.observation.shape).astype(np.uint8)
    outputs = worker.network(observation, is_first)
    stacks = epochs._stacks(observation, is_first, 4)
    for step in range(7):
        for lane in range(2):
            alone = worker.network(stacks[:, step, lane][:, None], is_first[None, step, lane][:, None])
            np.testing.assert_allclose(alone.logits[0, 0], outputs.logits[step, lane], atol=1e-5)
            np.testing.assert_allclose(alone.value[0, 0], outputs.value[step, lane], atol=1e-5)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_advantages_are_gae_by_the_values_of_the_time_of_playing(play, core):
    """A_s = Σ (γλ)^k δ_{s+k} to the episode's end, by hand; the network's later values do not matter."""
    made, worker = play(network__core=core, network__core_size=8, agent__normalise_advantages="none", learner__unroll_length=20, agent__num_minibatches=1)
    unroll, batches = unroll_of(worker)
    first = next(batches)
    from impala.learning.gradients import network_inputs

    values = worker.network(*network_inputs(unroll)).value.numpy()
    worker.assign(1, 0, [v.numpy() + 0.3 for v in worker.variables], worker._batches.state)
    second = next(batches)
    gamma, lambda_ = made.loss.discount, made.loss.lambda_
    is_first, reward, discount = (np.asarray(x) for x in (unroll.is_first, unroll.r_t, unroll.discount_t))
    expected, carried = np.zeros((20, 6)), np.zeros(6)
    for t in reversed(range(20)):
        delta = reward[t] + gamma * discount[t] * values[t + 1] - values[t]
        carried = np.where(is_first[t + 1], 0.0, delta + gamma * lambda_ * discount[t] * carried)
        expected[t] = carried
    for batch in (first, second):
        if core == "none":
            assert sorted(batch.advantage_tm1[0].tolist()) == pytest.approx(sorted(expected.reshape(-1)), abs=1e-5)
        else:
            order = [int(np.abs(batch.advantage_tm1[:, i][:, None] - expected).sum(axis=0).argmin()) for i in range(6)]
            assert sorted(order) == list(range(6))
            np.testing.assert_allclose(batch.advantage_tm1, expected[:, order], atol=1e-5)
            np.testing.assert_allclose(batch.target_tm1, (expected + values[:-1] * 1.0)[:, order], atol=1e-5)


def test_with_a_core_whole_unrolls_go_together_with_their_first_core_state(play):
    _, worker = play(network__core="lstm", network__core_size=8)
    unroll_of(worker)
    list(iter(lambda: worker.batch(), None))
    unroll, batches = unroll_of(worker)
    lanes = []
    for batch in list(batches)[:3]:
        assert batch.observation.shape[:2] == (13, 2) and batch.a_tm1.shape == (12, 2) and batch.core_state.shape == (2, 2, 8)
        for column in range(2):
            lane = int(np.flatnonzero((np.asarray(unroll.origin) == batch.origin[column]).all(axis=1)).item())
            np.testing.assert_array_equal(batch.core_state[column], unroll.core_state[lane])
            np.testing.assert_array_equal(batch.observation[:, column], unroll.observation[:, lane])
            lanes.append(lane)
    assert sorted(lanes) == list(range(6)) and np.abs(unroll.core_state).sum() > 0


def test_value_epochs_train_values_alone_and_the_kl_is_measured_in_between(play):
    made, worker = play(loss__correction="penalty", agent__num_epochs=2, agent__num_value_epochs=1, agent__num_minibatches=2)
    unroll, batches = unroll_of(worker)
    seen = []
    for index, batch in enumerate(batches):
        seen.append((batch.trains.tolist(), worker.increments()[:2].tolist()))
        worker.assign(index + 1, 0, [v.numpy() + 0.02 * (index < 4) for v in worker.variables], worker._batches.state)
    assert worker.increments()[1] == 0, "it is not measured again after them"
    assert [trains for trains, _ in seen] == 4 * [[1, 0]] + 2 * [[0, 1]]
    assert [kl[1] > 0 for _, kl in seen] == [False, False, False, False, True, False]
    logits = worker.network(unroll.observation, unroll.is_first).logits[:-1]
    distribution = worker.network.distribution
    valid = 1.0 - np.asarray(unroll.is_first)[1:]
    expected = np.sum(distribution.kl(distribution.normalise(unroll.logits_tm1), distribution.normalise(logits)).numpy() * valid)
    # The divergence of two near policies is a small difference of float32 numbers, rounded to about 1e-7.
    assert seen[4][1] == pytest.approx([expected, valid.sum()], rel=1e-4, abs=1e-6) and expected > 2e-5


def test_a_worker_that_came_late_leaves_its_iteration_when_the_others_end_theirs(play):
    """Two passes of three batches: all iterations begin at updates 0, 6, 12, …; the late one joins at update 4."""
    _, worker = play()
    arrays, state = [v.numpy() for v in worker.variables], worker._batches.state

    def batches_until_it_plays(version):
        num_batches = 0
        worker.assign(version, 0, arrays, state)
        while worker.batch() is not None:
            num_batches += 1
            worker.assign(version + num_batches, 0, arrays, state)
        return num_batches

    worker.assign(4, 0, arrays, state)
    for begins, expected in ((4, 1), (6, 5), (12, 5)):  # besides the first one
        while worker.batch() is None:
            worker.act()
        assert batches_until_it_plays(begins + 1) == expected


@pytest.mark.parametrize("joins_at, trains, adapts", [(0, 3 * [1] + 6 * [0], [3]), (2, [1] + 6 * [0], []), (3, 6 * [0], []), (4, 5 * [0], [])])
def test_a_worker_that_came_late_trains_what_the_others_train_and_adapts_no_beta(play, joins_at, trains, adapts):
    """Three passes for the policy and six for the values; the others send their KL with the first of the latter.

    The late one has played with a policy that had made some of the updates already.
    """
    _, worker = play(loss__correction="penalty", agent__num_epochs=3, agent__num_value_epochs=6, agent__num_minibatches=1)
    arrays, state = [v.numpy() for v in worker.variables], worker._batches.state
    worker.assign(joins_at, 0, arrays, state)
    while (batch := worker.batch()) is None:
        worker.act()
    seen = []
    while batch is not None:
        seen.append((batch.trains.tolist(), worker.increments()[1] > 0))
        worker.assign(joins_at + len(seen), 0, arrays, state)
        batch = worker.batch()
    assert [of_policy for (of_policy, _), _ in seen] == trains
    assert [index for index, (_, has_kl) in enumerate(seen) if has_kl] == adapts
    assert not worker.increments().any()


@pytest.mark.parametrize("joins_at", [0, 1, 2])
def test_without_passes_for_the_values_who_came_late_has_no_say_in_the_next_beta_and_one_in_that_behind_it(play, joins_at):
    """Iterations end at the updates 3 and 6, and their KL goes with the batch behind them."""
    _, worker = play(loss__correction="penalty", agent__num_epochs=3, agent__num_minibatches=1)
    arrays, state = [v.numpy() for v in worker.variables], worker._batches.state
    adapts = []
    for version in range(joins_at, 8):
        worker.assign(version, 0, [array + 0.01 * (version % 2) for array in arrays], state)
        while worker.batch() is None:
            worker.act()
        adapts += [version] * bool(worker.increments()[1])
    assert adapts == ([3, 6] if joins_at == 0 else [6])


def test_a_worker_that_a_round_went_on_without_leaves_its_batch_out_and_measures_no_kl_too_late(play):
    _, worker = play(loss__correction="penalty", agent__num_epochs=2, agent__num_minibatches=2)
    arrays, state = [v.numpy() for v in worker.variables], worker._batches.state
    while worker.batch() is None:
        worker.act()
    for version, goes_on in ((1, True), (3, True), (6, False)):  # iterations end at 4 and 8
        worker.assign(version, 0, arrays, state)
        assert (worker.batch() is not None) == goes_on
    assert not worker.increments().any()


def test_a_chunk_that_is_not_finite_is_never_trained_on(play):
    _, worker = play(environment__name="tests.learning.test_epochs:Infinite")
    with pytest.raises(ValueError, match="observation holds a value that is not finite"):
        for _ in range(300):
            if worker.batch() is None:
                worker.act()


class Infinite(catch.Catch):
    """Shows infinity once it has been played for a while."""

    def receive(self):
        step = super().receive()
        self._num_steps = getattr(self, "_num_steps", 0) + 1
        return step._replace(observation=step.observation + (np.inf if self._num_steps > 30 else 0.0))


def test_rewards_are_divided_by_the_deviation_of_discounted_returns_so_far(play):
    made, worker = play(agent__scale_rewards=True, agent__normalise_advantages="none", agent__num_epochs=1, agent__num_minibatches=1, loss__lambda=0.0, loss__discount=0.9)
    statistics, sums, everything = ppo.make_statistics(made, None), np.zeros(6), []
    state = statistics.initial()
    for _ in range(3):
        unroll, batches = unroll_of(worker)
        batch = next(batches)
        is_first, reward, discount = (np.asarray(x) for x in (unroll.is_first, unroll.r_t, unroll.discount_t))
        values, before = worker.network(unroll.observation, unroll.is_first).value.numpy(), len(everything)
        for t in range(12):
            sums = np.where(is_first[t + 1], 0.0, 0.9 * sums + reward[t])
            everything += sums[~is_first[t + 1]].tolist()
        deviation = np.std(everything[:before] or everything)  # nothing is known before the first iteration
        one_step = (np.clip(reward / deviation, -10, 10) + 0.9 * discount * values[1:] - values[:-1]) * ~is_first[1:]
        assert sorted(batch.advantage_tm1[0].tolist()) == pytest.approx(sorted(one_step.reshape(-1)), abs=1e-4)
        state = statistics.merge(state, worker.increments())
        worker.assign(1, 0, [v.numpy() for v in worker.variables], state)
        assert list(batches) == []
    assert statistics.return_deviation(state) == pytest.approx(np.std(everything), rel=1e-6)


def test_what_went_with_an_accepted_gradient_whose_answer_was_lost_does_not_go_again(play):
    _, worker = play(agent__normalise_observations=True)
    _, batches = unroll_of(worker)
    next(batches)
    assert worker.increments().any()
    worker.answered(Verdict.REPEATED)
    next(batches)
    assert not worker.increments().any()


def test_what_a_refused_gradient_carried_goes_with_the_next(play):
    _, worker = play(agent__normalise_observations=True)
    _, batches = unroll_of(worker)
    next(batches)
    carried = worker.increments()
    worker.answered(Verdict.STALE)
    next(batches)
    np.testing.assert_array_equal(worker.increments(), carried)
    worker.answered(Verdict.ACCEPTED)
    next(batches)
    assert carried.any() and not worker.increments().any()


def test_normalised_advantages_have_mean_0_and_deviation_1_where_they_are_valid():
    random = np.random.default_rng(0)
    advantages, valid = random.normal(3.0, 7.0, size=(5, 8)).astype(np.float32), (random.random((5, 8)) < 0.7).astype(np.float32)
    ours = normalised(advantages, valid)
    kept = ours[valid > 0]
    assert kept.mean() == pytest.approx(0.0, abs=1e-6) and kept.std() == pytest.approx(1.0, abs=1e-5) and not ours[valid == 0].any()
    assert not normalised(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32)).any()


def test_what_it_is_traced_with_leaves_no_mark(play):
    made, worker = play(agent__normalise_observations=True)
    assert not worker.increments().any()
    unroll, batches = unroll_of(worker)
    next(batches)
    count, *sums = worker.increments()[2:]
    flat = np.asarray(unroll.observation)[:12].reshape(72, -1)
    np.testing.assert_allclose(sums, np.concatenate([flat.sum(axis=0), np.square(flat).sum(axis=0)]), rtol=1e-6)
    assert count == 72


def test_a_stack_may_be_deeper_than_an_unroll_is_long():
    """Planes are numbered; the episode of the last observation begins with it."""
    planes, is_first = np.arange(1, 11)[:, None, None], np.array([[False], [False], [True]])
    stacks = epochs._stacks(planes, is_first, num_stacked=8)[..., 0, 0]
    np.testing.assert_array_equal(stacks[:, 0], np.arange(1, 9))
    np.testing.assert_array_equal(stacks[:, 1], np.arange(2, 10))
    np.testing.assert_array_equal(stacks[:, 2], [0, 0, 0, 0, 0, 0, 0, 10])
