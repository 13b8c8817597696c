"""All schemes on one batch, without training: what each makes of the same stale data.

    batch acted by μ ─▶ outputs of π ─▶ every scheme: targets, advantages ─▶ bias, deviation, gradient

Bias is against the exact values on river swim, else against on-policy Monte Carlo returns from episode starts.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from impala import config as config_lib
from impala import corrections, evaluation, losses, networks
from impala.agents import actor_critic
from impala.config import Config, LossConfig
from impala.corrections import Targets
from impala.distributions import CATEGORICAL
from impala.lab import truths
from impala.lab.acted import load_chunks, play
from impala.learning import gradients
from impala.learning.parameters import assign_weights
from impala.lockstep import Lockstep
from impala.losses.actor_critic import Rows, Terms, make_rows
from impala.losses.rewards import REWARD_CLIPPING
from impala.nodes import checking
from impala.types import Chunk, Weights


class Row(NamedTuple):
    """What a scheme did with a batch acted by a policy `lag` updates old."""

    lag: int
    scheme: str
    bias: float  # mean of target − value of π
    deviation: float  # standard deviation of the target, within a state if the truth is known by state
    error: float  # root mean square of target − value of π, over the same rows as bias
    advantage: float  # root mean square of the advantages
    gradient_cosine: float  # of the policy gradient to that of a large on-policy batch
    gradient_norm: float  # relative to that batch's
    log_rho_mean: float
    effective_sample_size: float


class Scheme(NamedTuple):
    """A correction as the loss takes it."""

    correction: Callable  # V-based, its parameters bound
    terms: Terms = Terms()
    has_target_network: bool = False


def make_schemes(
    loss: LossConfig, words: Iterable[str] = (*corrections.SCHEMES, *losses.POLICY_TERMS)
) -> dict[str, Scheme]:  # fmt: skip
    """Returns {word: Scheme} with the parameters of `loss`; of all schemes unless `words` are given."""
    schemes = {}
    for word in words:
        one = loss.model_copy(update={"correction": word})
        schemes[word] = Scheme(
            actor_critic.make_correction(one), actor_critic.make_terms(one), actor_critic.has_target_network(one)
        )
    return schemes


class View(NamedTuple):
    """A batch as a scheme sees it, for the policy that `network` holds."""

    arguments: dict  # of a V-based scheme
    rows: Callable[[], Rows]  # recomputes what the loss's terms look at, under a gradient tape
    valid_t: np.ndarray  # [T, B], 0 across a reset


def view(network, batch: Chunk, config: Config) -> View:
    """Returns `batch` as a scheme takes it, with π and V of `network`.

    Raises:
      ValueError: the network has values of several tasks (PopArt).
    """
    inputs = gradients.network_inputs(batch)
    outputs = network(*inputs)
    if outputs.value.shape.rank != 2:
        raise ValueError(f"values have shape {tuple(outputs.value.shape)}; expected [T+1, B], a network without PopArt")
    rows = make_rows(outputs, batch, network.distribution)
    valid_t = 1.0 - tf.cast(batch.is_first[1:], tf.float32)
    arguments = dict(
        v_tm1=outputs.value[:-1], v_t=outputs.value[1:], discount_t=config.loss.discount * batch.discount_t,
        r_t=REWARD_CLIPPING[config.loss.reward_clipping](batch.r_t), mask_t=valid_t,
        log_rho_tm1=rows.log_taken(rows.pi_target_tm1) - rows.log_taken(rows.mu_tm1),
    )  # fmt: skip
    return View(arguments, lambda: make_rows(network(*inputs), batch, network.distribution), valid_t.numpy())


def policy_gradient(network, seen: View, scheme: Scheme) -> tuple[np.ndarray, Targets]:
    """Returns the gradient of a scheme's policy objective, its mean over transitions, as one vector; and its targets.

    With IMPALA's terms the objective is log π(a) A.
    """
    terms, variables = scheme.terms, network.trainable_variables
    with tf.GradientTape() as tape:
        rows = seen.rows()
        mask_t = seen.arguments["mask_t"] * (tf.stop_gradient(terms.is_trusted(rows)) if terms.is_trusted else 1.0)
        targets = scheme.correction(**seen.arguments | {"mask_t": mask_t})
        objective, _ = terms.policy(rows, targets.advantage_tm1)
        if terms.extra:
            objective -= terms.extra(rows)
        mean = tf.reduce_sum(mask_t * objective) / seen.valid_t.sum()
    parts = tape.gradient(mean, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return np.concatenate([part.numpy().ravel() for part in parts]), targets


def compare(
    network, batch: Chunk, config: Config, *, lag: int, reference: np.ndarray, truth: np.ndarray | float | None = None,
    schemes: Mapping[str, Scheme] | None = None, with_target=None,
) -> list[Row]:  # fmt: skip
    """Applies every scheme to `batch` and returns a row each.

    Args:
      network: π and V.
      batch: acted by μ, [T, B].
      config: of the task: γ, reward clipping, parameters of the schemes.
      lag: written into the rows, in updates.
      reference: the on-policy gradient (`policy_gradient`).
      truth: V^π of every state of a one-hot observation, or of episode starts (a number); None for no bias.
      schemes: by default all that are defined for the actions, those with a target network only if `with_target` is
        given.
      with_target: `networks.WithTarget` of `network`, for schemes that have a target network.

    Raises:
      ValueError: the truth is that of episode starts and the batch has none.
    """
    seen, observation = view(network, batch, config), batch.observation.numpy()[:-1]
    seen_with_target = view(with_target, batch, config) if with_target else None
    if schemes is None:
        schemes = make_schemes(config.loss)
        left_out = () if network.distribution is CATEGORICAL else config_lib.OF_DISCRETE_ACTIONS
        schemes = {
            name: one for name, one in schemes.items()
            if name not in left_out and (with_target or not one.has_target_network)
        }  # fmt: skip
    valid = counted = seen.valid_t > 0
    state = None
    if isinstance(truth, np.ndarray):
        state = observation.argmax(axis=-1)
    elif truth is not None:
        counted = valid & batch.is_first.numpy()[:-1]
    if not counted.any():
        raise ValueError("no episode starts in the batch; expected some, since the truth is the value of starts")
    log_rho = seen.arguments["log_rho_tm1"].numpy()[valid]
    ratio = np.exp(np.minimum(log_rho, 20.0))
    rows = []
    for name, scheme in schemes.items():
        gradient, targets = policy_gradient(network, seen_with_target if scheme.has_target_network else seen, scheme)
        norm, reference_norm = np.linalg.norm(gradient), max(np.linalg.norm(reference), 1e-12)
        # A transition that is not trusted has no target of its own.
        trusted = scheme.terms.is_trusted(seen.rows()).numpy() > 0 if scheme.terms.is_trusted else valid
        rows.append(Row(
            lag, name, *_errors(targets.target_tm1.numpy(), counted & trusted, state, truth),
            float(np.sqrt(np.mean(targets.advantage_tm1.numpy()[valid & trusted] ** 2))),
            float(gradient @ reference / max(norm * reference_norm, 1e-12)), float(norm / reference_norm),
            float(log_rho.mean()), float(ratio.mean() ** 2 / np.mean(ratio**2)),
        ))  # fmt: skip
    return rows


def _errors(target, counted, state, truth) -> tuple[float, float, float]:
    if not counted.any():
        return float("nan"), float("nan"), float("nan")
    if truth is None:
        return float("nan"), float(target[counted].std()), float("nan")
    error = target[counted] - (truth[state[counted]] if state is not None else truth)
    groups = state[counted] if state is not None else np.zeros(error.shape, int)
    within = [target[counted][groups == g].var() * np.mean(groups == g) for g in np.unique(groups)]
    return float(error.mean()), float(np.sqrt(np.sum(within))), float(np.sqrt(np.mean(error**2)))


def lag_study(
    config: Config, lags: Sequence[int], *, num_updates: int, num_chunks: int = 512,
    schemes: Mapping[str, Scheme] | None = None,
) -> list[Row]:  # fmt: skip
    """Trains for `num_updates`, then applies the schemes to chunks that earlier policies played; π is the last one.

    IMPACT's target network is the policy at the last multiple of `loss.target_period`. CLEAR's own losses are for
    replayed chunks, and there are none here.

    Args:
      config: of the training, on policy.
      lags: in updates, each at most `num_updates`.
      num_chunks: of each batch; the reference has eight times as many.
      schemes: all by default.

    Raises:
      ValueError: a lag is negative or longer than the training.
      ConfigError: the agent learns action values, or plays several tasks.
    """
    if not 0 <= min(lags) <= max(lags) <= num_updates:
        raise ValueError(f"lags {list(lags)}; expected each from 0 to the {num_updates} updates of the training")
    _check(config, "lag_study")
    training = Lockstep(config)
    target = newest = training.learner.weights()
    history = {0: newest}
    for update in training.updates(num_updates * config.steps_per_update * training.spec.frames_per_step):
        newest = history[update.index] = training.learner.weights()
        history.pop(update.index - max(lags) - 1, None)
        target = newest if update.index % config.loss.target_period == 0 else target
        if update.index == num_updates:
            break
    training.close()
    network, older = (actor_critic.make_network(_without_target(config), training.spec) for _ in range(2))
    with_target = networks.WithTarget(network, older)
    for each, weights in ((network, newest), (older, target)):
        assign_weights(each.trainable_variables, weights)
    reference, truth = _on_policy(network, config, newest, num_chunks)
    rows = []
    for lag in lags:
        batch = play(config, history[num_updates - lag], num_chunks=num_chunks, seed=config.seed + 2_000)
        rows += compare(
            network, batch, config, lag=lag, reference=reference, truth=truth, schemes=schemes, with_target=with_target
        )
    return rows


def run_study(
    folder: str | Path, *, num_chunks: int = 512, schemes: Mapping[str, Scheme] | None = None
) -> list[Row]:  # fmt: skip
    """Applies the schemes to a run's first chunks (`impala train --record-chunks N`); π is the run's newest policy.

    Args:
      folder: of the run.
      num_chunks: an eighth of the number of chunks that the newest policy plays for comparison.
      schemes: by default all but those with a target network.

    Returns:
      Rows whose lag is the chunks' mean lag: nearly all updates of the run.

    Raises:
      ConfigError: the run kept no chunks, has no checkpoint, plays several tasks, or learns action values.
    """
    config = config_lib.load(Path(folder) / "config.yaml")
    _check(config, str(folder))
    batch = load_chunks(folder)
    trained, state = evaluation.load_network(Path(folder), config)
    newest = Weights(state["updates"], [variable.numpy() for variable in trained.trainable_variables])
    network = actor_critic.make_network(_without_target(config), checking.check(config))
    assign_weights(network.trainable_variables, newest)
    reference, truth = _on_policy(network, config, newest, num_chunks)
    lag = round(newest.version - float(np.mean(batch.weights_version)))
    return compare(network, batch, config, lag=lag, reference=reference, truth=truth, schemes=schemes)


def _check(config: Config, what: str) -> None:
    if config.own_correction_is_of != "values":
        raise config_lib.ConfigError([f"agent.name={config.agent.name}; expected one that learns values of states"])
    if len(config.environment.tasks) > 1:
        raise config_lib.ConfigError([f"{what}: plays several tasks; expected one, whose value is the truth"])


def _without_target(config: Config) -> Config:
    return config.model_copy(update={"loss": config.loss.model_copy(update={"correction": "vtrace"})})


def _on_policy(network, config: Config, weights: Weights, num_chunks: int) -> tuple[np.ndarray, np.ndarray | float]:
    """Returns the policy gradient on a large on-policy batch, and V^π: of each state, or the mean over starts."""
    config = _without_target(config)
    on_policy = play(config, weights, num_chunks=8 * num_chunks, seed=config.seed + 1_000)
    reference, _ = policy_gradient(network, view(network, on_policy, config), Scheme(corrections.none))
    if config.environment.name == "river_swim" and network.core_state_shape is None:
        return reference, truths.river_swim_values(network, config)
    seed = config.seed + 3_000
    return reference, truths.monte_carlo_start_value(network, config, num_episodes=num_chunks, seed=seed)


def write_csv(rows: Iterable[Row], path: str | Path) -> None:
    """Writes rows as a CSV file."""
    with Path(path).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows([f"{x:.6g}" if isinstance(x, float) else x for x in row] for row in rows)
