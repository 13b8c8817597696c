"""Chunks for the offline study: kept by a run, or acted by given weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from impala import sampling
from impala.acting import policies
from impala.agents import actor_critic
from impala.config import Config, ConfigError
from impala.learning.parameters import assign_weights
from impala.nodes import parts
from impala.replay import datasets
from impala.types import Chunk, Origin, Step, Weights


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

    Chunks begin anywhere in an episode: they are drawn from 500 steps or more of 64 environments, which do not
    begin together; the first 200 steps or more are dropped.
    """
    environment = _Staggered([parts.make_environment(config, 4) for _ in range(16)])
    network = actor_critic.make_network(config, environment.spec)
    assign_weights(network.trainable_variables, weights)
    played: list[Chunk] = []
    actor = parts.make_actor(
        environment, policies.network_outputs(network), seed=seed, unroll_length=config.learner.unroll_length,
        sink=played.extend, origin=Origin(seed, 0, 0, 0, 0), sync_weights=lambda: weights.version,
        behaviour=actor_critic.make_behaviour(config, environment.spec),
    )  # fmt: skip
    n, unroll_length = environment.num_environments, config.learner.unroll_length
    num_skipped, num_wanted = n * -(-200 // unroll_length), max(num_chunks, n * -(-500 // unroll_length))
    for _ in actor.steps(seed):
        if len(played) >= num_skipped + num_wanted:
            break
    environment.close()
    drawn = np.random.default_rng([seed, 4]).choice(np.arange(num_skipped, len(played)), num_chunks, replace=False)
    return datasets.stack([datasets.marked(played[i], is_replayed=False) for i in sorted(drawn)])


class _Staggered:
    """Several environments as one; a reset plays i random steps in environment i, so that episodes are staggered."""

    def __init__(self, environments: Sequence):
        self._environments, self.spec = environments, environments[0].spec
        self._ends = np.cumsum([environment.num_environments for environment in environments])
        self.num_environments = int(self._ends[-1])

    def reset(self, seed: int) -> Step:
        steps, random, sampler = [], np.random.default_rng([seed, 5]), sampling.of(self.spec.actions)
        for index, environment in enumerate(self._environments):
            step = environment.reset(int(np.random.SeedSequence([seed, index]).generate_state(1)[0] % 2**30))
            for _ in range(index):
                nothing = np.zeros([environment.num_environments, self.spec.actions.num_parameters])
                environment.send(sampler.sample(nothing, random))
                step = environment.receive()
            steps.append(step)
        return Step(*map(np.concatenate, zip(*steps)))

    def send(self, action: np.ndarray) -> None:
        for environment, part in zip(self._environments, np.split(action, self._ends[:-1])):
            environment.send(part)

    def receive(self) -> Step:
        return Step(*map(np.concatenate, zip(*(environment.receive() for environment in self._environments))))

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
