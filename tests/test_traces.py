"""Compiled functions that are found by the shapes of what they are given."""

import time
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from impala.traces import Traced, directly


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


def test_it_returns_what_the_function_itself_does():
    """Names, Nones and tensors that occur twice; variables that it reads and changes."""
    variable = tf.Variable(1.0)

    def function(x):
        variable.assign_add(x)
        y = variable * 2.0
        return {"b": (y, None), "a": Pair(x, [y])}

    traced = Traced(function)
    for x, total in ((1.0, 2.0), (2.0, 4.0)):
        found = traced(np.float32(x))
        assert float(variable) == total
        assert set(found) == {"a", "b"} and isinstance(found["a"], Pair) and found["b"][1] is None
        assert (float(found["a"].one), float(found["a"].other[0]), float(found["b"][0])) == (x, 2 * total, 2 * total)


def test_a_function_that_returns_nothing_acts_all_the_same():
    variable = tf.Variable([1.0, 2.0])

    def doubled():
        variable.assign(2.0 * variable)

    traced = Traced(doubled)
    assert traced() is None and traced() is None
    assert variable.numpy().tolist() == [4.0, 8.0]


def test_what_fails_in_it_is_raised_with_its_words():
    def function(x):
        with tf.control_dependencies([tf.debugging.assert_positive(x, message="not above 0")]):
            return tf.identity(x)

    traced = Traced(function)
    traced(np.float32(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not above 0"):
        traced(np.float32(-1))


def test_its_call_takes_less_time_than_a_concrete_functions():
    """Half of it, on a machine where it is alone: it is what the module is for."""
    weights = tf.Variable(tf.ones([8, 8]))
    trace = tf.function(lambda x: tf.tanh(x @ weights), autograph=False).get_concrete_function(tf.ones([4, 8]))
    calls, x, seconds = (trace, directly(trace)), tf.ones([4, 8]), ([], [])
    for _ in range(30):
        for call, all_seconds in zip(calls, seconds):
            started = time.perf_counter()
            for _ in range(30):
                call(x)
            all_seconds.append(time.perf_counter() - started)
    assert min(seconds[1]) < 0.9 * min(seconds[0])
    np.testing.assert_array_equal(calls[0](x), calls[1](x))
