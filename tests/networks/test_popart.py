"""PopArt: moments, outputs that stay, the loss at σ = 1, and two tasks of very different rewards."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala import corrections, lockstep, losses, networks
from impala.acting import policies
from impala.losses.actor_critic import actor_critic
from impala.networks.actor_critic import Outputs
from impala.networks.popart import PopArt
from impala.types import ArraySpec, Discrete, EnvironmentSpec, MultiDiscrete
from tests.losses.test_actor_critic import B, T, make_case
from tests.test_actions import Follow

SPEC = EnvironmentSpec("flat", ArraySpec((3,), np.float32), Discrete(2))


def columns(*rows):
    """(task, count, sum, sum of squares) of each chunk."""
    return np.array(rows, float).T


def test_moments_follow_the_targets_of_their_own_task():
    popart, head = PopArt(3, step=0.1), tf.keras.layers.Dense(3)
    head(tf.zeros([1, 2]))
    popart.update(head, *columns((0, 4, 8.0, 20.0), (2, 5, 50.0, 600.0), (0, 2, -2.0, 4.0), (1, 0, 0.0, 0.0)))
    mean, scale = popart.moments()
    np.testing.assert_allclose(mean, [0.1 * 1.0, 0.0, 0.1 * 10.0], rtol=1e-6)  # 6 targets of sum 6; none; 5 of sum 50
    square = np.array([0.9 + 0.1 * 4.0, 1.0, 0.9 + 0.1 * 120.0])
    np.testing.assert_allclose(scale, np.sqrt(square - mean.numpy() ** 2), rtol=1e-5)


def moments_after(targets, step):
    """(mean, mean of squares) after one batch of one task."""
    popart, head = PopArt(1, step=step), tf.keras.layers.Dense(1)
    head(tf.zeros([1, 2]))
    popart.update(head, *columns((0, len(targets), targets.sum(), (targets**2).sum())))
    return popart._mean.numpy()[0], popart._mean_square.numpy()[0]


def test_the_step_is_a_batchs_and_not_a_targets():
    """What `PopArt` says of other steps: added up (rlax's `art`, transcribed), and one after the other."""
    targets, step = np.random.default_rng(0).normal(3.0, 2.0, 50), 0.002
    mean, square = 0.0, 1.0
    added = mean + np.sum(step * (targets - mean)), square + np.sum(step * (targets**2 - square))
    np.testing.assert_allclose(moments_after(targets, len(targets) * step), added, rtol=1e-12)
    same = np.full(50, 3.0)
    for target in same:
        mean, square = mean + step * (target - mean), square + step * (target**2 - square)
    np.testing.assert_allclose(moments_after(same, 1 - (1 - step) ** 50), (mean, square), rtol=1e-12)
    assert moments_after(np.tile(targets, 7), step) == pytest.approx(moments_after(targets, step)), "however many"


def test_outputs_are_preserved_precisely():
    """σ n + μ is the same before and after, whatever the targets were; the normalised values are others."""
    network = networks.make(SPEC, torso="mlp", popart_step=0.3, num_tasks=2, seed=1)
    observation, random = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("f4"), np.random.default_rng(1)

    def values():
        outputs = network(observation, np.zeros((4, 5), bool))
        mean, scale = outputs.moments
        return (outputs.value * scale + mean).numpy(), outputs.value.numpy()

    before, normalised = values()
    assert before.shape == (4, 5, 2)
    for _ in range(5):
        target = 1_000.0 * random.normal(size=20) + 300.0
        network.observe_targets(*columns((0, 20, target.sum(), (target**2).sum()), (1, 1, 0.01, 0.0001)))
    after, renormalised = values()
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-4)
    assert np.abs(renormalised - normalised)[..., 0].mean() > 0.1
    assert len(network.trainable_variables) == len(networks.make(SPEC, torso="mlp").trainable_variables)


def test_the_scale_stays_in_its_bounds():
    popart, head = PopArt(2, step=1.0), tf.keras.layers.Dense(2)
    head(tf.zeros([1, 2]))
    popart.update(head, *columns((0, 10, 0.0, 0.0), (1, 10, 0.0, 1e20)))
    np.testing.assert_allclose(popart.moments()[1], [1e-4, 1e6])


def test_actors_do_without_values():
    network = networks.make(SPEC, torso="mlp", popart_step=0.1, num_tasks=2)
    logits, value = policies.network_outputs(network)(np.zeros((1, 6, 3), "f4"), np.zeros((1, 6), bool))
    assert logits.shape == (6, 2) and value.tolist() == [0.0] * 6


def popart_case(mean, scale, task, reduction="sum"):
    """The loss with PopArt, on a case of the actor-critic loss whose value of every other task is nonsense."""
    (logits, value), batch = make_case(0)
    origin = np.zeros((B, 6), np.int64)
    origin[:, 5] = task
    normalised = (value - np.array(mean)[task]) / np.array(scale)[task]  # [T+1, B]
    others = np.full((T + 1, B, len(mean)), 1e3, np.float32)
    others[:, np.arange(B), task] = normalised
    outputs = Outputs(logits, tf.constant(others), (), (tf.constant(mean, tf.float32), tf.constant(scale, tf.float32)))
    make = functools.partial(actor_critic, reduction=reduction)
    return losses.popart(make, corrections.vtrace)(outputs, batch._replace(origin=origin)), make, (logits, value), batch


def test_with_unit_moments_it_is_the_loss_without():
    (loss, metrics), make, outputs, batch = popart_case([0.0, 0.0], [1.0, 1.0], np.arange(B) % 2)
    expected, of_expected = make(corrections.vtrace)(outputs, batch)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for name, value in of_expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_targets_are_of_the_game_and_errors_of_the_task():
    mean, scale, task = np.array([3.0, -20.0]), np.array([2.0, 50.0]), np.arange(B) % 2
    (_, metrics), make, (logits, value), batch = popart_case(mean, scale, task)
    seen = {}

    def spy(**inputs):
        targets = corrections.vtrace(**inputs)
        seen.update(inputs, target=targets.target_tm1.numpy(), advantage=targets.advantage_tm1.numpy())
        return targets

    make(spy)((logits, value), batch)
    mask = seen["mask_t"].numpy()
    normalised = (seen["target"] - value[:-1]) / scale[task]
    n = mask.sum()
    assert float(metrics["value_loss"]) == pytest.approx((0.5 * mask * normalised**2).sum() / n, rel=1e-3)
    advantage = (seen["advantage"] / scale[task])[mask > 0]
    assert float(metrics["advantage_mean"]) == pytest.approx(advantage.mean(), rel=1e-3)
    assert float(metrics["advantage_std"]) == pytest.approx(advantage.std(), rel=1e-3)
    np.testing.assert_allclose(metrics["num_targets"], mask.sum(0))
    np.testing.assert_allclose(metrics["target_sum"], (mask * seen["target"]).sum(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(metrics["target_square_sum"], (mask * seen["target"] ** 2).sum(0), rtol=1e-3)


class Paid(Follow):
    """Pays `size` times as much, and shows its cues in the second half of the observation if `is_other`."""

    def __init__(self, size, n, *, is_other):
        super().__init__(MultiDiscrete((3, 3)), n)
        self.spec = self.spec._replace(observation=ArraySpec((12,), np.float32))
        self._size, self._is_other = size, is_other

    def receive(self):
        step = super().receive()
        return step._replace(reward=self._size * step.reward)

    def _show(self):
        cues = super()._show()
        return np.concatenate([0 * cues, cues] if self._is_other else [cues, 0 * cues], axis=1)


@pytest.mark.parametrize("popart", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_rewards_of_very_different_size_are_learnt_together(popart):
    """Without PopArt value errors of the task that pays 1,000 times more fill the clipped norm: its policy stays."""
    config = config_lib.build({}, {
        "environment.name": ["catch", "river_swim"], "network.torso": "mlp", "network.hidden_sizes": (32,),
        "learner.unroll_length": 10, "learner.batch_size": 32, "learner.learning_rate": 1e-2,
        "loss.popart": popart, "loss.popart_step": 0.03, "loss.reward_clipping": "none", "loss.discount": 0.5,
        "loss.entropy_cost": 1e-3, "total_frames": 40_000,
    })  # fmt: skip
    run = lockstep.Lockstep(config, environments=[Paid(1.0, 16, is_other=False), Paid(1_000.0, 16, is_other=True)], lag=1)
    scores = {0: [], 1: []}
    for update in run.updates():
        assert sorted(np.unique(update.batch.origin[:, 5]).tolist()) == [0, 1]
        for episode in update.episodes:
            scores[episode.task].append(episode.score)
    small, large = np.mean(scores[0][-200:]), np.mean(scores[1][-200:]) / 1_000.0
    assert abs(len(scores[0]) - len(scores[1])) <= 32
    assert (small > 4.5 and large > 4.5) == popart, (small, large)
    assert popart or large < 3.0, large
