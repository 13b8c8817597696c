"""Without lag all architectures are one algorithm, synchronous A2C: the same data, the same weights."""

import functools
import typing

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala import lockstep
from impala.agents import actor_critic
from impala.config import Correction
from impala.learning import optimizers
from impala.nodes import checking, parts
from impala.types import Origin

T, B, SEED, NUM_UPDATES = 5, 4, 3, 22
GAMMA, ENTROPY_COST, BASELINE_COST, MAX_NORM = 0.9, 0.02, 0.25, 40.0


def config(program, name="catch", **overrides):
    return config_lib.build({}, {
        "program": program, "environment.name": name, "network.torso": "mlp", "learner.unroll_length": T,
        "learner.batch_size": B, "learner.optimizer": "rmsprop", "learner.epsilon": 0.1, "learner.learning_rate": 1e-3,
        "learner.learning_rate_schedule": "constant", "loss.correction": "vtrace", "loss.discount": GAMMA, "loss.entropy_cost": ENTROPY_COST,
        "loss.baseline_cost": BASELINE_COST, "seed": SEED, "actor.num_environments": B, "actor.num_lanes": 1, **{k.replace("__", "."): v for k, v in overrides.items()},
    })  # fmt: skip


kept = {}  # several tests look at the same run, which is the same however often it is played


def once(function):
    """Calls `function` once for the same configuration and other arguments."""

    @functools.wraps(function)
    def of(*arguments, **kwargs):
        key = function.__name__, repr(arguments), repr(kwargs)
        if key not in kept:
            kept[key] = function(*arguments, **kwargs)
        return kept[key]

    return of


@once
def played(configuration, num_updates=NUM_UPDATES, **kwargs):
    """Returns the weights and the batches of the run in lockstep."""
    if configuration.program in ("a3c", "dppo"):
        run = lockstep.of(configuration)
        batches = [update.batch for _, update in zip(range(num_updates), run.updates())]
        run.close()
        return run.weights().arrays, batches
    run = lockstep.Lockstep(configuration, **kwargs)
    batches = [update.batch for _, update in zip(range(num_updates), run.updates())]
    run.close()
    return run.learner.weights().arrays, batches


@once
def a2c(configuration):
    """Synchronous advantage actor-critic as a textbook has it (Mnih et al. 2016, algorithm S3, one thread)."""
    environment = parts.make_environment(configuration, B)
    network = actor_critic.make_network(configuration, environment.spec)
    variables = network.trainable_variables
    optimizer = optimizers.make("rmsprop", variables, epsilon=0.1, rmsprop_decay=0.99, rmsprop_momentum=0.0, adam_beta1=0.9)
    optimizer.learning_rate.assign(1e-3)
    seed = parts.lane_seed(configuration, 0, 0, 0)
    random = np.random.default_rng([seed, 2])
    step = environment.reset(seed)
    for _ in range(NUM_UPDATES):
        observations, firsts, actions, rewards, goes_on = [step.observation], [step.is_first], [], [], []
        for _ in range(T):
            logits = network(step.observation[None], step.is_first[None]).logits[0].numpy()
            actions.append(np.argmax(logits + random.gumbel(size=logits.shape), axis=-1).astype(np.int32))
            environment.send(actions[-1])
            step = environment.receive()
            rewards.append(step.reward)
            goes_on.append(step.discount)
            observations.append(step.observation)
            firsts.append(step.is_first)
        with tf.GradientTape() as tape:
            outputs = network(np.stack(observations), np.stack(firsts))
            log_pi, value = tf.nn.log_softmax(outputs.logits), outputs.value
            loss, future = 0.0, tf.stop_gradient(value[T])  # R
            for t in reversed(range(T)):
                future = rewards[t] + GAMMA * goes_on[t] * future
                is_real = 1.0 - firsts[t + 1].astype(np.float32)  # the step that resets is none
                advantage = future - value[t]
                log_p = tf.gather(log_pi[t], actions[t], batch_dims=1)
                h = -tf.reduce_sum(tf.exp(log_pi[t]) * log_pi[t], axis=-1)
                terms = -log_p * tf.stop_gradient(advantage) + BASELINE_COST * 0.5 * advantage**2 - ENTROPY_COST * h
                loss += tf.reduce_sum(is_real * terms)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), MAX_NORM)
        optimizer.apply_gradients(zip(gradients, variables))
    environment.close()
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("name", [pytest.param("catch", marks=pytest.mark.soak), "river_swim"])
def test_impala_seed_ga3c_and_a3c_are_one_number_and_a2c_is_it_too(name):
    impala, batches = played(config("impala", name))
    assert any(batch.is_first.numpy()[1:].any() for batch in batches), "episodes end on the way"
    for program in ("seed", "ga3c", "a3c"):
        for one, other in zip(played(config(program, name))[0], impala, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=program)
    start = actor_critic.make_network(config("impala", name), checking.check(config("impala", name))).trainable_variables
    assert max(np.abs(a - b).max() for a, b in zip(impala, start)) > 0.005, "it moved"
    for one, other in zip(a2c(config("impala", name)), impala, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("name", [pytest.param("catch", marks=pytest.mark.soak), "river_swim"])
def test_ppo_with_one_pass_over_one_batch_is_a2c(name):
    """At θ = θ_old its gradient is the policy gradient: check (a) of clip and penalty."""
    for word in ("clip", "penalty"):
        ppo = config("dppo", name, loss__correction=word, loss__lambda=1.0, loss__reduction="sum", agent__num_epochs=1,
                     agent__num_minibatches=1, agent__normalise_advantages="none", agent__kl_hinge=1000.0, learner__max_grad_norm=MAX_NORM)  # fmt: skip
        ours, _ = played(ppo)
        for one, other in zip(a2c(config("impala", name)), ours, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6)


def test_recurrent_ppo_with_one_pass_is_the_recurrent_learner():
    """Its core's state goes on from unroll to unroll too, and its gradient goes back to the start of one: truncated."""
    recurrent = dict(network__core="lstm", network__core_size=8)
    ppo = config("dppo", loss__correction="clip", loss__lambda=1.0, loss__reduction="sum", agent__num_epochs=1, agent__num_minibatches=1,
                 agent__normalise_advantages="none", agent__kl_hinge=1000.0, learner__max_grad_norm=MAX_NORM, **recurrent)  # fmt: skip
    impala, _ = played(config("impala", **recurrent))
    for one, other in zip(impala, played(ppo)[0], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


WORDS = sorted(set(typing.get_args(Correction)) - {"vtrace"})


@pytest.mark.parametrize("word", [WORDS[0], *(pytest.param(word, marks=pytest.mark.soak) for word in WORDS[1:])])
def test_any_correction_is_the_same_number_in_all_of_them(word):
    configs = [config(program, loss__correction=word, loss__target_period=2) for program in ("impala", "seed", "ga3c")]
    weights = [played(one, num_updates=3)[0] for one in configs]
    for others in weights[1:]:
        for one, other in zip(weights[0], others):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("lag, overrides", [
    pytest.param(0, dict(network__core="lstm", network__core_size=8), marks=pytest.mark.soak), (3, {}),
])  # fmt: skip
def test_recurrent_and_with_an_exact_lag_too(lag, overrides):
    weights = [played(config(program, **overrides), lag=lag)[0] for program in ("impala", "seed", "ga3c")]
    for others in weights[1:]:
        for one, other in zip(weights[0], others):
            np.testing.assert_array_equal(one, other)


def test_a_recurrent_worker_is_a_recurrent_learner():
    """The worker's core state goes on from unroll to unroll, and its gradient is of the chunk's alone: truncated."""
    one, other = (played(config(program, network__core="lstm", network__core_size=8))[0] for program in ("impala", "a3c"))
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("program", ["seed", "ga3c"])
def test_every_step_of_an_unroll_is_of_the_version_that_the_lag_says(program):
    _, batches = played(config(program), lag=3)
    for index, batch in enumerate(batches):
        assert (batch.weights_version.numpy() == max(0, index - 3)).all() and batch.weights_version.shape == (T, B)


@pytest.mark.parametrize("program", ["seed", "ga3c"])
def test_origins_are_those_of_a_local_actor(program):
    _, ours = played(config(program, "river_swim"))
    _, theirs = played(config("impala", "river_swim"))
    for one, other in zip(ours, theirs):
        np.testing.assert_array_equal(one.origin, other.origin)
        assert Origin(*one.origin.numpy()[0].tolist()).run == SEED
