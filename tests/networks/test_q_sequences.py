"""Action values of sequences: stacks from a time on, burn-in, and the state that both networks begin with."""

import numpy as np
import pytest
import tensorflow as tf

from impala.agents import r2d2
from impala.config import build
from impala.networks import frames
from impala.networks.q_sequences import from_time
from impala.types import ArraySpec, Discrete, EnvironmentSpec

BURN_IN, T, B, K = 4, 5, 3, 3
SPEC = EnvironmentSpec("vectors", ArraySpec((4,), np.float32), Discrete(3))


@pytest.mark.parametrize("time", [1, 2, 5])
def test_stacks_from_a_time_on_are_those_of_the_whole(time):
    random = np.random.default_rng(0)
    for _ in range(10):
        n = 8
        observation = tf.constant(random.integers(1, 255, (n + K - 1, B, 2, 2)), tf.uint8)
        is_first = tf.constant(random.random((n, B)) < 0.3)
        goes_on = tf.cast(~is_first[0], tf.uint8)[None, :, None, None]  # older planes than the episode come as zeros
        older = observation[: K - 1] * goes_on
        observation = tf.concat([older, observation[K - 1 :]], axis=0)
        whole = frames.stack_planes(observation, is_first, K)
        late = from_time(observation, is_first, time, K)
        np.testing.assert_array_equal(frames.stack_planes(late, is_first[time:], K), whole[time:])


def make(burn_in, core="lstm"):
    config = build({
        "program": "seed", "environment": {"name": "catch"}, "network": {"torso": "mlp", "hidden_sizes": [8], "core": core, "core_size": 6},
        "agent": {"name": "r2d2", "burn_in": burn_in}, "loss": {"reward_clipping": "abs_one"},
    })  # fmt: skip
    return r2d2.make_network(config, SPEC)


def inputs(seed=0):
    random = np.random.default_rng(seed)
    n = BURN_IN + T + 1
    is_first = random.random((n, B)) < 0.15
    return [
        tf.constant(random.normal(size=(n, B, 4)), tf.float32), tf.constant(is_first),
        tf.constant(random.integers(3, size=(n, B)), tf.int32), tf.constant(random.normal(size=(n, B)), tf.float32),
        tf.constant(random.normal(size=(B, 2, 6)), tf.float32),
    ]  # fmt: skip


def test_values_behind_burn_in_are_those_of_the_whole_sequence():
    network = make(BURN_IN)
    for variable in network.target_variables:
        variable.assign(variable + 0.1)
    outputs = network.on_sequences(*inputs())
    np.testing.assert_allclose(outputs.q, network._online(*inputs()).q[BURN_IN:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs.target_q, network._target(*inputs()).q[BURN_IN:], rtol=1e-5, atol=1e-6)
    assert outputs.q.shape == (T + 1, B, 3) and not np.allclose(outputs.q, outputs.target_q)


def test_one_step_at_a_time_as_an_actor_computes_it():
    network = make(BURN_IN)
    observation, is_first, action, reward, state = inputs(1)
    values = []
    for t in range(BURN_IN + T + 1):
        one = network(observation[t : t + 1], is_first[t : t + 1], action[t : t + 1], reward[t : t + 1], state)
        state = one.core_state
        values.append(network.numbers(one)[0])
    np.testing.assert_allclose(network.on_sequences(*inputs(1)).q, tf.stack(values)[BURN_IN:], rtol=1e-4, atol=1e-5)


def test_burn_in_carries_no_gradient_and_the_rest_does():
    network = make(BURN_IN)
    observation, _, *memory = inputs(2)
    is_first = tf.zeros([BURN_IN + T + 1, B], tf.bool)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(observation)
        tape.watch(memory[-1])
        total = tf.reduce_sum(tf.square(network.on_sequences(observation, is_first, *memory).q))
    gradient = tape.gradient(total, observation).numpy()
    assert (gradient[:BURN_IN] == 0).all() and (gradient[BURN_IN:] != 0).any(axis=(1, 2)).all()
    of_state = tape.gradient(total, memory[-1])
    assert of_state is None or not of_state.numpy().any()
    assert all(tape.gradient(total, v) is None for v in network.target_variables)


def test_burn_in_changes_what_is_learned_and_without_a_core_it_does_not():
    observation, is_first, *memory = inputs(3)
    is_first = tf.zeros_like(is_first)
    other = tf.concat([observation[:BURN_IN] + 1.0, observation[BURN_IN:]], axis=0)
    network, plain = make(BURN_IN), make(BURN_IN, core="none")
    assert not np.allclose(network.on_sequences(observation, is_first, *memory).q, network.on_sequences(other, is_first, *memory).q)
    np.testing.assert_array_equal(plain.on_sequences(observation, is_first).q, plain.on_sequences(other, is_first).q)
    assert plain.core_state_shape is None and network.core_state_shape == (2, 6)
