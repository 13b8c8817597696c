"""What launchpad.nodes.courier.courier_utils builds handlers with. A handler is a callable."""

from collections.abc import Callable
from typing import Any

from impala.launching.rpc.batching import BatchedHandler, BuildBatchedHandlerWrapper

__all__ = ["BuildBatchedHandlerWrapper", "BuildPyCallHandler", "CallHandler"]


def BuildPyCallHandler(py_func: Callable[..., Any]) -> Callable[..., Any]:  # pylint: disable=invalid-name
    """Return the handler that calls a function, which is the function itself."""
    return py_func


def CallHandler(  # pylint: disable=invalid-name
    handler: Callable[..., Any], name: str, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """Call a handler in this process.

    Raises:
      ValueError: a batched handler of another name.
    """
    if isinstance(handler, BatchedHandler) and handler.name != name:
        raise ValueError(f"the handler of {handler.name} was called as {name}")
    return handler(*args, **kwargs)
