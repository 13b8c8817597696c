"""What only TensorFlow can tell before a run, in a process that ends afterwards: the launcher does without TensorFlow.

Parts of the user's own are tried out there, and a network's tensors counted, each of which one shard of a parameter
server can hold.
"""

import inspect
import json
import pickle
import subprocess
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from impala import agents, own
from impala.agents import shared
from impala.config import Config, ConfigError
from impala.monitoring import metrics
from impala.types import Chunk, EnvironmentSpec, map_fields, zeros

# Where none of the user's code is: a traceback's last line outside of these is where the mistake is.
_PACKAGE = f"{Path(agents.__file__).parents[1]}/"
_LIBRARIES, _STANDARD = sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")
_ANSWER = "own parts: "  # begins our line on stdout, where the parts may print, too


def check_agent(config: Config, spec: EnvironmentSpec) -> None:
    """Checks an agent of the user's own: that it has what the program asks for, and accepts the configuration.

    Raises:
      ConfigError: it cannot be imported, lacks one of `agents.members` or `agents.settings`, or its `check` fails.
    """
    word, program = config.agent.name, f"with program={config.program}"
    try:
        agent = own.load(word)
    except (Exception, SystemExit) as error:
        raise ConfigError([f"agent.name: {word!r} cannot be imported: {told(error)}"]) from None
    every = agents.members(config)
    if missing := [name for name in every if not hasattr(agent, name)]:
        expected = f"expected all of {', '.join(every)} {program}"
        raise ConfigError([f"agent.name: {word!r} has no {', '.join(missing)}; {expected}"])
    for name in agents.settings(config):
        value = getattr(config.agent, name, None)
        if type(value) is not int or value < 1:
            raise ConfigError([f"agent.{name}={value}: {word!r} is asked for it {program}; expected 1 or more"])
    try:
        agent.check(config, spec)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError([f"agent.name: {word!r} fails when it is tried out: {told(error)}"]) from None


def try_out(config: Config, spec: EnvironmentSpec) -> None:
    """Makes and calls the configured parts of the user's own on zeros, and makes the network that shards divide.

    Raises:
      ConfigError: a part cannot be imported, takes other arguments, or returns something of another shape; there are
        more shards than tensors.
    """
    code = (
        f"import sys; sys.path[:] = {sys.path}; from impala.launching import processes; processes.end_with_parent(); "
        "from impala.nodes import own_parts; own_parts.answer()"
    )
    result = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((config, spec)), capture_output=True)
    answers = [line for line in result.stdout.decode(errors="replace").splitlines() if line.startswith(_ANSWER)]
    if not answers:  # the parts ended the process
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing on stderr"]
        words = ", ".join(f"{key}: {word!r}" for key, word in config.own_parts.items()) or "the network"
        raise ConfigError([f"{words} ended the process that tried them out, status {result.returncode}: {last[0]}"])
    if lines := json.loads(answers[-1].removeprefix(_ANSWER)):
        raise ConfigError(lines)


def answer() -> None:
    """What that process does: reads configuration and environment from stdin, writes what is wrong to stdout."""
    import os

    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    config, spec = pickle.load(sys.stdin.buffer)
    tests = {"network.torso": _torso, "loss.correction": _correction, "agent.name": _agent}
    lines = []
    for key, word in config.own_parts.items():
        try:
            problem = tests[key](config, spec, word)
        except (Exception, SystemExit) as error:
            problem = f"fails when it is tried out: {told(error)}"
        lines += [f"{key}: {word!r} {problem}"] if problem else []
    if config.has_parameter_server and not lines:
        lines = _shards(config, spec)
    print("\n" + _ANSWER + json.dumps(lines), flush=True)  # on a line of its own, whatever the parts printed


def _shards(config: Config, spec: EnvironmentSpec) -> list[str]:
    num_shards = config.server.num_shards
    num_tensors = len(agents.of(config).make_network(config, spec, on_cpu=True).trainable_variables)
    if num_shards <= num_tensors:
        return []
    network = f"the {num_tensors} tensors of the network"
    return [f"server.num_shards={num_shards}: more than {network}; expected at most {num_tensors}"]


def _imported(word: str, test: Callable) -> str | None:
    try:
        part = own.load(word)
    except (Exception, SystemExit) as error:
        return f"cannot be imported: {told(error)}"
    return test(part) if callable(part) else f"is {part!r}; expected a class or a function"


def _torso(config: Config, spec: EnvironmentSpec, word: str) -> str | None:
    import tensorflow as tf

    from impala.networks import torsos
    from impala.networks.features import Features

    def test(_):
        network = config.network
        torso = torsos.make(
            word, spec, hidden_sizes=network.hidden_sizes, normalisation=network.normalisation, seed=config.seed,
            bfloat16=shared.uses_bfloat16(config, on_cpu=False),
        )  # fmt: skip
        shape, dtype = spec.observation
        # As in a run: called once, then compiled, for a learner's batch and for an actor's.
        for called in (torso, tf.function(torso, autograph=False)):
            for n, b in ((3, 2), (1, 1)):
                found = called(tf.zeros([n + spec.num_stacked - 1, b, *shape], dtype), tf.ones([n, b], tf.bool))
                values = found.values if isinstance(found, Features) else found
                expected = f"a float32 tensor [{n * b}, F] for {n} observations of {b} environments"
                if not tf.is_tensor(values):
                    return f"returns {type(values).__name__}; expected {expected}"
                if values.dtype != tf.float32 or values.shape.rank != 2 or values.shape[0] != n * b:
                    return f"returns {values.dtype.name} of shape {tuple(values.shape)}; expected {expected}"
        is_module = isinstance(torso, tf.Module)
        return None if is_module else f"makes a {type(torso).__name__}; expected a tf.Module, whose variables are found"

    return _imported(word, test)


def _correction(config: Config, spec: EnvironmentSpec, word: str) -> str | None:
    import tensorflow as tf

    from impala.agents import actor_critic, q_learning

    def test(_):
        shape, num_actions = (3, 2), 4
        if config.own_correction_is_of is None:
            return None
        if config.own_correction_is_of == "values":
            make, names, wanted = actor_critic.make_correction, "v_tm1 v_t r_t discount_t log_rho_tm1 mask_t", "Targets"
        else:
            make, wanted = q_learning.make_correction, "QTargets"
            names = "q_tm1 q_t a_tm1 r_t discount_t log_pi_tm1 log_pi_t log_mu_tm1 mask_t"
        ones = {name: tf.ones(shape) for name in names.split()}
        of_actions = [name for name in ones if name.startswith(("q_", "log_pi_", "log_mu_"))]
        ones |= dict.fromkeys(of_actions, tf.ones((*shape, num_actions)))
        ones |= {"a_tm1": tf.ones(shape, tf.int32)} if "a_tm1" in ones else {}
        correction = make(config.loss)
        try:
            inspect.signature(correction).bind(**ones)
        except TypeError as error:
            return f"cannot be called: {error}; expected a function of the keyword arguments {', '.join(ones)}"
        found = tf.function(correction, autograph=False)(**ones)
        for name in ("target_tm1", "advantage_tm1") if wanted == "Targets" else ("target_tm1",):
            if not hasattr(found, name):
                return f"returns {type(found).__name__} without {name}; expected impala.corrections.{wanted}"
            array = tf.convert_to_tensor(getattr(found, name))
            if array.shape != shape:
                return f"returns {name} of shape {tuple(array.shape)} for [T, B] = {shape}; expected the same"
            if array.dtype != tf.float32:
                return f"returns {name} of {array.dtype.name}; expected float32"
            if not tf.reduce_all(tf.math.is_finite(array)):
                return f"returns {name} that is not finite where all that it is given is 1"
        return None

    return _imported(word, test)


def _agent(config: Config, spec: EnvironmentSpec, word: str) -> str | None:
    agent, asked = own.load(word), agents.members(config)
    # Two chunks are enough; a parameter server's workers begin with a whole batch anyway. XLA is for GPUs.
    sizes = {"jit_compile": False} | ({} if config.has_parameter_server else {"batch_size": 2})
    config = config.model_copy(update={"learner": config.learner.model_copy(update=sizes)})
    chunk = agent.make_chunk_spec(config, spec, **({"version_per_step": True} if config.has_central_inference else {}))
    if not isinstance(chunk, Chunk):
        return f"returns {type(chunk).__name__} from make_chunk_spec; expected impala.types.Chunk"
    network = agent.make_network(config, spec, on_cpu=True)
    if problem := _behaves(agent.make_behaviour(config, spec, greedy=False), network, spec):
        return problem
    numbers = agent.make_schedules(config)(0)
    if not isinstance(numbers, Mapping) or "learning_rate" not in numbers:
        return f"returns {numbers!r} from its schedules; expected a mapping of arguments, with learning_rate"
    learner = agent.make_learner(config, network, group=None)
    batch = _blank(config, network, spec, chunk)
    if "make_differentiator" in asked:
        agent.make_differentiator(config, network)(batch, **_without_optimizers(numbers))
    else:
        learner.update(batch, **numbers)
    if "make_exploration" in asked:
        amount = agent.make_exploration(config, spec)(0)
        agent.make_behaviour(config, spec, explore=lambda: amount)
    if "make_ladder" in asked:
        agents.behaviour_of_lane(config, spec, 0, 1)
        num_rungs, expected = len(agent.make_ladder(config)), config.actor.num_actors * config.actor.num_environments
        if num_rungs != expected:
            return f"has a make_ladder of {num_rungs} rungs; expected {expected}, one for each of all environments"
        agent.make_prioritise(config, network)
    if "EXPLORATION" in asked and agent.EXPLORATION not in metrics.COLUMNS:
        return f"has EXPLORATION {agent.EXPLORATION!r}; expected a column of metrics.csv, such as exploration_epsilon"
    return None


def _behaves(behaviour, network, spec: EnvironmentSpec) -> str | None:
    """Returns what is wrong with the action that a behaviour chooses by the network's outputs, for a first step."""
    import numpy as np

    from impala.acting.behaviours import Behaviour
    from impala.acting.policies import network_outputs

    if not isinstance(behaviour, Behaviour):
        return f"returns {type(behaviour).__name__} from make_behaviour; expected impala.acting.behaviours.Behaviour"
    n, (shape, dtype), action = 2, spec.observation, spec.actions.array
    window, is_first = np.zeros((spec.num_stacked, n, *shape), dtype), np.ones((1, n), bool)
    memory = ()
    if behaviour.core_state_shape is not None:
        state = np.zeros((n, *behaviour.core_state_shape), np.float32)
        memory = np.zeros((1, n, *action.shape), action.dtype), np.zeros((1, n), np.float32), state
    outputs = network_outputs(network)(window, is_first, *memory)[: len(behaviour.numbers)]
    for output, expected in zip(outputs, behaviour.numbers):
        if np.shape(output) != (n, *expected.shape):
            return f"has a network with outputs of shape {np.shape(output)[1:]}; its behaviour expects {expected.shape}"
    chosen, kept = behaviour.choose(outputs, np.random.default_rng(0))
    if np.shape(chosen) != (n, *action.shape):
        return f"chooses actions of shape {np.shape(chosen)} for {n} environments; expected {(n, *action.shape)}"
    shapes, wanted = [np.shape(array)[1:] for array in kept], [array.shape for array in behaviour.kept.values()]
    return None if shapes == wanted else f"keeps arrays of shapes {shapes} of a decision; expected {wanted}"


def _blank(config: Config, network, spec: EnvironmentSpec, chunk: Chunk):
    """Returns a batch of zeros, as the learner or a worker would get it."""
    import numpy as np
    import tensorflow as tf

    from impala.agents import shared
    from impala.replay import datasets

    size = config.learner.batch_size
    batch = datasets.stack(size * [datasets.marked(zeros(chunk), is_replayed=config.replays_alone)])
    if config.has_use_for("replay.importance_exponent"):
        batch = batch._replace(importance=np.ones(size, np.float32))
    if config.has_parameter_server and not config.replays_alone:
        return next(iter(shared.make_batches(config, network, spec, 0, 0)(batch)))
    return map_fields(tf.convert_to_tensor, batch)


def _without_optimizers(numbers: dict) -> dict:
    return {name: value for name, value in numbers.items() if name not in ("learning_rate", "epsilon")}


def told(error: BaseException) -> str:
    """Returns an error in one line, and the place in the user's files that raised it, if it is one of those."""
    text = textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder=" …")
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)
              if not frame.filename.startswith((_PACKAGE, _LIBRARIES, _STANDARD, "<"))]  # fmt: skip
    return f"{text} ({places[-1]})" if places else text
