"""Writes to a run's queue what no actor writes: `python -m tests.programs.hostile_writer HOST:PORT`, kinds on stdin."""

import sys

import numpy as np
import reverb

from impala import config as config_lib
from impala import environments
from impala.replay import tables
from impala.types import Origin, chunk_spec, zeros


def main(address: str) -> None:
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
        "origin": sound._replace(origin=np.array(origin._replace(seq=2**50), np.int64)),
        "unreadable": sound._replace(a_tm1=np.zeros(3, np.float64)),
    }
    client = reverb.Client(address)
    for kind in map(str.strip, sys.stdin):
        with client.trajectory_writer(num_keep_alive_refs=1, validate_items=False) as writer:
            fields = hostile[kind]._asdict()
            writer.append({name: value for name, value in fields.items() if not isinstance(value, tuple)})
            writer.create_item(tables.QUEUE, 1.0, {name: column[-1] for name, column in writer.history.items()})
            writer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
