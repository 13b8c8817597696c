"""Where things lie, on logical devices: the parameters, slots and batches of a learner on the device it was given."""

from tests import warm

SCRIPT = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from impala import config as config_lib, environments, lockstep
from impala.agents.actor_critic import make_learner, make_network
from impala.replay import datasets
config = config_lib.load("configs/catch.yaml")
spec = environments.make("catch", num_environments=1).spec
with tf.device("/CPU:1"):
    network = make_network(config, spec)
    learner = make_learner(config, network)
batch = next(lockstep.Lockstep(config).updates()).batch
def column(name, field, i):
    without_time = datasets.WITHOUT_TIME | {"weights_version"}
    return field if isinstance(field, tuple) else field[i] if name in without_time else field[:, i]
chunks = [type(batch)(*(column(n, f, i) for n, f in zip(batch._fields, batch))) for i in range(8)]
batches = iter([chunks])
feeder = datasets.Feeder(lambda: iter(chunks), batch_size=8, device="/CPU:1")
placed = feeder.get(timeout_seconds=30)
assert learner.update(placed, 1e-3).applied
for tensor in [*network.trainable_variables, *learner.optimizer.variables(), *(f for f in placed if not isinstance(f, tuple))]:
    if getattr(tensor, "name", "").startswith(("Adam/iter", "Adam/learning")): continue
    assert tensor.device.endswith("CPU:1"), (getattr(tensor, "name", tensor.shape), tensor.device)
print("placed")
"""


def test_learner_and_batches_lie_on_the_learners_device():
    result = warm.run(["-c", SCRIPT], timeout=120)
    assert "placed" in result.stdout, result.stderr[-3000:]
