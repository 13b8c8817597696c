"""The value of a policy, to measure bias against: exact for river swim, else from played episodes."""

import numpy as np
import tensorflow as tf

from impala.acting import policies
from impala.agents.actor_critic import make_behaviour
from impala.config import Config
from impala.environments import river_swim
from impala.losses.rewards import REWARD_CLIPPING
from impala.nodes import parts


def river_swim_values(network, config: Config) -> np.ndarray:
    """Returns the exact V^π of the six states of river swim, of rewards as the loss clips them."""
    observation = np.eye(river_swim.NUM_STATES, dtype=np.float32)[None]
    logits = network(observation, np.ones((1, river_swim.NUM_STATES), bool)).logits[0]
    policy = tf.nn.softmax(tf.cast(logits, tf.float64)).numpy()
    transition, reward = river_swim.model()
    reward = REWARD_CLIPPING[config.loss.reward_clipping](tf.constant(reward, tf.float32)).numpy()
    return exact_values(policy, transition, reward, config.loss.discount)


def exact_values(policy: np.ndarray, transition: np.ndarray, reward: np.ndarray, discount: float) -> np.ndarray:
    """Solves V = Σ_a π(a|x) [r(x, a) + γ Σ_y P(y|x, a) V(y)]: [X], of π [X, A], P [X, A, X] and r [X, A]."""
    p = np.einsum("sa,sat->st", policy, transition)
    return np.linalg.solve(np.eye(len(p)) - discount * p, np.sum(policy * reward, axis=1))


def monte_carlo_start_value(network, config: Config, *, num_episodes: int, seed: int) -> float:
    """Returns the mean discounted return of whole episodes; a truncated one bootstraps from V of its last state.

    Each environment plays the same number of episodes, so that short ones are not favoured; together they play
    `num_episodes` or, where these cannot be shared out equally, a few more.
    """
    num_environments = min(num_episodes, 64)
    num_each = -(-num_episodes // num_environments)
    environment = parts.make_environment(config, num_environments)
    policy = parts.make_policy(
        policies.network_outputs(network), environment.spec, num_environments, seed=seed,
        behaviour=make_behaviour(config, environment.spec),
    )  # fmt: skip
    clip, discount = REWARD_CLIPPING[config.loss.reward_clipping], config.loss.discount
    played: list[list[float]] = [[] for _ in range(num_environments)]
    step = environment.reset(seed)
    policy.observe(step)
    returns, weight = np.zeros(num_environments), np.ones(num_environments)
    while min(map(len, played)) < num_each:
        decision = policy.decide()
        _, value = decision.kept
        for i in np.flatnonzero(step.is_last):
            played[i].append(float(returns[i] + weight[i] * value[i]))
        environment.send(decision.action)
        step = environment.receive()
        policy.observe(step)
        reward = clip(tf.constant(step.reward, tf.float32)).numpy()
        returns = np.where(step.is_first, 0.0, returns + weight * reward)
        weight = np.where(step.is_first, 1.0, weight * discount * step.discount)
    environment.close()
    return float(np.mean([x for xs in played for x in xs[:num_each]]))
