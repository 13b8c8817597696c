"""All schemes on one batch, without training: what each makes of the same stale data.

    batch acted by μ ─▶ outputs of π ─▶ every scheme: targets, advantages ─▶ bias, deviation, gradient

Bias is against the exact value where a task is tabular, else against on-policy Monte Carlo returns from episode starts.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala import corrections
from impala.acting import policies
from impala.config import Config, ConfigError
from impala.environments import river_swim
from impala.learning import learners
from impala.lockstep import Lockstep
from impala.losses.actor_critic import REWARD_CLIPPING
from impala.programs.compose import make_actor, make_environment, make_network, make_policy
from impala.replay import datasets
from impala.types import Chunk, Origin, Weights


class Row(NamedTuple):
    """What a scheme did with a batch acted by a policy `lag` updates old."""

    lag: int
    scheme: str
    bias: float  # mean of target − value of π
    deviation: float  # standard deviation of the target, within a state where states can be told apart
    error: float  # root mean square of target − value of π, over the same rows as bias
    gradient_cosine: float  # of the policy gradient to that of a large on-policy batch
    gradient_norm: float  # relative to it
    log_rho_mean: float
    effective_sample_size: float


def load_chunks(folder: str | Path) -> Chunk:
    """Returns the chunks that `impala train --record-chunks N` kept in a run folder, as one batch [T, N, …].

    Raises:
      ConfigError: there are none.
    """
    paths = sorted(Path(folder).glob("chunks/*.npz"))
    if not paths:
        raise ConfigError([f"{folder}: holds no chunks; expected a run made with --record-chunks N"])
    loaded = [Chunk(**{name: array[name] for name in array.files}) for array in map(np.load, paths)]
    return datasets.stack([datasets.marked(chunk, is_replayed=False) for chunk in loaded])


def play(config: Config, weights: Weights, *, num_chunks: int, seed: int) -> Chunk:
    """Returns `num_chunks` chunks of new episodes, acted by `weights`, as one batch.

    The environments are played for a while first, so that chunks begin anywhere in an episode.
    """
    num_environments = min(num_chunks, 64)
    environment = make_environment(config, num_environments)
    network = make_network(config, environment.spec)
    learners.assign_weights(network.trainable_variables, weights)
    played: list[Chunk] = []
    actor = make_actor(
        environment, policies.network_outputs(network), seed=seed, unroll_length=config.learner.unroll_length,
        sink=played.extend, origin=Origin(seed, 0, 0, 0, 0), sync_weights=lambda: weights.version,
        core_state_shape=network.core_state_shape,
    )  # fmt: skip
    num_warm_up = num_environments * (200 // config.learner.unroll_length)
    for _ in actor.steps(seed):
        if len(played) >= num_warm_up + num_chunks:
            break
    environment.close()
    return datasets.stack([datasets.marked(c, is_replayed=False) for c in played[-num_chunks:]])


class View(NamedTuple):
    """A batch as a scheme sees it, for the policy that `network` holds."""

    arguments: dict  # of a V-based scheme
    log_pi_a_tm1: Callable[[], tf.Tensor]  # computes log π(a) [T, B] anew, to be differentiated
    mask_t: np.ndarray


def view(network, batch: Chunk, config: Config) -> View:
    """Returns `batch` as a V-based scheme takes it, with π and V of `network`."""
    inputs = learners.network_inputs(batch)
    outputs = network(*inputs)
    log_mu = tf.nn.log_softmax(batch.logits_tm1)

    def log_pi_a():
        log_pi = tf.nn.log_softmax(network(*inputs).logits[:-1])
        return tf.gather(log_pi, batch.a_tm1, batch_dims=2)

    mask_t = 1.0 - tf.cast(batch.is_first[1:], tf.float32)
    arguments = dict(
        v_tm1=outputs.value[:-1], v_t=outputs.value[1:], discount_t=config.loss.discount * batch.discount_t,
        r_t=REWARD_CLIPPING[config.loss.reward_clipping](batch.r_t), mask_t=mask_t,
        log_rho_tm1=log_pi_a() - tf.gather(log_mu, batch.a_tm1, batch_dims=2),
    )  # fmt: skip
    return View(arguments, log_pi_a, mask_t.numpy())


def policy_gradient(network, seen: View, advantage_tm1: tf.Tensor) -> np.ndarray:
    """Returns the gradient of the mean of log π(a) A over transitions, as one vector."""
    variables = network.trainable_variables
    with tf.GradientTape() as tape:
        objective = tf.reduce_sum(seen.log_pi_a_tm1() * advantage_tm1) / seen.mask_t.sum()
    gradients = tape.gradient(objective, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return np.concatenate([gradient.numpy().ravel() for gradient in gradients])


def river_swim_values(network, discount: float) -> np.ndarray:
    """Returns the exact V^π of the six states of river swim."""
    observation = np.eye(river_swim.NUM_STATES, dtype=np.float32)[None]
    logits = network(observation, np.ones((1, river_swim.NUM_STATES), bool)).logits[0]
    policy = tf.nn.softmax(tf.cast(logits, tf.float64)).numpy()
    transition, reward = river_swim.model()
    p = np.einsum("sa,sat->st", policy, transition)
    return np.linalg.solve(np.eye(len(p)) - discount * p, np.sum(policy * reward, axis=1))


def monte_carlo_start_value(network, config: Config, *, num_episodes: int, seed: int) -> float:
    """Returns the mean discounted return from the starts of whole episodes, a truncated one with V of its last state.

    Each environment plays the same number of episodes, so that short ones are not favoured.
    """
    num_environments = min(num_episodes, 64)
    environment = make_environment(config, num_environments)
    policy = make_policy(
        policies.network_outputs(network), environment.spec, num_environments, seed=seed,
        core_state_shape=network.core_state_shape,
    )  # fmt: skip
    clip, discount = REWARD_CLIPPING[config.loss.reward_clipping], config.loss.discount
    played: list[list[float]] = [[] for _ in range(num_environments)]
    step = environment.reset(seed)
    policy.observe(step)
    returns, weight = np.zeros(num_environments), np.ones(num_environments)
    while min(map(len, played)) < num_episodes // num_environments:
        decision = policy.decide()
        for i in np.flatnonzero(step.is_last):
            played[i].append(float(returns[i] + weight[i] * decision.value[i]))
        environment.send(decision.action)
        step = environment.receive()
        policy.observe(step)
        reward = clip(tf.constant(step.reward, tf.float32)).numpy()
        returns = np.where(step.is_first, 0.0, returns + weight * reward)
        weight = np.where(step.is_first, 1.0, weight * discount * step.discount)
    environment.close()
    return float(np.mean([x for xs in played for x in xs[: num_episodes // num_environments]]))


def compare(
    network, batch: Chunk, config: Config, *, lag: int, reference: np.ndarray, truth: np.ndarray | float | None = None,
    schemes: Mapping[str, Callable] = corrections.SCHEMES,
) -> list[Row]:  # fmt: skip
    """Applies every scheme to `batch` and returns a row each.

    Args:
      network: π and V.
      batch: acted by μ, [T, B].
      config: of the task: γ, reward clipping.
      lag: written into the rows.
      reference: the on-policy gradient (`policy_gradient`).
      truth: V^π of every state of a one-hot observation, or of the episodes' starts (a number); None for no bias.
    """
    seen, observation = view(network, batch, config), batch.observation.numpy()[:-1]
    some = seen.mask_t > 0
    state = None
    if isinstance(truth, np.ndarray):
        state = observation.argmax(axis=-1)
    elif truth is not None:
        some = some & batch.is_first.numpy()[:-1]
    ratio = np.exp(np.minimum(seen.arguments["log_rho_tm1"].numpy()[seen.mask_t > 0], 20.0))
    rows = []
    for name, scheme in schemes.items():
        targets = scheme(**seen.arguments)
        target = targets.target_tm1.numpy()
        gradient = policy_gradient(network, seen, targets.advantage_tm1)
        norm = np.linalg.norm(gradient)
        rows.append(Row(
            lag, name, *_errors(target, some, state, truth),
            float(gradient @ reference / max(norm * np.linalg.norm(reference), 1e-12)),
            float(norm / max(np.linalg.norm(reference), 1e-12)),
            float(np.log(ratio).mean()), float(ratio.mean() ** 2 / np.mean(ratio**2)),
        ))  # fmt: skip
    return rows


def _errors(target, some, state, truth) -> tuple[float, float, float]:
    if truth is None:
        return float("nan"), float(target[some].std()), float("nan")
    error = target[some] - (truth[state[some]] if state is not None else truth)
    groups = state[some] if state is not None else np.zeros(error.shape, int)
    within = [target[some][groups == g].var() * np.mean(groups == g) for g in np.unique(groups)]
    return float(error.mean()), float(np.sqrt(np.sum(within))), float(np.sqrt(np.mean(error**2)))


def lag_study(
    config: Config, lags: Sequence[int], *, num_updates: int, num_chunks: int = 512,
    schemes: Mapping[str, Callable] = corrections.SCHEMES,
) -> list[Row]:  # fmt: skip
    """Trains for `num_updates`, then shows the last policy what each of its predecessors acted.

    Args:
      config: of the training, on policy.
      lags: in updates, each at most `num_updates`.
      num_chunks: of each batch; the reference has eight times as many.

    Raises:
      ValueError: a lag is longer than the training.
    """
    if max(lags) > num_updates:
        raise ValueError(f"lag {max(lags)} is longer than the {num_updates} updates of the training")
    training = Lockstep(config)
    history = {0: training.learner.weights()}
    for update in training.updates(10**12):
        history[update.index] = training.learner.weights()
        history.pop(update.index - max(lags) - 1, None)
        if update.index == num_updates:
            break
    network, newest = training.network, history[num_updates]
    on_policy = play(config, newest, num_chunks=8 * num_chunks, seed=config.seed + 1_000)
    seen = view(network, on_policy, config)
    reference = policy_gradient(network, seen, corrections.none(**seen.arguments).advantage_tm1)
    if config.environment.name == "river_swim":
        truth = river_swim_values(network, config.loss.discount)
    else:
        truth = monte_carlo_start_value(network, config, num_episodes=num_chunks, seed=config.seed + 3_000)
    rows = []
    for lag in lags:
        batch = play(config, history[num_updates - lag], num_chunks=num_chunks, seed=config.seed + 2_000)
        rows += compare(network, batch, config, lag=lag, reference=reference, truth=truth, schemes=schemes)
    return rows


def write_csv(rows: Iterable[Row], path: str | Path) -> None:
    """Writes rows as a CSV file."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
