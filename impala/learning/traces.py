"""A `tf.function` for small networks."""

from collections.abc import Callable

import tensorflow as tf


class Traced:
    """Compiles a function of nested tensors and arrays; traced anew for other shapes.

    To find a trace for nested arguments takes a `tf.function` as long as a small network's gradient. Here they are
    found by the shapes alone: the structure and the dtypes must be the same in all calls.

    Args:
      function: its arguments may hold None, too.
      jit_compile: compile with XLA.
    """

    def __init__(self, function: Callable, *, jit_compile: bool = False):
        self._function, self._jit_compile = function, jit_compile
        self._traces: dict[tuple, Callable] = {}

    def __call__(self, *arguments):
        leaves = tf.nest.flatten(arguments)
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]
        key = tuple(None if leaf is None else tuple(leaf.shape) for leaf in leaves)
        if key not in self._traces:
            is_none = tf.nest.map_structure(lambda leaf: leaf is None, arguments)  # the trace must not keep a batch
            self._traces[key] = self._trace(is_none, tensors)
        return self._traces[key](*tensors)

    def _trace(self, is_none, tensors: list[tf.Tensor]):
        def of_tensors(*flat):
            flat = iter(flat)
            leaves = [None if none else next(flat) for none in tf.nest.flatten(is_none)]
            return self._function(*tf.nest.pack_sequence_as(is_none, leaves))

        compiled = tf.function(of_tensors, jit_compile=self._jit_compile, autograph=False)
        return compiled.get_concrete_function(*tensors)
