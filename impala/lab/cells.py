"""One cell of a grid: a training run in lockstep, in a worker with one core."""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from impala.config import Config

NUM_POINTS = 25  # of a learning curve
TELEMETRY = (
    "log_rho_mean", "rho_clipped_fraction", "effective_sample_size", "kl_mu_pi", "trace_length", "value_correction",
    "rejected_fraction", "policy_clipped_fraction", "policy_entropy",
)  # fmt: skip
_METRIC = {"policy_entropy": "entropy"}  # a cell's `entropy` is the entropy cost


def prepare_worker() -> None:
    """Takes one core and no GPU, before TensorFlow is imported; leaves Ctrl-C to the parent, and ends with it."""
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # so that every CPU rounds as the recorded cells were
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def _end_with(parent: int) -> None:
    """Ends this process once its parent is gone: who was killed can tell nobody."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def run(config: Config, lag: int, num_evaluations: int = 0) -> dict[str, Any]:
    """Trains to the end and returns the cell's results.

    Args:
      num_evaluations: episodes that the last weights play; 0 for none.

    Returns:
      `return`: mean score of those evaluations, or else of the episodes that finished in the last tenth of the frames,
      or else of the last one before. `curve`: mean score in each of `NUM_POINTS` equal parts of the run, NaN where no
      episode finished.
      `status`: "done", or "diverged" when ten updates in a row were not finite; `return` is then what it had reached.
      `skipped_updates`: those with a loss or gradient that was not finite. `replay_age`: updates between the weights
      that played a replayed chunk and those that learned from it, NaN without replay; it and `TELEMETRY` are means over
      all updates.
    """
    from impala.nodes import hangs

    with hangs.watched(config, "is stepped by a cell of the grid") as step:
        return _run(config, lag, num_evaluations, step)


def _run(config: Config, lag: int, num_evaluations: int, step: Callable[[], bool]) -> dict[str, Any]:
    from impala import lockstep
    from impala.learning import learners
    from impala.nodes import playing

    started, frames, scores, metrics, ages, status = time.monotonic(), [], [], [], [], "done"
    training = lockstep.Lockstep(config, lag=lag)
    try:
        for update in training.updates():
            step()
            metrics.append([update.metrics.get(_METRIC.get(name, name), np.nan) for name in TELEMETRY])
            ages.append(_replay_age(update))
            frames += [update.frames] * len(update.episodes)
            scores += [episode.score for episode in update.episodes]
    except learners.NonFiniteUpdates:
        status = "diverged"
    training.close()
    late = _late_mean(frames, scores, config.total_frames)
    if num_evaluations and status == "done":
        seed = playing.evaluation_seed(config)
        late = np.mean(playing.play(
            training.network, config, num_episodes=num_evaluations, greedy=False, seed=seed, should_stop=step
        ))  # fmt: skip
    seconds = time.monotonic() - started
    with warnings.catch_warnings():  # the mean of a metric that a scheme lacks is NaN
        warnings.simplefilter("ignore", RuntimeWarning)
        means = np.nanmean(metrics, axis=0) if metrics else [np.nan] * len(TELEMETRY)
        age = np.nanmean(ages) if ages else np.nan
    return {
        "return": float(late),
        "curve": curve(frames, scores, config.total_frames),
        "status": status,
        "frames": training.frames,
        "updates": training.learner.num_updates,
        "skipped_updates": training.learner.num_skipped,
        "wall_seconds": seconds,
        "replay_age": float(age),
        **dict(zip(TELEMETRY, means)),
    }


def _replay_age(update) -> float:
    """Returns the mean lag, in updates, of the batch's replayed chunks; NaN if it has none."""
    is_replayed = np.asarray(update.batch.is_replayed) > 0
    lags = update.index - 1 - np.asarray(update.batch.weights_version)
    return float(np.mean(lags[..., is_replayed])) if is_replayed.any() else float("nan")


def _late_mean(frames: list[int], scores: list[float], total_frames: int) -> float:
    late = [score for frame, score in zip(frames, scores) if frame > 0.9 * total_frames] or scores[-1:]
    return float(np.mean(late)) if late else float("nan")


def curve(frames: list[int], scores: list[float], total_frames: int) -> list[float]:
    """Returns the mean score in each of `NUM_POINTS` equal parts of the run, NaN where no episode finished."""
    part = np.minimum((np.array(frames, float) / total_frames * NUM_POINTS).astype(int), NUM_POINTS - 1)
    scores = np.array(scores, float)
    return [float(scores[part == i].mean()) if (part == i).any() else float("nan") for i in range(NUM_POINTS)]
