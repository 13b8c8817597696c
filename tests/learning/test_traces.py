"""Compiled functions that are found by the shapes of what they are given."""

from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from impala.learning.traces import Traced


class Pair(NamedTuple):
    one: object
    other: object = ()


def test_it_is_traced_once_for_each_shape_and_takes_tensors_and_arrays_alike():
    shapes = []

    def scaled(pair, factors, more):
        shapes.append(tuple(pair.one.shape))
        assert pair.other == ()
        return {"sum": tf.reduce_sum(pair.one) * factors["a"], "more": more if more is not None else tf.zeros([])}

    traced = Traced(scaled)
    for size, more in ((2, None), (3, None), (2, None), (2, tf.constant(7.0)), (3, None)):
        array = np.arange(size, dtype=np.float32)
        for one in (array, tf.constant(array)):
            found = traced(Pair(one), {"a": np.float32(2)}, more)
            assert float(found["sum"]) == 2 * array.sum() and float(found["more"]) == (0 if more is None else 7)
    assert shapes == [(2,), (3,), (2,)]


def test_another_dtype_is_an_error_not_another_number():
    traced = Traced(lambda x: x + 1)
    assert int(traced(np.int32(1))) == 2
    with pytest.raises(Exception, match="float"):
        traced(np.float32(1))
