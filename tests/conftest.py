import os
import signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job inherits that it is ignored
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # as `impala` sets it: one arithmetic in all processes
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_NUM_INTRAOP_THREADS"] = os.environ["TF_NUM_INTEROP_THREADS"] = "1"  # what is computed here is small
os.environ["RAY_worker_niceness"] = "0"  # 15 by default: nodes on a test's hosts would starve beside other tests


def pytest_collection_modifyitems(items):
    """The long files first, so that none of them is left for one worker at the end."""
    long = {
        "programs", "lab", "test_lockstep.py", "test_notebooks.py", "test_groups.py", "test_bench.py",
        "test_equality.py",
    }  # fmt: skip
    items.sort(key=lambda item: not long & set(item.path.parts))
