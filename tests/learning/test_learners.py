"""One update: traced once, clipped, and skipped whole when it is not finite."""

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, corrections, environments, networks
from impala import config as config_lib
from impala.acting import actors, chunks, policies
from impala.learning import appliers, gradients, learners, optimizers
from impala.learning.parameters import assign_weights
from impala.losses import actor_critic
from impala.replay import datasets
from impala.types import ArraySpec, Chunk, Discrete, EnvironmentSpec, Origin, Weights, chunk_spec, zeros

SPEC = EnvironmentSpec("x", ArraySpec((3,), np.float32), actions=Discrete(2))
T, B = 4, 2


class Line(tf.Module):
    """outputs = w · observation, summed over the last axis: gradients can be told by hand."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(np.array([1.0, 2.0, 3.0], np.float32))
        self.b = tf.Variable(0.5)

    def __call__(self, observation, is_first):
        return tf.reduce_sum(self.w * observation, axis=-1) + self.b


def sum_loss(outputs, batch):
    """∂/∂w is the sum of the observations, ∂/∂b their number; rewards scale both."""
    loss = tf.reduce_sum(batch.r_t * outputs[:-1])
    return loss, {"loss": loss, "mean": tf.reduce_mean(outputs)}


def batch_of(observation=1.0, reward=1.0):
    chunk = zeros(chunk_spec(SPEC, T))._replace(
        observation=np.full((T + 1, 3), observation, np.float32), r_t=np.full(T, reward, np.float32)
    )
    return datasets.stack([chunk] * B)


def make_learner(*, max_grad_norm=1e9, optimizer="rmsprop", loss=sum_loss, **kwargs):
    network = Line()
    made = optimizers.make(optimizer, network.trainable_variables, epsilon=0.1)
    return learners.Learner(network, loss, made, max_grad_norm=max_grad_norm, **kwargs)


def state_of(learner):
    """Bytes of all weights and slots."""
    variables = [*learner.network.trainable_variables, *learner.optimizer.variables()]
    rate = learner.optimizer.learning_rate
    return [v.numpy().tobytes() for v in variables if v is not rate]


def rmsprop_step(gradient, learning_rate):
    return learning_rate * gradient / np.sqrt(0.99 + 0.01 * gradient**2 + 0.1)


def test_epsilon_is_the_optimizers_from_that_update_on():
    """A population changes it; at B · T observations of 1 the gradient of w is 8."""
    learner = make_learner()
    for epsilon, expected in ((None, 0.1), (2.0, 2.0), (None, 2.0), (0.5, 0.5)):
        before = learner.network.w.numpy()
        mean_square = learner.optimizer.get_slot(learner.network.w, "mean_square").numpy()
        learner.update(batch_of(), 1e-2, epsilon=epsilon)
        step = 1e-2 * 8.0 / np.sqrt(0.99 * mean_square + 0.01 * 64.0 + expected)
        np.testing.assert_allclose(before - learner.network.w.numpy(), step, rtol=1e-4)


def test_a_keyword_is_never_taken_for_another_one():
    learner = make_learner(loss=lambda outputs, batch, entropy_cost=0.0: sum_loss(outputs, batch))
    learner.update(batch_of(), 1e-2, entropy_cost=0.1)
    with pytest.raises(ValueError, match="got learning_rate, is_due, epsilon; expected learning_rate, is_due, entropy_cost"):
        learner.update(batch_of(), 1e-2, epsilon=0.5)
    learner.update(batch_of(), 1e-2, entropy_cost=0.1, epsilon=0.5)
    assert learner.num_updates == 2 and learner.optimizer.epsilon.numpy() == 0.5


def test_a_variable_that_the_loss_does_not_reach_stays_as_it_is():
    """A torso of one's own may have some; there is no gradient of those."""
    network = Line()
    network.unused = tf.Variable([1.0, 2.0])
    made, before = optimizers.make("rmsprop", network.trainable_variables, epsilon=0.1), network.w.numpy()
    assert learners.Learner(network, sum_loss, made, max_grad_norm=1.0).update(batch_of(), 1e-2).applied
    assert network.unused.numpy().tolist() == [1.0, 2.0] and (network.w.numpy() != before).all()


def test_both_halves_apart_are_the_whole_update():
    """As where one process computes gradients and another applies them: bit for bit, a gradient that is not finite too."""
    whole, apart = (make_learner(optimizer="adam", max_grad_norm=3.0) for _ in range(2))
    compute = tf.function(lambda batch: gradients.compute(
        apart.network, apart.network.trainable_variables, sum_loss, batch, {}, tf.constant(False)
    ))
    scaled = tf.function(lambda found: appliers.scaled(found, 3.0))
    half = tf.function(
        lambda is_finite, found: appliers.apply(
            apart.optimizer, apart.network.trainable_variables, found, is_finite=is_finite, learning_rate=tf.constant(0.1)
        )
    )
    for reward in (1.0, -2.0, np.inf, 0.5):
        batch = batch_of(2.0, reward)
        result = whole.update(batch, 0.1)
        loss, found, metrics, columns = compute(batch)
        found, norm = scaled(found)
        applied = half(tf.math.is_finite(loss) & tf.math.is_finite(norm), found)
        assert bool(applied) == result.applied == np.isfinite(reward)
        np.testing.assert_array_equal(norm, result.metrics["grad_norm"])
        np.testing.assert_array_equal(metrics["loss"], result.metrics["loss"])
        assert {name: column.numpy().tolist() for name, column in columns.items()} == {
            name: column.tolist() for name, column in result.chunks.items()
        }
        assert state_of(whole) == state_of(apart)


def test_one_update_by_hand():
    learner = make_learner()
    result = learner.update(batch_of(observation=0.25, reward=2.0), 1e-2)
    gradient_w, gradient_b = 2.0 * 0.25 * T * B, 2.0 * T * B
    np.testing.assert_allclose(learner.network.w, [1, 2, 3] - rmsprop_step(gradient_w, 1e-2), rtol=1e-6)
    np.testing.assert_allclose(learner.network.b, 0.5 - rmsprop_step(gradient_b, 1e-2), rtol=1e-6)
    assert result.applied and learner.num_updates == 1
    assert result.metrics["loss"] == pytest.approx(2.0 * (0.25 * 6 + 0.5) * T * B)
    assert result.metrics["mean"] == pytest.approx(0.25 * 6 + 0.5)
    assert result.metrics["grad_norm"] == pytest.approx(np.sqrt(3 * gradient_w**2 + gradient_b**2))
    assert all(type(value) is float for value in result.metrics.values())


def test_many_updates_are_traced_once():
    learner = make_learner()
    for n in range(20):
        learner.update(batch_of(observation=float(n), reward=0.1 * n), 1e-3 * (20 - n))
    assert learner.num_traces == 1
    assert learner.num_updates == 20


def test_a_real_network_and_loss_are_traced_once_too():
    """Chunks as an actor writes them, on Catch, with rates that change."""
    environment, unrolls = environments.make("catch", num_environments=3), []
    network = networks.make(environment.spec, torso="mlp")
    actor = actors.Actor(
        environment, policies.FeedForwardPolicy(policies.network_outputs(network), environment.spec, 3, seed=0),
        chunks.UnrollWriter(environment.spec, 3, unroll_length=5, origin=Origin(0, 0, 0, 0, 0), sink=unrolls.append),
        lambda: 0, unroll_length=5,
    )  # fmt: skip
    learner = learners.Learner(
        network, actor_critic.actor_critic(corrections.vtrace),
        optimizers.make("adam", network.trainable_variables, epsilon=1e-5), max_grad_norm=40.0,
    )  # fmt: skip
    loop = actor.steps(0)
    for update in range(12):
        while len(unrolls) <= update:
            next(loop)
        assert learner.update(datasets.stack(unrolls[update]), 1e-3 / (update + 1)).applied
    assert learner.num_traces == 1


SMALL = {  # by agent
    "r2d2": {
        "agent.burn_in": 1, "agent.n_step": 1, "agent.period": 2, "learner.unroll_length": 2, "network.core_size": 2,
        "network.hidden_sizes": [4], "agent.dueling": False,
    },
    "dpg": {"agent.policy_sizes": [4], "agent.value_sizes": [4, 4]},
}  # fmt: skip


@pytest.mark.parametrize("agent, name", [("r2d2", "r2d2_memory_chain"), ("dpg", "apex_dpg_pendulum")])
def test_target_networks_are_renewed_after_every_so_many_updates_and_are_what_the_others_are_then(agent, name):
    """DQN's is looked at in tests/programs/test_dqn.py."""
    config = config_lib.load(f"configs/{name}.yaml", SMALL[agent] | {"agent.target_period": 3})
    spec, random = environments.make(config.environment.name, num_environments=1).spec, np.random.default_rng(0)
    network = agents.of(config).make_network(config, spec)
    learner = agents.of(config).make_learner(config, network)
    chunk = zeros(agents.of(config).make_chunk_spec(config, spec))

    def parameters(of=network.trainable_variables):
        return np.concatenate([variable.numpy().ravel() for variable in of])

    past = [parameters()]
    np.testing.assert_array_equal(parameters(network.target_variables), past[0])
    for update in range(1, 8):
        observation, rewards = (random.normal(size=array.shape).astype(np.float32) for array in (chunk.observation, chunk.r_t))
        batch = datasets.stack([chunk._replace(observation=observation, r_t=rewards, discount_t=np.ones_like(rewards))] * B)
        assert learner.update(batch._replace(importance=tf.ones([B])), 1e-2).applied
        past.append(parameters())
        assert (past[-1] != past[-2]).any()
        np.testing.assert_array_equal(parameters(network.target_variables), past[update - update % 3], f"update {update}")


@pytest.mark.parametrize("learning_rate", [1e-2, 3e-2])
def test_the_learning_rate_of_the_call_is_used(learning_rate):
    learner = make_learner()
    learner.update(batch_of(), 1.0)  # of another call: forgotten
    learner = make_learner()
    learner.update(batch_of(), learning_rate)
    np.testing.assert_allclose(1 - learner.network.w[0], rmsprop_step(T * B, learning_rate), rtol=1e-4)
    before = learner.network.w.numpy()
    learner.update(batch_of(), 0.0)
    np.testing.assert_array_equal(learner.network.w, before)


def test_groups_are_scaled_down_to_the_limit_together():
    gradient = T * B  # of each of the four numbers: the norm is twice that
    learner = make_learner(max_grad_norm=1.0)
    result = learner.update(batch_of(), 1e-2)
    assert result.metrics["grad_norm"] == pytest.approx(2 * gradient)  # as it was, unclipped
    np.testing.assert_allclose(1 - learner.network.w[0], rmsprop_step(0.5, 1e-2), rtol=1e-4)
    np.testing.assert_allclose(0.5 - learner.network.b, rmsprop_step(0.5, 1e-2), rtol=1e-4)


def test_groups_below_the_limit_are_left_alone():
    learner = make_learner(max_grad_norm=2 * T * B + 0.1)
    learner.update(batch_of(), 1e-2)
    np.testing.assert_allclose(1 - learner.network.w[0], rmsprop_step(T * B, 1e-2), rtol=1e-4)


def square_root_loss(outputs, batch):
    """Finite itself, with a gradient that is infinite where the reward is 0."""
    loss = tf.reduce_sum(tf.sqrt(batch.r_t * outputs[:-1]))
    return loss, {"loss": loss}


NON_FINITE = {
    "nan loss": (sum_loss, dict(reward=np.nan)),
    "infinite loss": (sum_loss, dict(reward=np.inf)),
    "nan observation": (sum_loss, dict(observation=np.nan)),
    "overflow of the norm": (sum_loss, dict(reward=1e30)),
    "gradient only": (square_root_loss, dict(reward=0.0)),
}


@pytest.mark.parametrize("case, optimizer", [*((case, "rmsprop") for case in NON_FINITE), ("nan loss", "adam")])
def test_an_update_that_is_not_finite_changes_nothing(case, optimizer):
    loss, bad = NON_FINITE[case]
    learner = make_learner(loss=loss, optimizer=optimizer)
    good = batch_of()
    assert learner.update(good, 1e-2).applied
    before = state_of(learner)
    result = learner.update(batch_of(**bad), 1e-2)
    assert not result.applied
    assert state_of(learner) == before
    assert (learner.num_skipped, learner.num_updates) == (1, 2)  # the clock of policy lag goes on
    assert not np.isfinite([result.metrics["loss"], result.metrics["grad_norm"]]).all()
    assert learner.update(good, 1e-2).applied and state_of(learner) != before
    assert learner.num_traces == 1


def test_a_skipped_first_update_changes_nothing_either():
    learner = make_learner()
    before = state_of(learner)
    learner.update(batch_of(reward=np.nan), 1e-2)
    assert state_of(learner) == before


def test_ten_in_a_row_end_the_run():
    learner = make_learner()
    for n in range(9):
        assert not learner.update(batch_of(reward=np.nan), 1e-2).applied
    before = state_of(learner)
    with pytest.raises(learners.NonFiniteUpdates, match="10 updates in a row"):
        learner.update(batch_of(reward=np.nan), 1e-2)
    assert learner.num_skipped == 10 and state_of(learner) == before


def test_a_finite_update_in_between_starts_the_count_anew():
    learner = make_learner()
    for _ in range(3):
        for _ in range(9):
            learner.update(batch_of(reward=np.nan), 1e-2)
        assert learner.update(batch_of(), 1e-2).applied
    assert learner.num_skipped == 27
    with pytest.raises(learners.NonFiniteUpdates):
        for _ in range(10):
            learner.update(batch_of(reward=np.inf), 1e-2)
    assert learner.num_skipped == 37


def test_the_limit_is_an_argument():
    learner = make_learner(max_non_finite=2)
    learner.update(batch_of(reward=np.nan), 1e-2)
    with pytest.raises(learners.NonFiniteUpdates, match="2 updates in a row"):
        learner.update(batch_of(reward=np.nan), 1e-2)


def test_weights_make_the_round_trip():
    learner, other = make_learner(), Line()
    learner.update(batch_of(), 1e-2)
    weights = learner.weights()
    assert weights.version == 1
    assign_weights(other.trainable_variables, weights)
    for one, same in zip(learner.network.trainable_variables, other.trainable_variables):
        np.testing.assert_array_equal(one, same)


def test_weights_are_copies():
    learner = make_learner()
    weights = learner.weights()
    before = [np.copy(array) for array in weights.arrays]
    learner.update(batch_of(), 1e-1)
    for array, copy, variable in zip(weights.arrays, before, learner.network.trainable_variables):
        np.testing.assert_array_equal(array, copy)
        assert (array != variable.numpy()).all()


def test_weights_of_another_network_are_refused():
    b, w = np.float32(0), np.zeros(3, np.float32)  # in the order of `trainable_variables`
    assign_weights(Line().trainable_variables, Weights(0, [b, w]))
    for arrays in ([b], [b, w, w], [b, np.zeros(4, np.float32)], [w, b]):
        with pytest.raises(ValueError):
            assign_weights(Line().trainable_variables, Weights(0, arrays))


def test_a_batch_is_a_chunk():
    assert isinstance(batch_of(), Chunk)
