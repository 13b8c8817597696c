"""`impala export RUN`: the newest weights of a run as a SavedModel, which loads without this package.

    model = tf.saved_model.load("runs/pong/export")
    model.act(frames, is_first)                                                    → {"logits": [N, A], "value": [N]}
    model.act(observation, is_first, last_action, last_reward, core_state)         → also {"core_state": [N, …]}

The second form is for a network with a core. Where actions are not discrete, logits are the parameters described in
`impala.distributions`; with PopArt the value is [N, K], one for each task. `frames` [k, N, …] are the last k
observations of N environments, oldest first, zero where they are older than the episode; is_first is [1, N];
last_action and last_reward [1, N] are those that led to the last observation; core_state is zero at first, and then
what the last call returned. A network of action values returns {"q": [N, A]} instead of logits and value, in the
units of rewards also where it learns them rescaled (R2D2), a deterministic policy {"action": [N, D], "value": [N]}.

Continuous actions are within [−1, 1] (clip what is sampled); an environment with the bounds low and high takes
low + (a + 1) / 2 · (high − low). Of a dict or tuple observation, `impala.json` names the parts in the order in which
they are flattened and joined.
"""

import json
import sys
import tempfile
from pathlib import Path

from impala import config as config_lib
from impala.evaluation import load_network, require_run


def export(folder: Path, output: Path) -> Path:
    """Writes the SavedModel of the run in `folder` into `output`, which must not exist; returns `output`.

    `output` also holds `impala.json`: the environment, its actions, parts of its observation and stacked frames, and
    frames and updates trained.

    Raises:
      ConfigError: there is no run, it holds no checkpoint, or `output` exists.
    """
    import tensorflow as tf

    from impala.losses.r2d2 import unscaled
    from impala.nodes import hangs
    from impala.nodes.checking import check

    if output.exists():
        raise config_lib.ConfigError([f"--output {output}: exists already; expected a new folder"])
    config = config_lib.load(folder / "config.yaml", {"network.bfloat16": False})  # it may be served anywhere
    with hangs.watched(config, "is made and tried for a few steps"):
        spec = check(config)
        network, state = load_network(folder, config)
    shape, dtype = spec.observation
    inputs = [tf.TensorSpec([spec.num_stacked, None, *shape], dtype), tf.TensorSpec([1, None], tf.bool)]
    if network.core_state_shape:
        inputs += [
            tf.TensorSpec([1, None, *spec.actions.array.shape], spec.actions.array.dtype),
            tf.TensorSpec([1, None], tf.float32),
            tf.TensorSpec([None, *network.core_state_shape], tf.float32),
        ]  # fmt: skip

    @tf.function(input_signature=inputs, autograph=False)
    def act(*inputs):
        outputs = network(*inputs)
        names = [name for name in ("q", "action", "logits", "value") if hasattr(outputs, name)]
        result = {name: getattr(outputs, name)[0] for name in names}
        if getattr(config.agent, "value_rescaling", False):
            result["q"] = unscaled(result["q"])
        if getattr(outputs, "moments", ()):  # PopArt: [N, K], one for each task, in the game's own units
            mean, scale = outputs.moments
            result["value"] = mean + scale * result["value"]
        return result | ({"core_state": outputs.core_state} if network.core_state_shape else {})

    model = tf.Module()
    model.network, model.act = network, act
    about = dict(
        environment=spec.name, actions={type(spec.actions).__name__: spec.actions._asdict()},
        parts={name: list(part.shape) for name, part in spec.parts},
        num_stacked=spec.num_stacked, frames=state["frames"], updates=state["updates"],
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.") as parent:
            written = Path(parent) / "model"
            tf.saved_model.save(model, str(written), signatures={"serving_default": act})
            (written / "impala.json").write_text(json.dumps(about, indent=1) + "\n")
            written.rename(output)
    except (OSError, tf.errors.OpError) as error:
        words = getattr(error, "strerror", None) or getattr(error, "message", error)
        line = f"--output {output}: {words}; expected a folder that can be made and written"
        raise config_lib.ConfigError([line]) from None
    return output


def main(folder: Path, output: Path | None) -> int:
    """The command `impala export`."""
    require_run(folder)
    from impala.learning import checkpoints

    try:
        written = export(folder, output or folder / "export")
    except checkpoints.Unusable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{written} · load it with tf.saved_model.load")
    return 0
