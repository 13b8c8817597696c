"""What each correction scheme adds to a learner's step."""

import os
from collections.abc import Callable

from impala import config as config_lib
from impala.bench.parts import make_environment, random_batch, rate

_UNROLL_LENGTH, _BATCH_SIZE, _ROUNDS = 20, 32, 3


def scheme_fractions(config: config_lib.Config, seconds: float) -> dict[str, float]:
    """Returns every scheme's share of the learner's step at T = 20, B = 32, all cores.

    A scheme's time is that of the loss and its gradient with respect to logits and values, less that of the same loss
    with targets that cost nothing. The forward pass of IMPACT's target network is not included. Best of three rounds.
    """
    from impala import corrections, losses
    from impala.agents.actor_critic import has_target_network, make_learner, make_loss, make_network
    from impala.corrections import Targets
    from impala.launching import processes
    from impala.losses.actor_critic import actor_critic

    processes.hide_gpus()
    processes.set_tensorflow_threads(len(os.sched_getaffinity(0)))
    sizes = {"unroll_length": _UNROLL_LENGTH, "batch_size": _BATCH_SIZE}
    loss = config.loss.model_copy(update={"correction": "vtrace"})  # of an agent of one's own it may be another kind
    config = config.model_copy(update={"learner": config.learner.model_copy(update=sizes), "loss": loss})
    spec = make_environment(config, 1).spec
    batch = random_batch(config, spec)
    learner = make_learner(config, make_network(config, spec))

    def update():
        learner.update(batch, 1e-5)
        return 1

    step_seconds = 1.0 / rate(update, seconds / 2)
    words = [*corrections.SCHEMES, *losses.POLICY_TERMS]
    num_parameters, distribution = spec.actions.num_parameters, learner.network.distribution
    free = actor_critic(lambda *, v_tm1, r_t, **_: Targets(v_tm1, r_t), distribution=distribution)
    calls = {"": _gradient(free, batch, num_parameters, False)}
    for word in words:
        loss = config.loss.model_copy(update={"correction": word, "popart": False})
        calls[word] = _gradient(make_loss(loss, distribution), batch, num_parameters, has_target_network(loss))
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(_ROUNDS):
        for word, call in calls.items():
            best[word] = min(best[word], 1.0 / rate(call, seconds / 2 / _ROUNDS / len(calls)))
    return {word: max(0.0, best[word] - best[""]) / step_seconds for word in words}


def _gradient(loss, batch, num_parameters: int, with_target: bool) -> Callable[[], int]:
    import tensorflow as tf

    from impala.networks.target import TargetOutputs

    shape = [_UNROLL_LENGTH + 1, _BATCH_SIZE]
    logits, value = 0.1 * tf.random.normal([*shape, num_parameters], seed=1), tf.random.normal(shape, seed=2)
    target = 0.1 * tf.random.normal([*shape, num_parameters], seed=3)

    @tf.function(autograph=False)
    def gradient(logits, value):
        with tf.GradientTape() as tape:
            tape.watch([logits, value])
            outputs = TargetOutputs(logits, value, (), (), (), target) if with_target else (logits, value)
            total, metrics = loss(outputs, batch)
        return tape.gradient(total, [logits, value]), tf.stack(list(metrics.values()))

    def call():
        gradient(logits, value)[1].numpy()
        return 1

    return call
