"""A network and a copy of it that is renewed now and then."""

from typing import Any, NamedTuple

import tensorflow as tf

from impala.networks.actor_critic import ActorCritic


class TargetOutputs(NamedTuple):
    """What a network and its older copy return."""

    logits: tf.Tensor  # [n, B, A]
    value: tf.Tensor  # [n, B]
    core_state: Any  # of the network; the copy, too, continues from it at the next unroll
    moments: Any  # see `Outputs`
    hidden: Any  # of the network; see `Outputs`
    target_logits: tf.Tensor  # [n, B, A], of the copy


class Pair(tf.Module):
    """`online` and `target`, networks of the same shape; the second starts as a copy, and only the first is trained."""

    def __init__(self, online, target):
        super().__init__("with_target")
        self._online, self._target = online, target
        self.renew()

    @property
    def trainable_variables(self):
        return self._online.trainable_variables

    @property
    def target_variables(self):
        """The parameters of `target`, in the order of the trainable ones."""
        return self._target.trainable_variables

    @property
    def core_state_shape(self):
        return self._online.core_state_shape

    def numbers(self, outputs) -> tuple[tf.Tensor, ...]:
        """Returns what acting needs of `online`'s outputs; it needs nothing of the copy's."""
        return self._online.numbers(outputs)

    def renew(self) -> None:
        """Copies the parameters of `online` into `target`."""
        for old, new in zip(self._target.trainable_variables, self._online.trainable_variables, strict=True):
            old.assign(new)


class WithTarget(Pair):
    """Two actor-critic networks of which both are applied."""

    _online: ActorCritic
    _target: ActorCritic

    @property
    def distribution(self):
        return self._online.distribution

    def __call__(self, *inputs) -> TargetOutputs:
        """Applies both to the inputs of an `ActorCritic`."""
        return TargetOutputs(*self._online(*inputs), self._target(*inputs).logits)

    def observe_targets(self, *columns) -> None:
        """Brings PopArt's moments of `online` up to date; the copy needs none, as only its policy is used."""
        self._online.observe_targets(*columns)
