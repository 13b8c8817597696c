"""Arrays that TensorFlow takes over without a copy."""

import numpy as np
import pytest

from impala.arrays import empty


@pytest.mark.parametrize("shape, dtype", [((), np.float32), ((3, 5), np.uint8), ((7, 11), np.float64)])
def test_an_empty_array_is_where_tensorflow_wants_it(shape, dtype):
    for _ in range(20):
        array = empty(shape, dtype)
        assert array.shape == shape and array.dtype == dtype and array.ctypes.data % 64 == 0
        array[...] = 3
        assert (array == 3).all() and array.flags.c_contiguous and array.flags.writeable
