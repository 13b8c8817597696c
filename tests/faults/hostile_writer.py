"""Writes to a run's queue what no actor writes."""

import numpy as np
import reverb

from impala import config as config_lib
from impala import environments
from impala.replay import tables
from impala.types import Origin, chunk_spec, zeros


def write(address: str, *kinds: str) -> list[str]:
    """Writes a chunk of each kind to the table at HOST:PORT; returns the kinds that Reverb refused."""
    config = config_lib.load("configs/catch.yaml")
    spec = environments.make("catch", num_environments=1).spec
    sound = zeros(chunk_spec(spec, config.learner.unroll_length))
    origin = Origin(run=config.seed, actor=0, environment=0, incarnation=1, seq=10**5)
    sound = sound._replace(origin=np.array(origin, np.int64))
    hostile = {
        "action": sound._replace(a_tm1=np.full_like(sound.a_tm1, 7)),
        "task": sound._replace(origin=np.array(origin._replace(task=3), np.int64)),
        "version": sound._replace(weights_version=np.int64(10**9)),
        "number": sound._replace(r_t=np.full_like(sound.r_t, np.nan)),
        "observation": sound._replace(observation=np.full_like(sound.observation, np.inf)),
        "logits": sound._replace(logits_tm1=np.full_like(sound.logits_tm1, np.nan)),
        "reward": sound._replace(r_t=np.full_like(sound.r_t, 1e30)),
        "episode": sound._replace(is_first=np.ones_like(sound.is_first), r_t=np.ones_like(sound.r_t)),
        "origin": sound._replace(origin=np.array(origin._replace(seq=2**50), np.int64)),
        "unreadable": sound._replace(a_tm1=np.zeros(3, np.float64)),
        "short": sound._replace(a_tm1=sound.a_tm1[:-1], r_t=sound.r_t[:-1], discount_t=sound.discount_t[:-1]),
        "missing": sound,
        "unknown": sound,
    }
    client, refused = reverb.Client(address), []
    for kind in kinds:
        fields = {name: value for name, value in hostile[kind]._asdict().items() if not isinstance(value, tuple)}
        try:
            with client.trajectory_writer(num_keep_alive_refs=1, validate_items=False) as writer:
                writer.append(fields)
                names = [name for name in fields if (kind, name) != ("missing", "r_t")]
                table = "nobody's" if kind == "unknown" else tables.QUEUE
                writer.create_item(table, 1.0, {name: writer.history[name][-1] for name in names})
                writer.flush()
        except RuntimeError:
            refused.append(kind)
    return refused
