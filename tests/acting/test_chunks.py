"""Streams of chunks from the real actor, policy and writer over an environment that was written down beforehand."""

import numpy as np
import pytest
import tensorflow as tf

from impala import corrections, networks
from impala.acting import actors, behaviours, chunks, policies
from impala.learning import gradients
from impala.learning.parameters import assign_weights
from impala.losses import actor_critic
from impala.networks import frames
from impala.nodes import parts
from impala.replay import datasets
from impala.types import Chunk, Continuous, Discrete, MultiDiscrete, Origin, Weights
from tests.acting import scripted

ORIGIN = Origin(run=9, actor=3, environment=10, incarnation=2, seq=0)


class Recorded:
    """An environment that keeps every step it gave."""

    def __init__(self, environment):
        self._environment = environment
        self.spec, self.num_environments, self.send = environment.spec, environment.num_environments, environment.send
        self.steps = []

    def reset(self, seed):
        self.steps.append(self._environment.reset(seed))
        return self.steps[-1]

    def receive(self):
        self.steps.append(self._environment.receive())
        return self.steps[-1]

    def column(self, field):
        return np.stack([getattr(step, field) for step in self.steps])


class Stream:
    """`num_unrolls` unrolls of an actor: `unrolls[u][n]` is the chunk of environment n."""

    def __init__(self, environment, *, unroll_length, num_unrolls, logits=None, core_state_shape=None):
        self.environment = Recorded(environment)
        self.logits = logits or scripted.Recording(environment.spec.actions.num_actions)
        n, self.unrolls, self.copies = environment.num_environments, [], []
        behaviour = behaviours.sampled(environment.spec.actions, core_state_shape=core_state_shape)
        actor = actors.Actor(
            self.environment,
            parts.make_policy(self.logits, environment.spec, n, seed=0, behaviour=behaviour),
            chunks.UnrollWriter(
                environment.spec, n, unroll_length=unroll_length, origin=ORIGIN, sink=self._take,
                behaviour=behaviour,
            ),
            lambda: environment.num_sent,  # the version tells when it was read
            unroll_length=unroll_length,
            origin=ORIGIN,
        )
        self.episodes, self.num_yields, loop = [], 0, actor.steps(0)
        while len(self.unrolls) < num_unrolls:
            self.episodes += next(loop)
            self.num_yields += 1
        self.num_stacked, self.unroll_length = environment.spec.num_stacked, unroll_length

    def _take(self, unroll):
        self.unrolls.append(unroll)
        self.copies.append([Chunk(*map(np.copy, chunk[:-1])) for chunk in unroll])

    def of(self, n, field):
        """The field of environment n's chunks, one after the other [unrolls, …]."""
        return np.stack([getattr(unroll[n], field) for unroll in self.unrolls])


GOLDEN = [(3, "terminated"), (2, "truncated"), (6, "both")]


def golden(num_unrolls=3):
    return Stream(scripted.Scripted([GOLDEN], num_stacked=3, shape=(1, 1)), unroll_length=4, num_unrolls=num_unrolls)


def test_golden_stream():
    """Three unrolls of T = 4 with k = 3, by hand. A pixel is 2 + 20 · episode + time; steps go

    0  1  2  3 | 4  5  6 | 7  8  9 10 11 12 13 | 14
    2  3  4  5 |22 23 24 |42 43 44 45 46 47 48 | 62
             T        tr                    T+tr
    """
    stream = golden(4)
    observation = stream.of(0, "observation")[..., 0, 0]
    assert observation.tolist() == [
        [0, 0, 2, 3, 4, 5, 22],
        [0, 0, 22, 23, 24, 42, 43],
        [0, 42, 43, 44, 45, 46, 47],
        [45, 46, 47, 48, 62, 63, 64],
    ]
    assert stream.of(0, "is_first").astype(int).tolist() == [
        [1, 0, 0, 0, 1],
        [1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0],
        [0, 0, 1, 0, 0],
    ]
    assert stream.of(0, "discount_t").tolist() == [
        [1, 1, 0, 1],  # terminated, then the transition that is none
        [1, 1, 1, 1],  # truncated
        [1, 1, 1, 1],
        [0, 1, 1, 1],  # terminated at the limit
    ]
    assert stream.of(0, "r_t").tolist() == [
        [1.5, 2.5, 3.5, 0.0],
        [11.5, 12.5, 0.0, 21.5],
        [22.5, 23.5, 24.5, 25.5],
        [26.5, 0.0, 31.5, 32.5],
    ]
    assert stream.of(0, "a_tm1").tolist() == [[1, 2, 0, 1], [2, 0, 1, 2], [0, 1, 2, 0], [1, 2, 0, 1]]
    # What led to observation[0]; both 0 where an episode starts there.
    assert stream.of(0, "previous_action").tolist() == [0, 0, 2, 0]
    assert stream.of(0, "previous_reward").tolist() == [0.0, 0.0, 21.5, 25.5]


def test_golden_episodes():
    stream = golden(4)
    assert [episode[:4] for episode in stream.episodes] == [
        (1.5 + 2.5 + 3.5, 3, 3, 10),
        (11.5 + 12.5, 2, 3, 10),
        (21.5 + 22.5 + 23.5 + 24.5 + 25.5 + 26.5, 6, 3, 10),
    ]
    assert [episode.weights_version for episode in stream.episodes] == [0, 4, 12]


def test_weights_are_fetched_once_an_unroll_before_its_first_action():
    stream = golden(4)
    assert stream.of(0, "weights_version").tolist() == [0, 4, 8, 12]  # actions sent so far
    assert stream.num_yields == 4 * (4 + 1) + 1


def test_an_episode_that_ends_with_the_unroll():
    """Its first observation is the next unroll's second, and the masked transition the next unroll's first."""
    stream = Stream(scripted.Scripted([[(4, "terminated")]], shape=(1, 1)), unroll_length=4, num_unrolls=2)
    assert stream.of(0, "is_first").astype(int).tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    assert stream.of(0, "discount_t").tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert stream.of(0, "r_t").tolist() == [[1.5, 2.5, 3.5, 4.5], [0.0, 11.5, 12.5, 13.5]]
    # The actor stands on the last observation, so what led there is real.
    assert stream.of(0, "previous_reward").tolist() == [0.0, 4.5]
    assert stream.of(0, "previous_action").tolist() == [0, 1]
    assert stream.of(0, "observation")[1, :, 0, 0].tolist() == [3, 4, 5, 6, 22, 23, 24, 25]


def test_a_lost_life_is_a_discount_of_zero_and_nothing_else():
    environment = scripted.Scripted([[(9, "terminated")]], shape=(1, 1), lives_lost={(0, 3)})
    stream = Stream(environment, unroll_length=4, num_unrolls=2)
    assert stream.of(0, "discount_t").tolist() == [[1, 1, 0, 1], [1, 1, 1, 1]]
    assert not stream.of(0, "is_first")[:, 1:].any()
    assert stream.of(0, "observation")[1, :, 0, 0].tolist() == [3, 4, 5, 6, 7, 8, 9, 10]  # the stack goes on
    assert stream.episodes == []


def random_scripts(seed, num_environments=4):
    random = np.random.default_rng(seed)
    kinds = ["terminated", "truncated", "both"]
    return [
        [(int(random.integers(1, 8)), kinds[random.integers(3)]) for _ in range(6)] for _ in range(num_environments)
    ]


@pytest.fixture(params=[(1, 1), (1, 4), (3, 4), (5, 1), (5, 2), (7, 4)], ids=lambda p: f"T{p[0]}k{p[1]}")
def stream(request):
    length, num_stacked = request.param
    environment = scripted.Scripted(random_scripts(length), num_stacked=num_stacked)
    return Stream(environment, unroll_length=length, num_unrolls=40 // length)


def test_consecutive_chunks_overlap_by_exactly_one_observation(stream):
    k = stream.num_stacked
    for n in range(4):
        observation, is_first = stream.of(n, "observation"), stream.of(n, "is_first")
        np.testing.assert_array_equal(observation[1:, k - 1], observation[:-1, -1])
        np.testing.assert_array_equal(is_first[1:, 0], is_first[:-1, -1])
        # Without the older planes and the overlap, one chunk after the other is what the environment gave.
        whole = np.concatenate([observation[0, k - 1 : k], *observation[:, k:]])
        np.testing.assert_array_equal(whole, stream.environment.column("observation")[:, n])
        whole = np.concatenate([is_first[0, :1], *is_first[:, 1:]])
        np.testing.assert_array_equal(whole, stream.environment.column("is_first")[:, n])
        assert is_first.sum() > 3


def test_every_transition_is_written_exactly_once(stream):
    for n in range(4):
        actions = np.stack(stream.environment._environment.actions)[:, n]
        np.testing.assert_array_equal(np.concatenate(stream.of(n, "a_tm1")), actions)
        for name, field in dict(r_t="reward", discount_t="discount").items():
            np.testing.assert_array_equal(np.concatenate(stream.of(n, name)), stream.environment.column(field)[1:, n])
        logits = np.stack(stream.logits.logits)[:, n]
        np.testing.assert_array_equal(np.concatenate(stream.of(n, "logits_tm1")), logits)
        values = np.stack(stream.logits.values)[:, n]
        np.testing.assert_array_equal(np.concatenate(stream.of(n, "v_behaviour_tm1")), values)
        assert not (stream.of(n, "discount_t")[stream.of(n, "is_first")[:, 1:]] == 0).any()


def test_the_learners_stacks_are_the_actors_bit_for_bit(stream):
    """At every step of every environment, and so across resets at every place of an unroll."""
    k, length = stream.num_stacked, stream.unroll_length
    compared = 0
    for u, unroll in enumerate(stream.unrolls):
        batch = datasets.stack(unroll)
        learners_ = frames.stack_planes(batch.observation, batch.is_first, k).numpy()
        for t in range(length):
            window, is_first = stream.logits.windows[u * length + t], stream.logits.is_first[u * length + t]
            actors_ = frames.stack_planes(tf.constant(window), tf.constant(is_first), k).numpy()[0]
            np.testing.assert_array_equal(learners_[t], actors_)
            np.testing.assert_array_equal(batch.is_first[t], is_first[0])
            compared += 1
    assert compared == length * len(stream.unrolls)


def test_no_stack_holds_two_episodes(stream):
    """A pixel tells its episode: 20 apart (`scripted.pixel`)."""
    for unroll in stream.unrolls:
        batch = datasets.stack(unroll)
        stacks = frames.stack_planes(batch.observation, batch.is_first, stream.num_stacked).numpy()[..., 0, 0, :]
        for n in range(4):
            value = stacks[:, n].astype(int) - 2 - 7 * n
            episode = np.where(stacks[:, n] == 0, value[:, -1:] // 20, value // 20)
            assert (episode == episode[:, -1:]).all()


def test_origin_counts_the_chunks_of_each_environment(stream):
    for n in range(4):
        for seq, origin in enumerate(stream.of(n, "origin")):
            assert Origin(*origin) == (9, 3, 10 + n, 2, seq, 0)


def test_episodes_are_those_of_the_scripts(stream):
    expected, num_steps = [], len(stream.environment.steps) - 1
    for n, scripts in enumerate(random_scripts(stream.unroll_length)):
        start = 0
        for episode in range(100):
            length, _ = scripts[episode % 6]
            if start + length > num_steps:
                break
            score = sum(scripted.reward(n, episode, t + 1) for t in range(length))
            expected.append((score, length, 3, 10 + n))
            start += length + 1
    assert len(expected) > 10
    assert sorted(episode[:4] for episode in stream.episodes) == sorted(expected)


def test_chunks_handed_on_are_not_touched_again(stream):
    for unroll, copies in zip(stream.unrolls, stream.copies):
        for chunk, copy in zip(unroll, copies):
            for one, other in zip(chunk[:-1], copy[:-1]):
                np.testing.assert_array_equal(one, other)


ACTIONS = {"discrete": Discrete(3), "multi_discrete": MultiDiscrete((2, 3)), "continuous": Continuous(2)}


class HalfShaded(scripted.Scripted):
    """The upper half of a frame is half as bright: less its mean it still tells which it is."""

    def _observe(self):
        frames = super()._observe()
        frames[:, : frames.shape[1] // 2] //= 2
        return frames


@pytest.mark.parametrize(
    "torso, core, kind",
    [
        *((torso, "none", "discrete") for torso in ("mlp", "minatar", "shallow", "resnet")),
        ("shallow", "lstm", "discrete"),  # what a core gets does not depend on the torso's kind
        ("mlp", "none", "continuous"), ("mlp", "lstm", "multi_discrete"),
        *(pytest.param(*names, marks=pytest.mark.soak) for names in (
            ("nature", "none", "discrete"), ("mlp", "lstm", "discrete"), ("mlp", "none", "multi_discrete"),
            ("mlp", "lstm", "continuous"),
        )),
    ],
)  # fmt: skip
def test_the_learner_computes_the_behaviour_logits_from_the_chunk(torso, core, kind):
    """With the weights that acted, every importance ratio is 1: nothing was shifted, stacked or masked askew."""
    observations = dict(mlp=dict(shape=(3, 2), num_stacked=1), minatar=dict(shape=(10, 10, 4), num_stacked=1))
    image = observations.get(torso, dict(shape=(84, 84), num_stacked=4))
    play = scripted.Scripted if torso in observations else HalfShaded
    environment = play(random_scripts(3, 3), actions=ACTIONS[kind], **image)
    clip = actor_critic.REWARD_CLIPPING["abs_one"]  # the rewards of the script reach into the hundreds
    network = networks.make(environment.spec, torso=torso, core=core, core_size=16, clip_reward=clip, seed=1)
    kwargs = dict(unroll_length=6, num_unrolls=5, core_state_shape=network.core_state_shape)
    # A head that tells observations apart, but is not certain: its largest parameter about 1.
    tried = Stream(play(random_scripts(3, 3), actions=ACTIONS[kind], **image), logits=policies.network_outputs(network), **kwargs)
    largest = max(np.abs(chunk.logits_tm1).max() for unroll in tried.unrolls for chunk in unroll)
    network._policy.kernel.assign(network._policy.kernel / largest)
    stream = Stream(environment, logits=policies.network_outputs(network), **kwargs)
    loss = actor_critic.actor_critic(corrections.vtrace, distribution=network.distribution)
    for unroll in stream.unrolls:
        batch = datasets.stack(unroll)
        assert np.ptp(batch.logits_tm1) > 0.1
        outputs = network(*gradients.network_inputs(batch))
        np.testing.assert_allclose(outputs.logits[:-1], batch.logits_tm1, rtol=0, atol=1e-5)
        _, metrics = loss(outputs, batch)
        assert float(metrics["log_rho_max"]) < 2e-5
        assert float(metrics["num_transitions"]) == 18 - np.sum(batch.is_first[1:])
    for variable in network.trainable_variables:  # and it would show if they were others
        variable.assign(1.05 * variable)
    _, metrics = loss(network(*gradients.network_inputs(batch)), batch)
    assert float(metrics["log_rho_max"]) > 1e-3
    if core != "none":  # the state of the unroll's start matters, and so do the last action and reward
        for name, value in dict(core_state=0.5, previous_action=1, previous_reward=0.5).items():
            other = batch._replace(**{name: getattr(batch, name) + value}, is_first=batch.is_first & False)
            assert np.abs(network(*gradients.network_inputs(other)).logits[0] - outputs.logits[0]).max() > 1e-4, name


def test_new_weights_act_from_the_next_unroll_on():
    environment = scripted.Scripted(random_scripts(3, 3), shape=(3, 2), num_stacked=1)
    network, newer = (networks.make(environment.spec, torso="mlp", seed=seed) for seed in (1, 2))
    versions, logits = [], policies.network_outputs(network)

    def sync():
        versions.append(len(versions))
        if versions[-1] == 1:
            assign_weights(network.trainable_variables, Weights(1, [v.numpy() for v in newer.trainable_variables]))
        return versions[-1]

    unrolls = []
    actor = actors.Actor(
        environment, policies.FeedForwardPolicy(logits, environment.spec, 3, seed=0),
        chunks.UnrollWriter(environment.spec, 3, unroll_length=4, origin=ORIGIN, sink=unrolls.append), sync,
        unroll_length=4,
    )  # fmt: skip
    loop = actor.steps(0)
    before = networks.make(environment.spec, torso="mlp", seed=1)
    while len(unrolls) < 2:
        next(loop)
    for unroll, acted in zip(unrolls, (before, newer)):
        batch = datasets.stack(unroll)
        outputs = acted(batch.observation, batch.is_first)
        np.testing.assert_allclose(outputs.logits[:-1], batch.logits_tm1, atol=1e-6)


@pytest.mark.parametrize("field", ["r_t", "logits_tm1", "previous_reward", "discount_t"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_finite_names_the_field(field, value):
    chunk = golden(1).copies[0][0]
    chunks.check_finite(chunk)
    bad = np.array(getattr(chunk, field))
    bad.flat[0] = value
    bad = chunk._replace(**{field: bad})
    with pytest.raises(ValueError, match=rf"chunk \(9, 3, 10, 2, 0, 0\): {field} holds a value that is not finite"):
        chunks.check_finite(bad)
