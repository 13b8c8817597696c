"""How many operations run at once changes how long an update takes, not its result."""

import subprocess

from tests import warm

CODE = """
import hashlib, sys
import numpy as np
import tensorflow as tf
from impala import agents, config
from impala.agents import shared
from impala.bench import parts
from impala.launching import processes

processes.set_tensorflow_threads(1, int(sys.argv[1]))
assert tf.config.threading.get_inter_op_parallelism_threads() == int(sys.argv[1])
chosen = config.load("configs/dqn_pong.yaml", {"agent.target_period": 2, "learner.batch_size": 4})
spec = parts.make_environment(chosen, 1).spec
network = agents.of(chosen).make_network(chosen, spec)
learner = agents.of(chosen).make_learner(chosen, network)
batch = next(iter(shared.make_batches(chosen, network, spec, 0, 0)(parts.random_batch(chosen, spec))))
before = network.trainable_variables[0].numpy()
for _ in range(3):
    learner.update(batch, 1e-3)
assert np.abs(network.trainable_variables[0].numpy() - before).max() > 1e-3
print(hashlib.sha256(b"".join(v.numpy().tobytes() for v in network.variables)).hexdigest())
"""


def test_parallel_operations_make_the_same_weights_bit_for_bit():
    commands = [["-c", CODE, str(number)] for number in (1, 2)]
    running = [warm.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    outputs = [process.communicate(timeout=120) for process in running]
    assert all(process.returncode == 0 for process in running), outputs
    assert outputs[0][0] == outputs[1][0] != ""
