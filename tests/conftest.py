import atexit
import gc
import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job inherits that it is ignored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `impala` sets it: one arithmetic in all processes
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"  # what is computed here is small
os.environ["RAY_worker_niceness"] = "0"  # 15 by default: nodes on a test's hosts would starve beside other tests
if "PYTEST_XDIST_WORKER" in os.environ:
    # Called last. Freeing hundreds of graphs takes ten seconds of all cores, for which pytest would wait.
    atexit.register(os._exit, 0)


def _freeze(phase, info):
    """Leaves what outlived a full collection out of the next ones, which would take a second each among many graphs."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


gc.callbacks.append(_freeze)


def pytest_collection_modifyitems(items):
    """Long files, those that wait, and short ones by turns, as workers take them in this order; none of the first last.

    The long ones start processes: beside each other they would be slow, and files that wait would leave cores idle.
    """
    names = {
        "programs", "lab", "test_lockstep.py", "test_notebooks.py", "test_groups.py", "test_bench.py",
        "test_equality.py",
    }  # fmt: skip
    files: dict = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = [path for path in files if names & set(path.parts)]
    waits = {"launching", "test_trials.py", "test_prioritised.py", "test_datasets.py"}
    waiting = [path for path in files if waits & set(path.parts)]
    short = [path for path in files if path not in {*long, *waiting}]
    places = {path: 0.9 * number / len(long) for number, path in enumerate(long)}
    places |= {path: 0.8 * number / len(waiting) for number, path in enumerate(waiting)}
    places |= {path: number / len(short) for number, path in enumerate(short)}
    items.sort(key=lambda item: places[item.path])
