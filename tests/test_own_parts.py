"""Parts of one's own, named `package.module:name`: they train in every program, and mistakes are a line each."""

import contextlib
import hashlib
import importlib
import io
import re
import subprocess
import sys
import textwrap
import types

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
import yaml

from impala import agents, lockstep, own
from impala import config as config_lib
from impala.config import ConfigError
from impala.environments import gymnasium_environment
from impala.lockstep import Lockstep
from impala.monitoring.logs import read_csv
from impala.networks import parts
from impala.nodes import checking, own_parts
from impala.types import ArraySpec, Discrete, EnvironmentSpec, MultiDiscrete
from tests.programs import running

MODULE = """
import gymnasium
import numpy as np
import tensorflow as tf

from impala.corrections import QTargets, Targets
from impala.corrections.q_targets import q_targets
from impala.corrections.targets import clipped_exp, weighted_td_targets
from impala.networks.parts import split


def one_step(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None, clip_rho=1.0):
    rho = clipped_exp(log_rho_tm1, clip_rho)
    return weighted_td_targets(v_tm1=v_tm1, v_t=v_t, r_t=r_t, discount_t=discount_t, log_rho_tm1=log_rho_tm1,
                               mask_t=mask_t, rho_tm1=rho, c_tm1=0.0, pg_weight_tm1=rho)

def too_short(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None):
    return Targets(v_tm1[:-1], v_tm1)

def other_arguments(v, r):
    return v

def of_nothing(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None):
    return v_tm1

def own_retrace(*, q_tm1, q_t, a_tm1, r_t, discount_t, log_pi_tm1, log_pi_t, log_mu_tm1, mask_t=None, lambda_=1.0):
    return q_targets(q_tm1=q_tm1, q_t=q_t, a_tm1=a_tm1, r_t=r_t, discount_t=discount_t, mask_t=mask_t, log_pi_tm1=log_pi_tm1,
                     log_pi_t=log_pi_t, log_mu_tm1=log_mu_tm1, trace=lambda log_rho, _: lambda_ * clipped_exp(log_rho, 1.0))

def of_other_numbers(*, v_tm1, v_t, r_t, discount_t, log_rho_tm1, mask_t=None):
    return Targets(tf.cast(v_tm1, tf.float64), v_tm1)

def never_finite(*, v_tm1, **others):
    return Targets(v_tm1 - np.inf, v_tm1)

def of_every_action(*, q_tm1, **others):
    return QTargets(q_tm1, q_tm1)

class Boards(tf.Module):
    def __init__(self, seed):
        self.layer = tf.keras.layers.Dense(64, "relu", kernel_initializer=tf.keras.initializers.GlorotUniform(seed))
    def __call__(self, observation, is_first):
        return self.layer(tf.cast(tf.reshape(observation, [-1, int(np.prod(observation.shape[2:]))]), tf.float32))

class Whole(Boards):
    def __call__(self, observation, is_first):
        return observation

class Failing(Boards):
    def __init__(self):
        raise RuntimeError("no such luck")

class OfArrays(Boards):
    def __call__(self, observation, is_first):
        return super().__call__(tf.constant(observation.numpy()), is_first)

class OfSix(Boards):
    def __call__(self, observation, is_first):
        return tf.reshape(super().__call__(observation, is_first), [6, -1])[: is_first.shape[0] * is_first.shape[1]]

class MakesLayers(Boards):
    def __call__(self, observation, is_first):
        return tf.keras.layers.Dense(5)(super().__call__(observation, is_first))

class Exiting(Boards):
    def __init__(self):
        import os
        os._exit(3)

class Split(Boards):
    def __init__(self, seed, environment):
        super().__init__(seed)
        self.environment = environment
    def __call__(self, observation, is_first):
        seen = split(observation, self.environment)
        return super().__call__(tf.concat([seen["hint.0"], seen["noise"]], axis=-1), is_first)

class Bits(gymnasium.Env):
    \"\"\"Say which of two bits are set; an observation of parts and an action of two.\"\"\"
    observation_space = gymnasium.spaces.Dict({
        "hint": gymnasium.spaces.Tuple([gymnasium.spaces.Box(0.0, 1.0, (2,))]),
        "noise": gymnasium.spaces.Box(-1.0, 1.0, (3,)),
    })
    action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)])
    def _observe(self):
        return {"hint": (self._bits.astype(np.float32),), "noise": self.np_random.uniform(-1, 1, 3).astype(np.float32)}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bits = self.np_random.integers(2, size=2)
        return self._observe(), {}
    def step(self, action):
        return self._observe(), float(np.mean(np.array(action) == self._bits)), True, False, {}

class Sticks(Bits):
    def close(self):
        raise OSError("stuck")

class Asserts(Bits):
    def __init__(self):
        assert self.action_space is None

def pairs(num_environments):
    from impala.environments.catch import Catch
    return Catch(num_environments=num_environments)

number = 5
"""
AGENT = """
from impala.agents.actor_critic import *

def make_schedules(config, total_frames=None):
    return lambda frames: dict(learning_rate=config.agent.rate, entropy_cost=0.01, epsilon=1e-5)
"""

HALF_AGENT = """
from impala.agents import actor_critic

def check(config, spec):
    pass

class Checks:
    locals().update(vars(actor_critic))
    check = staticmethod(lambda config, spec: {}["rate"])
"""
WRONG_AGENTS = """
import numpy as np
from types import SimpleNamespace

from impala.agents import actor_critic, q_learning
from impala.acting.behaviours import Behaviour
from impala.types import Discrete

def of(agent, **other):
    return SimpleNamespace(**vars(agent) | other)

def more_actions(config, spec, **kwargs):
    return q_learning.make_network(config, spec._replace(actions=Discrete(spec.actions.num_actions + 3)), **kwargs)

def other_choice(config, spec, **kwargs):
    behaviour = q_learning.make_behaviour(config, spec, **kwargs)
    return behaviour._replace(choose=lambda numbers, random: (numbers[0], behaviour.choose(numbers, random)[1]))

def other_loss(config, network, group=None):
    learner = q_learning.make_learner(config, network, group=group)
    learner._loss = lambda outputs: 0.0
    return learner

network = of(q_learning, make_network=more_actions)
chunk = of(q_learning, make_chunk_spec=lambda *_, **__: None)
behaviour = of(q_learning, make_behaviour=lambda *_, **__: None)
choice = of(q_learning, make_behaviour=other_choice)
schedules = of(actor_critic, make_schedules=lambda *_: lambda frames: 3)
loss = of(q_learning, make_learner=other_loss)
"""
AGENT_OF = {  # by program: the shipped agent that one's own is made of
    "impala": "actor_critic", "seed": "actor_critic", "ga3c": "actor_critic", "a3c": "actor_critic", "dppo": "ppo",
    "dqn": "q_learning", "apex": "q_learning", "gorila": "q_learning",
}  # fmt: skip
OF_AGENT = {"actor_critic": "my_parts.all:one_step", "q_learning": "my_parts.all:own_retrace", "ppo": "clip"}
OPTIONAL = ("make_batches", "make_statistics", "use_statistics")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a user's modules, on this process's path too."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "my_parts").mkdir()
    (folder / "my_parts" / "__init__.py").write_text("")
    (folder / "my_parts" / "all.py").write_text(textwrap.dedent(MODULE.replace('\\"', '"')))
    (folder / "my_parts" / "agent.py").write_text(AGENT)
    for name in set(AGENT_OF.values()):
        (folder / "my_parts" / f"{name}.py").write_text(f"from impala.agents.{name} import *\n")
    (folder / "my_parts" / "half_agent.py").write_text(HALF_AGENT)
    (folder / "my_parts" / "wrong.py").write_text(WRONG_AGENTS)
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("from my_package.inner import thing\n")
    (folder / "my_package" / "inner.py").write_text("thing = 1\n")
    (folder / "my_games.py").write_text(
        "import gymnasium\ngymnasium.register('MyPole-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=50)\n"
    )
    (folder / "my_parts" / "broken.py").write_text("import numpy\n1 / 0\n")
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


def catch(**overrides):
    data = {"environment": {"name": "catch"}, "network": {"torso": "mlp"}, "learner": {"batch_size": 8}}
    return config_lib.build(data, {key.replace("__", "."): value for key, value in overrides.items()})


def of_program(program, agent, **overrides):
    """The program's configuration of Catch with an agent of one's own that has the shipped one's settings."""
    data = config_lib.as_data(config_lib.load(f"configs/{program}_catch.yaml".replace("impala_", "")))
    return config_lib.build(data, {"agent.name": agent} | {key.replace("__", "."): value for key, value in overrides.items()})


# --- the words


@pytest.mark.parametrize("word, expected", [
    ("my_module:Torso", True), ("a.b.c:d.e", True), ("shallow", False), ("a.b:", False), (":x", False), ("a:b:c", False),
    ("a b:c", False), ("my:Game-v0", False), ("1a:b", False), (None, False), (5, False),
])  # fmt: skip
def test_which_words_are_ones_own(word, expected):
    assert own.is_own(word) == expected


def test_attributes_and_modules_of_a_package_are_found(folder):
    assert own.load("my_parts.all:one_step").__name__ == "one_step"
    assert own.load("my_parts:agent").__name__ == "my_parts.agent"
    assert own.load("my_parts:all.Bits").__name__ == "Bits"
    for word, says in (("my_parts.all:nothing", "my_parts.all has no nothing"), ("nowhere:x", "No module named 'nowhere'")):
        with pytest.raises(ImportError, match=re.escape(says)):
            own.load(word)


def test_a_part_gets_the_arguments_that_it_takes():
    assert own.call(lambda seed: seed, seed=3, other=4) == 3
    assert own.call(lambda **all_: all_, seed=3, other=4) == dict(seed=3, other=4)
    assert own.call(lambda: 1, seed=3) == 1


def test_file_and_hash(folder):
    path = folder / "my_parts" / "agent.py"
    before = own.file_and_hash("my_parts.agent:x")
    assert before.startswith(f"{path} sha256:")
    path.write_text(AGENT + "\n")
    assert own.file_and_hash("my_parts.agent:x") != before
    assert own.file_and_hash("my_parts:agent") == own.file_and_hash("my_parts.agent:make_network")
    assert own.file_and_hash("my_parts:all.Bits") == own.file_and_hash("my_parts.all:Bits") != "of no file"
    assert own.file_and_hash("my_parts:nothing").startswith(f"{folder}/my_parts/__init__.py sha256:")
    path.write_text(AGENT)
    assert own.file_and_hash("my_parts.agent:x") == before
    package = own.file_and_hash("my_package:thing")
    assert package.startswith(f"{folder}/my_package/__init__.py sha256:")
    (folder / "my_package" / "inner.py").write_text("thing = 2\n")
    assert own.file_and_hash("my_package:thing") != package, "what it imports from its own files is its own, too"
    package = own.file_and_hash("my_package:thing")
    (folder / "my_package" / ".#inner.py").symlink_to("nobody@nowhere")  # as an editor leaves it
    (folder / "my_package" / "folder.py").mkdir()
    assert own.file_and_hash("my_package:thing") == package
    (folder / "my_package" / "empty.py").touch()
    assert own.file_and_hash("my_package:thing") != package
    assert own.file_and_hash("nowhere.at_all:x") == own.file_and_hash("sys:x") == "of no file"


# --- training


@pytest.mark.soak
def test_an_agent_a_torso_a_correction_and_an_environment_of_parts_train_in_processes(folder, tmp_path):
    """One of each at once, in the current folder of the command, as a user has them; `versions.txt` names the file."""
    data = {
        "environment": {"name": "my_parts.all:Bits"}, "network": {"torso": "my_parts.all:Split"},
        "loss": {"correction": "my_parts.all:one_step", "clip_rho": 2.0}, "learner": {"batch_size": 8},
        "agent": {"name": "my_parts:agent", "rate": 3e-3},
        "actor": {"num_environments": 16, "num_environment_threads": 1}, "total_frames": 400_000, "target_return": 0.9,
    }  # fmt: skip
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(data))
    result = running.run("train", "--config", tmp_path / "own.yaml", "--run", tmp_path / "run", cwd=folder, timeout=120)
    assert result.returncode == 0, result.stderr
    rows = read_csv(tmp_path / "run" / "metrics.csv")
    assert float(rows[-1]["return_mean"]) >= 0.9  # blind play brings 0.5
    versions = (tmp_path / "run" / "versions.txt").read_text()
    file = f"{folder}/my_parts/all.py sha256:"
    for key, name in (("environment.name", "Bits"), ("network.torso", "Split"), ("loss.correction", "one_step")):
        assert f"{key} my_parts.all:{name} {file}" in versions
    assert f"agent.name my_parts:agent {folder}/my_parts/agent.py sha256:" in versions


@pytest.mark.parametrize("program", [
    pytest.param(name, marks=pytest.mark.soak) if name in ("impala", "seed", "ga3c", "a3c", "dqn", "apex") else name for name in AGENT_OF
])  # fmt: skip
def test_they_train_in_every_program_by_an_agent_with_no_more_than_is_asked_for(folder, program, monkeypatch):
    name = AGENT_OF[program]
    config = of_program(
        program, "my_parts:chosen", environment__name="my_parts.all:pairs", network__torso="my_parts.all:Boards",
        loss__correction=OF_AGENT[name], actor__num_actors=1, **{"replay__min_size": 64} if name == "q_learning" else {},
    )  # fmt: skip
    shipped = importlib.import_module(f"impala.agents.{name}")
    optional = {member: getattr(shipped, member) for member in OPTIONAL if hasattr(shipped, member)}
    chosen = types.SimpleNamespace(**{member: getattr(shipped, member) for member in agents.members(config)}, **optional)
    monkeypatch.setattr("my_parts.chosen", chosen, raising=False)
    monkeypatch.setattr(own_parts, "subprocess", types.SimpleNamespace(run=tried_out_here))
    checking.check(config)
    training = lockstep.of(config)
    before = [v.numpy() for v in training.network.trainable_variables]
    update = next(training.updates(10**6))
    weights = training.weights().arrays if config.has_parameter_server else [v.numpy() for v in training.network.trainable_variables]
    training.close()
    assert np.isfinite(update.metrics["loss"]) and any((a != b).any() for a, b in zip(weights, before, strict=True))


@pytest.mark.soak
@pytest.mark.parametrize("program", AGENT_OF)
def test_an_agent_of_ones_own_trains_in_the_processes_of_every_program(folder, tmp_path, program):
    name = AGENT_OF[program]
    config = of_program(program, f"my_parts:{name}", total_frames=20_000, target_return=None)
    (tmp_path / "own.yaml").write_text(config_lib.dump(config))
    result = running.run("train", "--config", tmp_path / "own.yaml", "--run", tmp_path / "run", cwd=folder, timeout=300)
    assert result.returncode == 0, result.stderr
    assert int(read_csv(tmp_path / "run" / "metrics.csv")[-1]["updates"]) > 0
    file = (folder / "my_parts" / f"{name}.py")
    hashed = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    assert f"agent.name my_parts:{name} {file} sha256:{hashed}\n" in (tmp_path / "run" / "versions.txt").read_text()


@pytest.mark.parametrize("word, keys", [
    pytest.param("q_unrolls_catch", {}, marks=pytest.mark.soak), ("dqn_catch", {"replay.min_size": 100}),
    pytest.param("r2d2_catch", {"replay.min_size": 300}, marks=pytest.mark.soak),
])  # fmt: skip
def test_a_correction_of_action_values_of_ones_own_is_the_shipped_one_if_it_says_the_same(folder, word, keys, monkeypatch):
    monkeypatch.setattr(own_parts, "subprocess", types.SimpleNamespace(run=tried_out_here))

    def weights_with(correction):
        config = config_lib.load(f"configs/{word}.yaml", keys | {"loss.correction": correction, "loss.lambda": 0.7})
        checking.check(config)
        training = lockstep.of(config)
        updates = training.updates(10**6)
        for _ in range(3):
            next(updates)
        return [v.numpy() for v in training.network.trainable_variables]

    for mine, shipped in zip(weights_with("my_parts.all:own_retrace"), weights_with("retrace"), strict=True):
        np.testing.assert_array_equal(mine, shipped)


def test_an_agent_of_ones_own_with_a_setting_of_its_own(folder, monkeypatch):
    monkeypatch.setattr(own_parts, "subprocess", types.SimpleNamespace(run=tried_out_here))
    config = catch(agent__name="my_parts:agent", agent__rate=1e-3)
    checking.check(config)
    training = Lockstep(config)
    before = [v.numpy() for v in training.network.trainable_variables]
    list(training.updates(500))
    assert any((v.numpy() != b).any() for v, b in zip(training.network.trainable_variables, before))
    assert float(training.learner.optimizer.learning_rate) == pytest.approx(1e-3)


def test_what_a_run_was_begun_with_can_be_read_again(folder):
    config = catch(agent__name="my_parts:agent", agent__rate=1e-3, network__torso="my_parts.all:Boards")
    assert config_lib.build(yaml.safe_load(config_lib.dump(config))) == config


def test_a_function_that_makes_environments_all_at_once(folder):
    assert checking.check(catch(environment__name="my_parts.all:pairs")).actions == Discrete(3)


def test_a_gymnasium_id_behind_the_module_that_registers_it(folder):
    config = catch(environment__name="my_games:MyPole-v0")
    assert checking.check(config).actions == Discrete(2)
    assert own.file_and_hash(config.environment.name).startswith(f"{folder}/my_games.py sha256:")


# --- mistakes


def tried_out_here(command, *, input, capture_output):
    """What the other process does, in this one."""
    assert command[-1].endswith("own_parts.answer()") and capture_output
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input)))
        own_parts.answer()
    return subprocess.CompletedProcess(command, 0, said.getvalue().encode(), b"")


@pytest.mark.parametrize("overrides, says", [
    (dict(network__torso="nowhere:Torso"), "network.torso: 'nowhere:Torso' cannot be imported: ModuleNotFoundError"),
    (dict(network__torso="my_parts.all:Toso"), "network.torso: 'my_parts.all:Toso' cannot be imported: ImportError: my_parts.all has no Toso"),
    (dict(network__torso="my_parts.broken:x"), "ZeroDivisionError: division by zero"),
    (dict(network__torso="my_parts.all:Failing"), "fails when it is tried out: RuntimeError: no such luck"),
    (dict(network__torso="my_parts.all:OfArrays"), "fails when it is tried out: AttributeError"),
    (dict(network__torso="my_parts.all:OfSix"), "fails when it is tried out: InvalidArgumentError"),
    (dict(network__torso="my_parts.all:MakesLayers"), "fails when it is tried out: ValueError"),
    (dict(loss__correction="my_parts.all:never_finite"), "returns target_tm1 that is not finite where all that it is given is 1"),
    (dict(network__torso="my_parts.all:Exiting"), "network.torso: 'my_parts.all:Exiting' ended the process that tried them out, status 3"),
    (dict(network__torso="my_parts.all:Whole"), "returns float32 of shape (3, 2, 10, 5); expected a float32 tensor [6, F]"),
    (dict(network__torso="my_parts.all:number"), "network.torso: 'my_parts.all:number' is 5; expected a class or a function"),
    (dict(loss__correction="my_parts.all:too_short"), "returns target_tm1 of shape (2, 2) for [T, B] = (3, 2)"),
    (dict(loss__correction="my_parts.all:other_arguments"), "cannot be called: missing a required argument: 'v'"),
    (dict(loss__correction="my_parts.all:of_nothing"), "without target_tm1; expected impala.corrections.Targets"),
    (dict(program="dqn", loss__correction="my_parts.all:one_step"), "expected a function of the keyword arguments q_tm1, q_t, a_tm1"),
    (dict(program="dqn", loss__correction="my_parts.all:of_every_action"), "returns target_tm1 of shape (3, 2, 4) for [T, B] = (3, 2)"),
    (dict(agent__name="my_parts:half_agent"), "agent.name: 'my_parts:half_agent' has no make_network, make_behaviour"),
    (dict(agent__name="my_parts.half_agent:Checks"), "agent.name: 'my_parts.half_agent:Checks' fails when it is tried out: KeyError: 'rate'"),
    (dict(agent__name="my_parts:nothing"), "agent.name: 'my_parts:nothing' cannot be imported"),
    (dict(agent__name="my_parts:agent"), "AttributeError: 'OwnAgentConfig' object has no attribute 'rate'"),
    (dict(loss__correction="my_parts.all:of_other_numbers"), "returns target_tm1 of float64; expected float32"),
    (dict(program="dqn", agent__name="my_parts.wrong:network"), "has a network with outputs of shape (6,); its behaviour expects (3,)"),
    (dict(program="dqn", agent__name="my_parts.wrong:chunk"), "returns NoneType from make_chunk_spec; expected impala.types.Chunk"),
    (dict(program="dqn", agent__name="my_parts.wrong:behaviour"), "returns NoneType from make_behaviour; expected impala.acting.behaviours.Behaviour"),
    (dict(program="dqn", agent__name="my_parts.wrong:choice"), "chooses actions of shape (2, 3) for 2 environments; expected (2,)"),
    (dict(program="dqn", agent__name="my_parts.wrong:loss"), "takes 1 positional argument but 2 were given"),
    (dict(agent__name="my_parts.wrong:schedules"), "returns 3 from its schedules; expected a mapping of arguments, with learning_rate"),
    (dict(environment__name="nowhere:Game"), "environment.name: 'nowhere:Game' cannot be made: No module named 'nowhere'"),
    (dict(environment__name="my_parts.all:number"), "environment.name: 'my_parts.all:number' cannot be made"),
    (dict(environment__name="my_parts.all:Asserts"), "'my_parts.all:Asserts' cannot be made: AssertionError: ("),
    (dict(environment__name="my_parts.all:Sticks"), "'my_parts.all:Sticks' fails when it is closed: OSError: stuck ("),
    (dict(environment__name="my_parts.all:Bits"),
     "network.torso: 'mlp' takes one array, and my_parts.all:Bits has observations of several parts (hint.0 (2,), noise (3,))"),
])  # fmt: skip
def test_mistakes_are_one_line(folder, overrides, says, monkeypatch):
    if "Exiting" not in str(overrides):  # parts are tried out in another process, which imports TensorFlow: once is enough
        monkeypatch.setattr(own_parts, "subprocess", types.SimpleNamespace(run=tried_out_here))
    if "my_parts.wrong" in str(overrides):
        shipped = config_lib.load(f"configs/{overrides.get('program', 'catch')}_catch.yaml".replace("catch_catch", "catch"))
        config = config_lib.build(config_lib.as_data(shipped), {key.replace("__", "."): value for key, value in overrides.items()})
    else:
        config = catch(**overrides)
    with pytest.raises(ConfigError) as caught:
        checking.check(config)
    (line,) = caught.value.lines
    assert says in line and "\n" not in line


@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_run_whose_agent_is_not_to_be_found_here_is_refused_in_a_line(folder, capsys, tmp_path, command):
    text = config_lib.dump(catch(agent__name="my_parts:agent", agent__rate=1e-3)).replace("my_parts:agent", "elsewhere:agent")
    (tmp_path / "config.yaml").write_text(text)
    (line,) = running.refused(capsys, command, tmp_path)
    assert line == "agent.name: 'elsewhere:agent' cannot be imported: ModuleNotFoundError: No module named 'elsewhere'"


@pytest.mark.parametrize("program", AGENT_OF)
def test_what_a_program_asks_for_and_an_agent_lacks_is_one_line(folder, program, monkeypatch, capsys, tmp_path):
    config = of_program(program, "my_parts:chosen")
    everything = {**vars(importlib.import_module(f"impala.agents.{AGENT_OF[program]}"))}
    for member in agents.members(config):
        chosen = types.SimpleNamespace(**{name: value for name, value in everything.items() if name != member})
        monkeypatch.setattr("my_parts.chosen", chosen, raising=False)
        with pytest.raises(ConfigError) as caught:
            checking.check(config)
        (line,) = caught.value.lines
        assert line.startswith(f"agent.name: 'my_parts:chosen' has no {member}; expected all of check, make_network")
        assert line.endswith(f"with program={program}")
    (tmp_path / "own.yaml").write_text(config_lib.dump(config))  # and by the command, of the last one
    assert running.refused(capsys, "train", "--config", tmp_path / "own.yaml", "--run", tmp_path / "run") == [line]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("program, setting", [("dqn", "n_step"), ("apex", "n_step"), ("gorila", "target_period")])
@pytest.mark.parametrize("value", [None, 0, "one"])
def test_settings_that_a_program_reads_are_asked_for(folder, program, setting, value):
    data = config_lib.as_data(of_program(program, "my_parts:q_learning"))
    data["agent"] |= {setting: value}
    with pytest.raises(ConfigError) as caught:
        checking.check(config_lib.build(data))
    (line,) = caught.value.lines
    assert line == f"agent.{setting}={value}: 'my_parts:q_learning' is asked for it with program={program}; expected 1 or more"


@pytest.mark.parametrize("program, wrong, words", [
    ("dqn", {"EXPLORATION": "how_much"}, "has EXPLORATION 'how_much'; expected a column of metrics.csv"),
    ("apex", {"make_ladder": lambda config, count=None: np.ones(3)}, "has a make_ladder of 3 rungs; expected 16, one for each of all environments"),
])  # fmt: skip
def test_how_much_an_agent_explores_is_shown_in_a_column_that_there_is(folder, monkeypatch, program, wrong, words):
    own_column = vars(importlib.import_module("impala.agents.q_learning")) | wrong
    monkeypatch.setattr("my_parts.chosen", types.SimpleNamespace(**own_column), raising=False)
    monkeypatch.setattr(own_parts, "subprocess", types.SimpleNamespace(run=tried_out_here))
    with pytest.raises(ConfigError, match=f"'my_parts:chosen' {words}"):
        checking.check(of_program(program, "my_parts:chosen"))


def test_every_shipped_agent_has_what_its_programs_ask_for():
    for program, names in config_lib.uses.AGENTS.items():
        for name in names:
            config = config_lib.build({"program": program, "environment": {"name": "x"}, "agent": {"name": name}})
            assert not [member for member in agents.members(config) if not hasattr(agents.of(config), member)]
            assert all(getattr(config.agent, setting) >= 1 for setting in agents.settings(config)), (program, name)


def test_the_command_refuses_before_anything_starts(folder, tmp_path):
    arguments = ["train", "catch", "--run", tmp_path / "run", "--loss.correction", "my_parts.all:too_short"]
    result = running.run(*arguments, cwd=folder, timeout=60)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "run").exists()


# --- observations and actions of several parts


class Composite(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        picture=gymnasium.spaces.Box(0, 255, (2, 3), np.uint8), place=gymnasium.spaces.Discrete(3, start=1),
        inner=gymnasium.spaces.Tuple([gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)]),
    )  # fmt: skip
    action_space = gymnasium.spaces.Tuple([
        gymnasium.spaces.Discrete(3, start=5), gymnasium.spaces.MultiBinary(2), gymnasium.spaces.MultiDiscrete([4, 2]),
    ])  # fmt: skip
    taken, leaves_out = None, ()

    def _observe(self):
        seen = dict(picture=np.arange(6, dtype=np.uint8).reshape(2, 3), place=2, inner=(np.float32([0.5]), 1))
        return {name: part for name, part in seen.items() if name not in self.leaves_out}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(tuple(np.asarray(part).astype(space.dtype) for part, space in zip(action, self.action_space)))
        type(self).taken = action
        return self._observe(), 0.0, False, False, {}


@pytest.fixture
def composite():
    gymnasium.register("Composite-v0", entry_point=Composite)
    yield gymnasium_environment.Gymnasium("Composite-v0", num_environments=2)
    gymnasium.registry.pop("Composite-v0")


def test_a_dict_is_flattened_and_taken_apart_again(composite):
    spec = composite.spec
    # gymnasium's Dict sorts nothing here: the order in which the parts were written
    assert [name for name, _ in spec.parts] == ["picture", "place", "inner.0", "inner.1"]
    assert spec.observation == ArraySpec((6 + 3 + 1 + 2,), np.float32)
    observation = composite.reset(0).observation
    np.testing.assert_array_equal(observation, [[0, 1, 2, 3, 4, 5, 0, 1, 0, 0.5, 0, 1]] * 2)
    seen = parts.split(tf.constant(observation[None]), spec)
    np.testing.assert_array_equal(seen["picture"], np.arange(6).reshape(1, 1, 2, 3).repeat(2, axis=1))
    np.testing.assert_array_equal(seen["place"][0, 1], [0, 1, 0])
    assert seen["inner.0"].shape == (1, 2, 1)


def test_bytes_stay_bytes():
    space = gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 255, (2,), np.uint8)] * 2)
    spec, observe, names = gymnasium_environment._observations(space)
    assert spec == ArraySpec((4,), np.uint8) and [name for name, _ in names] == ["0", "1"]
    seen = observe((np.uint8([[1, 2]]), np.uint8([[3, 4]])))
    assert seen.dtype == np.uint8 and seen.tolist() == [[1, 2, 3, 4]]


def test_a_tuple_of_discrete_actions_is_multi_discrete(composite):
    assert composite.spec.actions == MultiDiscrete((3, 2, 2, 4, 2))
    composite.reset(0)
    composite.send(np.int32([[0, 0, 0, 0, 0], [2, 1, 0, 3, 1]]))
    composite.receive()
    one, two, three = Composite.taken
    assert one == 7 and list(two) == [1, 0] and list(three) == [3, 1]


def test_a_part_that_is_missing_is_named(composite, monkeypatch):
    assert composite.fault(8) is None
    monkeypatch.setattr(Composite, "leaves_out", ("inner",))
    assert composite.fault(8) == "observation has no part inner.0; expected Box(-1.0, 1.0, (1,), float32) there"


@pytest.mark.parametrize("space", [
    gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-1, 1, (1,))]),
    gymnasium.spaces.Dict(one=gymnasium.spaces.Discrete(2)),
])  # fmt: skip
def test_other_composite_actions_are_refused_by_name(space):
    assert gymnasium_environment._actions(space)[0] is None


def test_unsupported_parts_are_refused_by_name():
    class Talks(Composite):
        observation_space = gymnasium.spaces.Dict(says=gymnasium.spaces.Text(5))

    gymnasium.register("Talks-v0", entry_point=Talks)
    try:
        with pytest.raises(ConfigError, match="'Talks-v0' cannot be made: Talks-v0 has observations Dict\\('says': Text"):
            checking.check(catch(environment__name="Talks-v0"))
    finally:
        gymnasium.registry.pop("Talks-v0")


def test_a_spec_with_parts_is_of_one_array_for_everybody_else():
    spec = EnvironmentSpec("x", ArraySpec((3,), np.float32), Discrete(2), parts=(("a", ArraySpec((), np.float32)), ("b", ArraySpec((2,), np.float32))))
    seen = parts.split(tf.constant([[[1.0, 2.0, 3.0]]]), spec)
    assert seen["a"].shape == (1, 1) and seen["b"].numpy().tolist() == [[[2.0, 3.0]]]
