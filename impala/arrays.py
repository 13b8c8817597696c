"""Where arrays lie in memory."""

import math
from collections.abc import Sequence

import numpy as np

_ALIGNMENT = 64  # bytes; TensorFlow copies an array that begins elsewhere


def empty(shape: Sequence[int], dtype=np.float32) -> np.ndarray:
    """Returns an array of no particular values, at an address where TensorFlow uses an array without copying it."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)
