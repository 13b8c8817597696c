"""All schemes on one batch: exact values, known biases, gradients, recorded chunks."""

import functools

import gymnasium
import numpy as np
import pytest
import tensorflow as tf

from impala import config as config_lib
from impala import corrections, losses
from impala.acting import policies
from impala.agents.actor_critic import make_behaviour
from impala.config import ConfigError
from impala.environments import river_swim
from impala.lab import acted, offline, truths
from impala.lockstep import Lockstep
from impala.nodes import parts
from impala.nodes.side_jobs import Recorder
from impala.types import Origin
from tests.lab.test_grid import LAB


def river(**overrides):
    return config_lib.load(LAB / "river_swim.yaml", {"learner.learning_rate": 3e-3, "learner.batch_size": 16} | overrides)


@pytest.fixture(scope="module")
def study():
    """River swim after 60 updates, seen by policies 0 and 60 updates old."""
    rows = offline.lag_study(river(), [0, 60], num_updates=60, num_chunks=128)
    return {(row.lag, row.scheme): row for row in rows}


ALL = (*corrections.SCHEMES, *losses.POLICY_TERMS)


def test_every_scheme_has_a_row_for_every_lag(study):
    assert set(study) == {(lag, scheme) for lag in (0, 60) for scheme in ALL}
    assert all(np.isfinite(row[2:]).all() for row in study.values())


def test_policy_terms_change_the_gradient_and_not_the_targets(study):
    """PPO's gradient at π = μ is the plain one; later it clips. ε is too small to matter. Nothing is replayed here."""
    for lag in (0, 60):
        of = {scheme: study[lag, scheme] for scheme in ALL}
        assert of["ppo_clip"].bias == of["td_lambda"].bias and of["epsilon_max"].bias == of["none"].bias
        np.testing.assert_allclose(of["epsilon_add"].gradient_norm, of["none"].gradient_norm, rtol=1e-2)
        assert of["clear"][2:] == of["vtrace"][2:]
    for name in ("advantage", "gradient_cosine", "gradient_norm"):
        values = [getattr(study[0, scheme], name) for scheme in ("ppo_clip", "td_lambda")]
        np.testing.assert_allclose(*values, rtol=1e-4, err_msg=name)
    assert study[60, "ppo_clip"].gradient_norm != pytest.approx(study[60, "td_lambda"].gradient_norm, rel=0.01)


def test_on_policy_the_schemes_agree_and_point_along_the_on_policy_gradient(study):
    for scheme in ("one_step_is", "vtrace", "per_decision_is", "full_is", "weighted_is"):
        row, none = study[0, scheme], study[0, "none"]
        np.testing.assert_allclose((row.bias, row.deviation), (none.bias, none.deviation), rtol=1e-3, atol=1e-5)
        assert row.effective_sample_size == pytest.approx(1.0, abs=1e-5)
    assert study[0, "none"].gradient_cosine > 0.8


def test_stale_data_is_worth_less(study):
    sizes = [study[lag, "vtrace"].effective_sample_size for lag in (0, 60)]
    assert sizes[0] > 0.999 and 0.8 > sizes[1]


def test_exact_values_of_river_swim():
    """V^π of the solver is the fixed point of its own Bellman equation; always right is worth more than always left."""
    class Always:
        def __init__(self, action):
            self._action = action

        def __call__(self, observation, is_first):
            from impala.networks import Outputs

            n = observation.shape[1]
            return Outputs(np.tile(np.eye(2)[self._action] * 100, (1, n, 1)), np.zeros((1, n)))

    config, clipped = river(**{"loss.discount": 0.99}), river(**{"loss.discount": 0.99, "loss.reward_clipping": "soft_asymmetric"})
    right, left = truths.river_swim_values(Always(1), config), truths.river_swim_values(Always(0), config)
    np.testing.assert_allclose(left[0], 0.005 / (1 - 0.99), rtol=1e-6)
    assert (right > left).all() and (np.diff(right) > 0).all()
    transition, reward = river_swim.model()
    np.testing.assert_allclose(right, reward[:, 1] + 0.99 * transition[:, 1] @ right, rtol=1e-6)
    right = truths.river_swim_values(Always(1), clipped)
    np.testing.assert_allclose(right, 5 * np.tanh(reward[:, 1]) + 0.99 * transition[:, 1] @ right, rtol=1e-6)


@pytest.mark.soak
def test_what_was_trained_with_a_target_network_is_studied_too():
    config = river(**{"loss.correction": "impact"})
    schemes = offline.make_schemes(config.loss, ["impact", "vtrace"])
    rows = offline.lag_study(config, [0, 2], num_updates=2, num_chunks=16, schemes=schemes)
    assert len(rows) == 4 and all(np.isfinite(row[2:]).all() for row in rows)


def test_environments_of_different_plays_have_different_seeds(monkeypatch):
    seeds = []

    class Seen:
        num_environments, spec = 1, river_swim.RiverSwim(num_environments=1).spec

        def reset(self, seed):
            seeds.append(seed)
            return river_swim.RiverSwim(num_environments=1).reset(seed)

    for seed in (1_000, 2_000):
        acted._Staggered([Seen()]).reset(seed)
        monkeypatch.setattr(Seen, "send", lambda *_: None, raising=False)
        monkeypatch.setattr(Seen, "receive", lambda self: river_swim.RiverSwim(num_environments=1).reset(0), raising=False)
        acted._Staggered(3 * [Seen()]).reset(seed)
    assert len({*seeds}) == 6 and len(seeds) == 8, "the first of each is the same"


def test_bias_is_that_of_the_fixed_point():
    """A network that knows V^μ and not V^π: without correction the target stays at V^μ, with it it moves to V^π."""
    config = river()
    training = Lockstep(config)
    network = training.network
    old = training.learner.weights()
    for update in training.updates(10**12):
        if update.index == 60:
            break
    batch = acted.play(config, old, num_chunks=512, seed=5)
    truth = truths.river_swim_values(network, config)
    seen = offline.view(network, batch, config)
    reference, _ = offline.policy_gradient(network, seen, offline.Scheme(corrections.none))
    exact = seen.arguments | {
        "v_tm1": truth[batch.observation.numpy()[:-1].argmax(-1)].astype("float32"),
        "v_t": truth[batch.observation.numpy()[1:].argmax(-1)].astype("float32"),
    }
    valid = seen.valid_t > 0
    unbiased = corrections.per_decision_is(**exact).target_tm1.numpy()[valid] - exact["v_tm1"][valid]
    biased = corrections.none(**exact).target_tm1.numpy()[valid] - exact["v_tm1"][valid]
    num_independent = valid.sum() / 20  # targets of one unroll are not
    unbiased_error, biased_error = unbiased.std() / num_independent**0.5, biased.std() / num_independent**0.5
    assert abs(unbiased.mean()) < 5 * unbiased_error, "V^π is the fixed point of importance sampling"
    assert biased.mean() < -5 * biased_error, "the old policy gets less"
    rows = offline.compare(network, batch, config, lag=60, reference=reference, truth=truth)
    assert {row.scheme for row in rows} == set(ALL) - {"impact"}, "which needs a target network"


def test_catch_is_measured_against_monte_carlo_returns():
    config = config_lib.load(LAB / "catch.yaml")
    rows = offline.lag_study(config, [0, 5], num_updates=5, num_chunks=64, schemes=offline.make_schemes(config.loss, ["none"]))
    assert [row.lag for row in rows] == [0, 5] and all(np.isfinite(row.bias) for row in rows)


@pytest.mark.parametrize("length, ends", [(30, "terminated"), (30, "truncated"), (3, "terminated")])
def test_monte_carlo_follows_an_episode_to_its_end_however_long(monkeypatch, length, ends):
    """A reward of 2, clipped to 1, at every step; longer than an unroll, and cut off or over."""
    from impala.types import ArraySpec, Discrete, EnvironmentSpec, Step

    class Fixed:
        spec = EnvironmentSpec("fixed", ArraySpec((3,), np.float32), actions=Discrete(2))
        num_environments = 2

        def reset(self, seed):
            self._t = 0
            return self._step()

        def _step(self):
            first, last = np.full(2, self._t == 0), np.full(2, self._t == length)
            over = last & (ends == "terminated")
            reward = np.where(first, 0.0, 2.0).astype(np.float32)
            return Step(np.ones((2, 3), np.float32), reward, 1.0 - over.astype(np.float32), first, last)

        def send(self, action):
            self._t = 0 if self._t == length else self._t + 1

        def receive(self):
            return self._step()

        def close(self):
            pass

    monkeypatch.setattr(truths.parts, "make_environment", lambda config, n: Fixed())
    config = config_lib.load(LAB / "catch.yaml")

    def network(window, is_first):
        from impala.networks.actor_critic import Outputs

        n = window.shape[1]
        return Outputs(tf.zeros([1, n, 2]), 5.0 * tf.ones([1, n]))

    network.core_state_shape = None
    network.numbers = lambda outputs: (outputs.logits[0], outputs.value[0])
    value = truths.monte_carlo_start_value(network, config, num_episodes=2, seed=0)
    expected = sum(0.99**t for t in range(length)) + (5.0 * 0.99**length if ends == "truncated" else 0.0)
    assert value == pytest.approx(expected, rel=1e-5)


def test_a_lag_longer_than_the_training_is_refused():
    for lags in ([6], [-1]):
        with pytest.raises(ValueError, match="expected each from 0 to the 5 updates of the training"):
            offline.lag_study(river(), lags, num_updates=5)


def test_chunks_begin_anywhere_in_an_episode():
    """Catch's episodes are of one length, and an unroll holds two of them."""
    config = config_lib.load(LAB / "catch.yaml")
    weights = Lockstep(config).learner.weights()
    batch = acted.play(config, weights, num_chunks=128, seed=0)
    assert batch.r_t.shape == (20, 128)
    first = batch.is_first.numpy()[:20].argmax(axis=0)
    assert set(first) == set(range(10))


def test_rows_are_written(tmp_path, study):
    offline.write_csv(study.values(), tmp_path / "rows.csv")
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert lines[0] == ",".join(offline.Row._fields) and len(lines) == 1 + len(study)


def test_recorded_chunks_are_a_batch(tmp_path):
    config = config_lib.load("configs/catch.yaml")
    network, environment = Lockstep(config).network, parts.make_environment(config, 4)
    (tmp_path / "run").mkdir()
    record, played = Recorder(tmp_path / "run" / "chunks", 12), []
    actor = parts.make_actor(
        environment, policies.network_outputs(network), seed=0, unroll_length=20, sink=played.extend,
        origin=Origin(0, 0, 0, 0, 0), behaviour=make_behaviour(config, environment.spec),
    )  # fmt: skip
    for _ in actor.steps(0):
        if len(played) >= 16:
            break
    for chunk in played:  # as the feeder does
        record(chunk)
    batch = acted.load_chunks(tmp_path / "run")
    assert batch.r_t.shape == (20, 12) and batch.observation.shape == (21, 12, 10, 5)
    seen = offline.view(network, batch, config)
    reference, _ = offline.policy_gradient(network, seen, offline.Scheme(corrections.none))
    rows = offline.compare(network, batch, config, lag=0, reference=reference, schemes=dict(
        none=offline.Scheme(corrections.none),
        vtrace=offline.Scheme(functools.partial(corrections.vtrace, clip_rho=2.0)),
    ))  # fmt: skip
    assert rows[0].gradient_cosine == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ConfigError, match="holds no chunks"):
        acted.load_chunks(tmp_path)


def test_who_learns_action_values_is_not_studied(tmp_path):
    config = config_lib.load("configs/q_unrolls_catch.yaml")
    (tmp_path / "config.yaml").write_text(config_lib.dump(config))
    for study in (lambda: offline.run_study(tmp_path), lambda: offline.lag_study(config, [0], num_updates=1)):
        with pytest.raises(config_lib.ConfigError, match="agent.name=q_unrolls; expected one that learns values of states"):
            study()


class Bandit(gymnasium.Env):
    """The reward is what is done; an episode is one action."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,), np.float32), gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0]), True, False, {}


def test_several_tasks_have_no_one_value():
    tasks = {"environment.name": ["catch", "memory_chain"], "actor.num_lanes": 2, "target_return": None}
    with pytest.raises(config_lib.ConfigError, match="lag_study: plays several tasks; expected one"):
        offline.lag_study(config_lib.load("configs/catch.yaml", tasks), [0], num_updates=1)


def test_schemes_that_look_at_every_actions_probability_are_left_out_where_there_is_none():
    """`laser` would take a Gaussian's mean and deviation for logits."""
    keys = {"environment.name": f"{__name__}:Bandit", "network.torso": "mlp", "learner.batch_size": 4}
    config = config_lib.build({}, keys | {"network.hidden_sizes": [4], "learner.unroll_length": 2})
    rows = offline.lag_study(config, [0], num_updates=1, num_chunks=4)
    names = {row.scheme for row in rows}
    assert {"vtrace", "impact"} <= names and not names & config_lib.OF_DISCRETE_ACTIONS
