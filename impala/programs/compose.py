"""From a configuration to stations: what distributed programs, lockstep and evaluation share."""

import functools
from typing import Any

from impala.config import Config


def network_arguments(config: Config) -> dict[str, Any]:
    """Returns the keyword arguments of `networks.make`."""
    network = config.network
    return dict(torso=network.torso, hidden_sizes=network.hidden_sizes, bfloat16=network.bfloat16, seed=config.seed)


def make_learner(config: Config, network):
    """Composes loss, correction, optimizer and learner as configured; lockstep uses the same."""
    from impala.learning import learners, optimizers
    from impala.losses import actor_critic

    learner, loss = config.learner, config.loss
    optimizer = optimizers.make(
        learner.optimizer, network.trainable_variables, epsilon=learner.epsilon, adam_beta1=learner.adam_beta1,
        rmsprop_decay=learner.rmsprop_decay, rmsprop_momentum=learner.rmsprop_momentum,
    )  # fmt: skip
    return learners.Learner(
        network,
        actor_critic.actor_critic(
            make_correction(config), discount=loss.discount, baseline_cost=loss.baseline_cost,
            entropy_cost=loss.entropy_cost, reward_clipping=loss.reward_clipping, reduction=loss.reduction,
        ),
        optimizer,
        max_grad_norm=learner.max_grad_norm,
        jit_compile=learner.jit_compile,
    )  # fmt: skip


def make_correction(config: Config):
    """Returns the configured scheme of `corrections.SCHEMES` with its parameters bound."""
    from impala import corrections

    loss = config.loss
    parameters = {
        "vtrace": dict(clip_rho=loss.clip_rho, clip_c=loss.clip_c, clip_pg=loss.clip_pg, lambda_=loss.lambda_)
    }
    return functools.partial(corrections.SCHEMES[loss.correction], **parameters.get(loss.correction, {}))
