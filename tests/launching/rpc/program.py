"""Run by test_launchpad.py, in a process of its own: a program whose nodes pass arrays to each other.

Usage: program.py LAUNCH_TYPE RESULT_FILE. Nodes: an adder (CourierNode) and a caller (PyNode).
"""

import sys

from impala.launching import rpc

rpc.install()

import datetime  # noqa: E402
import json  # noqa: E402
import pathlib  # noqa: E402

import launchpad as lp  # noqa: E402
import numpy as np  # noqa: E402
from absl import app, logging  # noqa: E402


class Adder:
    def __init__(self):
        timeout = datetime.timedelta(seconds=20)
        self.double = lp.batched_handler(batch_size=2, timeout=timeout)(self.double)

    def add(self, array, number):
        return array + number

    def double(self, array):
        return {"doubled": 2 * array, "batch": [len(array)] * len(array)}


class Caller:
    def __init__(self, adder, result_file):
        self._adder = adder
        self._result_file = result_file

    def run(self):
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        added = self._adder.add(array, number=1)  # launchpad#28: hangs with the wheel's courier
        pending = [self._adder.futures.double(np.full(2, i)) for i in range(2)]
        doubled = [future.result(60) for future in pending]
        result = {
            "added": added.tolist(),
            "dtype": str(added.dtype),
            "doubled": [item["doubled"].tolist() for item in doubled],
            "batch": [item["batch"] for item in doubled],
            "client": type(self._adder).__module__,
            "tensorflow": "tensorflow" in sys.modules,
        }
        pathlib.Path(self._result_file).write_text(json.dumps(result))
        lp.stop()


def make_program(result_file):
    program = lp.Program("arrays")
    with program.group("adder"):
        adder = program.add_node(lp.CourierNode(Adder))
    adder.set_client_kwargs(call_timeout=60)
    with program.group("caller"):
        program.add_node(lp.PyClassNode(Caller, adder, result_file))
    return program


def main(argv):
    launch_type, result_file = argv[1:]
    logging.info("launching as %s", launch_type)
    kwargs = {"terminal": "output_to_files"} if launch_type == "local_mp" else {}
    launched = lp.launch(make_program(result_file), launch_type=launch_type, **kwargs)
    if launched is not None:
        launched.wait()


if __name__ == "__main__":
    app.run(main)
