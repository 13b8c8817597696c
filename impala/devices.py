"""What this machine computes on, read without importing TensorFlow."""

import ctypes.util
import functools
import importlib.util
import os
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})


def num_gpus() -> int:
    """Returns how many GPUs the learners may use; 0 if there are no CUDA libraries."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    has_cuda = importlib.util.find_spec("nvidia") or ctypes.util.find_library("cudart")  # of [gpu], or the system's
    if visible in ("", "-1") or not has_cuda:
        return 0
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return min(present, len(visible.split(","))) if visible else present


@functools.cache
def processor_has_bfloat16() -> bool:
    """Returns whether the processor multiplies bfloat16 itself; without that, bfloat16 is slower than float32."""
    lines = _CPUINFO.read_text().splitlines()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ())
    return not _BFLOAT16_FLAGS.isdisjoint(flags)
