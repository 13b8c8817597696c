"""Writes what is no window to a run's replay table at HOST:PORT, with PRIORITY: Reverb takes it from anybody.

A priority below 0 ends the table's thread; an infinite one makes the sum of all infinite.
"""

import os
import sys

import numpy as np
import reverb
from reverb import errors

from impala.replay import tables

if __name__ == "__main__":
    writer = reverb.Client(sys.argv[1]).trajectory_writer(num_keep_alive_refs=1, validate_items=False)
    writer.append({"x": np.float32(1)})
    writer.create_item(tables.REPLAY, float(sys.argv[2]), {"x": writer.history["x"][-1:]})
    try:
        writer.flush(timeout_ms=2_000)
    except errors.DeadlineExceededError as error:
        print("the table took", error, flush=True)
    os._exit(0)  # a writer that is closed waits for the table, and for the one that comes back too
