"""What runs inside the evaluator's process."""

import logging
import time

from impala.config import Config
from impala.programs.compose import evaluation_seed, make_network, play
from impala.programs.run import Run
from impala.types import EnvironmentSpec, Weights


class EvaluatorNode:
    """Plays the newest weights now and then, with seeds that training never sees; keeps the best in `best/`.

    Args:
      learner: RPC client of the `LearnerNode` that gathers metrics.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, *, learner):
        from impala.launching import processes
        from impala.learning import checkpoints

        self._stop = processes.prepare("evaluator")
        processes.set_tensorflow_threads(1)
        self._config, self._folder, self._learner = config, run.folder, learner
        self._network = make_network(config, spec)
        self._best = checkpoints.Checkpoints(run.folder / "best", num_kept=1, network=self._network)
        state = checkpoints.read_state(run.folder / "best")
        self._best_mean = state["mean"] if state else float("-inf")
        # Other starts at every launch, and at every evaluation.
        self._seed, self._count = evaluation_seed(config) + 10_000 * run.incarnation, 0

    def run(self) -> None:
        from impala.launching import processes

        due, period = time.monotonic(), self._config.evaluator.period_seconds
        while not self._stop.is_set():
            if time.monotonic() < due:
                self._stop.wait(0.2)
                continue
            due = time.monotonic() + period
            self.evaluate()
        processes.finish()

    def evaluate(self) -> dict | None:
        """Plays once and returns the row written; None where it was time to stop before the end."""
        from impala.learning import learners
        from impala.monitoring import evaluations

        evaluator = self._config.evaluator
        weights = Weights(*self._learner.get_weights(-1))
        frames = self._learner.status().get("frames", 0)
        learners.assign_weights(self._network.trainable_variables, weights)
        scores = play(
            self._network, self._config, num_episodes=evaluator.num_episodes, greedy=evaluator.greedy,
            seed=self._seed + self._count, should_stop=self._stop.is_set,
        )  # fmt: skip
        if not scores:
            return None
        self._count += 1
        try:
            row = evaluations.append(
                self._folder, self._config.environment.name, scores, updates=weights.version, frames=frames,
                greedy=evaluator.greedy,
            )  # fmt: skip
            if row["mean"] > self._best_mean:
                self._best.save(weights.version, dict(frames=frames, mean=row["mean"], episodes=row["episodes"]))
                self._best_mean = row["mean"]
        except OSError as error:
            logging.error("evaluation of update %d is lost: %s", weights.version, error)
            return None
        logging.info("update %d: %.2f", weights.version, row["mean"])
        return row
