"""What runs inside the evaluator's process."""

import logging
import math
import time

from impala import agents
from impala.config import Config
from impala.nodes.playing import evaluation_seed, play
from impala.nodes.run import Run
from impala.types import EnvironmentSpec, Weights


class EvaluatorNode:
    """Plays the newest weights now and then, with seeds that training never sees; keeps the best in `best/`.

    Args:
      learner: RPC client of the `LearnerNode` that gathers metrics.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, *, learner):
        from impala.launching import processes, roles
        from impala.learning import checkpoints

        self._stop = processes.prepare(roles.EVALUATOR, run.member)
        processes.set_tensorflow_threads(1)
        self._config, self._folder, self._learner = config, run.folder, learner
        self._network = agents.of(config).make_network(config, spec, on_cpu=True)
        self._best = checkpoints.Checkpoints(run.folder / "best", num_kept=1, network=self._network)
        state = checkpoints.read_state(run.folder / "best") or {}
        # A fitness by other rules says nothing; before `greedy` was kept, it is taken to be as configured.
        is_comparable = state.get("episodes") == config.evaluator.num_episodes and (
            state.get("greedy", config.evaluator.greedy) == config.evaluator.greedy
        )
        self._best_fitness = state["fitness"] if is_comparable else float("-inf")
        self._incarnation, self._count, self._evaluated = processes.incarnation(run.incarnation), 0, None

    def run(self) -> None:
        from impala.acting import remote
        from impala.launching import processes

        processes.begin(self._stop)
        due, period = time.monotonic(), self._config.evaluator.period_seconds
        while not self._stop.is_set():
            if time.monotonic() < due:
                self._stop.wait(0.2)
                continue
            due = time.monotonic() + period
            try:
                self.evaluate()
            except remote.Stopped:
                break
        processes.finish()

    def evaluate(self) -> dict[str, float] | None:
        """Plays every task and returns their mean scores; None if there are no new weights, or it is time to stop.

        Episodes start differently at every launch, and at every evaluation.

        Raises:
          remote.Stopped: it was time to stop before the weights came.
        """
        import tensorflow as tf

        from impala.learning.parameters import assign_weights
        from impala.monitoring import evaluations, scores
        from impala.networks.running import variables_of

        evaluator, tasks = self._config.evaluator, self._config.environment.tasks
        frames = self._ask(self._learner.futures.frames)
        weights = Weights(*self._ask(self._learner.futures.get_weights, -1))
        if weights.version == self._evaluated:
            return None
        seed = evaluation_seed(self._config, self._incarnation, self._count)
        assign_weights(variables_of(self._network), weights)
        played = {}
        for task, name in enumerate(tasks):
            played[name] = play(
                self._network, self._config, num_episodes=evaluator.num_episodes, greedy=evaluator.greedy,
                seed=seed, task=task, should_stop=self._stop.is_set,
            )  # fmt: skip
            if not played[name]:
                return None
        self._count, self._evaluated = self._count + 1, weights.version
        means = {name: sum(of_task) / len(of_task) for name, of_task in played.items()}
        fitness = scores.fitness(means)
        if not math.isfinite(fitness):  # no checkpoint could hold it
            logging.error("update %d: a score is not finite, so its evaluation is not kept: %s", weights.version, means)
            return means
        try:
            for name, of_task in played.items():
                evaluations.append(self._folder, evaluations.row_of(
                    name, of_task, updates=weights.version, frames=frames, greedy=evaluator.greedy
                ))  # fmt: skip
            if fitness > self._best_fitness:
                rules = dict(episodes=evaluator.num_episodes, greedy=evaluator.greedy)
                self._best.save(weights.version, dict(frames=frames, fitness=fitness, means=means) | rules)
                self._best_fitness = fitness
        except (OSError, tf.errors.OpError) as error:  # e.g. a full disk: training goes on
            logging.error("evaluation of update %d could not be kept: %s", weights.version, error)
        mean = sum(means.values()) / len(means)
        self._ask(self._learner.futures.evaluated, mean, weights.version)  # last: it may end the run
        logging.info("update %d: %.2f", weights.version, fitness)
        return means

    def _ask(self, method, *arguments):
        from impala.acting import remote

        return remote.result_of(remote.over_rpc(method)(*arguments), self._stop.is_set)
