"""Compiled functions of small networks, which are called in less time than a `tf.function`."""

from collections.abc import Callable

import tensorflow as tf


class Traced:
    """Compiles a function of nested tensors and arrays; traced anew for other shapes.

    With nested arguments, a `tf.function` takes as long to find its trace as a small network's gradient takes. Here
    traces are found by the shapes alone: structure and dtypes must be the same in all calls.

    Args:
      function: its arguments may hold None, too.
      jit_compile: compile with XLA.
    """

    def __init__(self, function: Callable, *, jit_compile: bool = False):
        self._function, self._jit_compile = function, jit_compile
        self._traces: dict[tuple, Callable] = {}

    def __call__(self, *arguments):
        leaves = tf.nest.flatten(arguments)
        given = [leaf for leaf in leaves if leaf is not None]
        key = tuple(None if leaf is None else tuple(leaf.shape) for leaf in leaves)
        if key not in self._traces:
            is_none = tf.nest.map_structure(lambda leaf: leaf is None, arguments)  # the trace must not keep a batch
            self._traces[key] = self._trace(is_none, [tf.convert_to_tensor(leaf) for leaf in given])
        return self._traces[key](*given)

    def _trace(self, is_none, tensors: list[tf.Tensor]):
        def of_tensors(*flat):
            flat = iter(flat)
            leaves = [None if none else next(flat) for none in tf.nest.flatten(is_none)]
            return self._function(*tf.nest.pack_sequence_as(is_none, leaves))

        compiled = tf.function(of_tensors, jit_compile=self._jit_compile, autograph=False)
        trace = compiled.get_concrete_function(*tensors)
        return trace if self._jit_compile else directly(trace)  # both take arrays, too


def directly(trace) -> Callable:
    """Returns a function of tensors and arrays that runs a concrete function, outside of graphs and gradient tapes.

    A concrete function's own call takes 0.1 to 0.3 ms longer, which is more than a small network does. The operation
    that runs a function within a graph skips this, takes arrays in half the time, and leaves small graphs without
    branches as they are written, where the function itself is optimized first. XLA cannot be asked for in this way.
    Where there is a GPU it returns the concrete function itself: on which device the operation puts its arguments was
    not tried.
    """
    if tf.config.list_logical_devices("GPU"):
        return trace
    captured, dtypes, structure = trace.captured_inputs, [x.dtype for x in trace.outputs], trace.structured_outputs
    is_there = [leaf is not None for leaf in tf.nest.flatten(structure)]

    def call(*given):
        outputs = iter(tf.raw_ops.StatefulPartitionedCall(args=[*given, *captured], Tout=dtypes, f=trace) or ())
        leaves = [next(outputs) if there else None for there in is_there]
        return tf.nest.pack_sequence_as(structure, leaves)

    return call
