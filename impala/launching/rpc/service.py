"""What a server does with a call: check the token, decode, call the handler, encode, or return a status."""

import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from impala.launching.rpc import codec, tokens
from impala.launching.rpc.connection import CALL_PATH, LIST_PATH, Request
from impala.launching.rpc.status import StatusCode, code_of

MAX_ERROR_BYTES = 8 * 2**10  # an error travels as gRPC metadata, which is small

_GRPC_CODES = {StatusCode(code.value[0]): code for code in grpc.StatusCode}


class Service(grpc.GenericRpcHandler):
    """Serves Call and ListMethods; bytes in, bytes out."""

    def __init__(
        self,
        lookup: Callable[[str], Callable[..., Any] | None],
        names: Callable[[], list[str]],
        token: str | None,
    ):
        """Serve the handlers that `lookup` finds, and the list of `names`, to those who hold the token."""
        self._lookup = lookup
        self._names = names
        self._token = token
        self._paths = {
            CALL_PATH: grpc.unary_unary_rpc_method_handler(self._call),
            LIST_PATH: grpc.unary_unary_rpc_method_handler(self._list_methods),
        }
        # As a stream, so that a stranger's message is refused before it is read.
        self._refusal = grpc.stream_unary_rpc_method_handler(_refuse)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Choose what serves a call; None is UNIMPLEMENTED."""
        if not tokens.is_authorised(self._token, handler_call_details.invocation_metadata):
            return self._refusal
        return self._paths.get(handler_call_details.method)

    def _list_methods(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        return codec.encode(self._names())

    def _call(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        request = _read(message, context)
        handler = self._lookup(request.method)
        if handler is None:
            _abort(context, StatusCode.NOT_FOUND, f"method {request.method} not found")
        try:
            result = handler(*request.args, **request.kwargs)
        except BaseException as error:  # even KeyboardInterrupt and SystemExit go to the caller
            code, text = code_of(error), _traceback(error)
            _abort(context, code, f"Python exception was raised on the server:\n{text}")
        try:
            return codec.encode(result, compress=codec.is_compressed(message))
        except (TypeError, codec.CodecError) as error:
            _abort(context, StatusCode.INTERNAL, f"the reply of {request.method}: {error}")


def _read(message: bytes, context: grpc.ServicerContext) -> Request:
    try:
        request = codec.decode(message)
    except codec.CodecError as error:
        _abort(context, StatusCode.INVALID_ARGUMENT, f"the request cannot be read: {error}")
    is_sound = (
        isinstance(request, Request)
        and type(request.method) is str
        and type(request.args) is tuple
        and type(request.kwargs) is dict
        and all(type(key) is str for key in request.kwargs)
    )
    if not is_sound:
        _abort(context, StatusCode.INVALID_ARGUMENT, "the request is not a method with arguments and keyword arguments")
    return request


def _refuse(messages, context: grpc.ServicerContext) -> NoReturn:
    hint = f"set {tokens.TOKEN_FILE_VARIABLE} to the file of the run's token"
    _abort(context, StatusCode.UNAUTHENTICATED, f"the call carries no token, or a wrong one: {hint}")


def _abort(context: grpc.ServicerContext, code: StatusCode, message: str) -> NoReturn:
    context.abort(_GRPC_CODES[code], _shorten(message))


def _traceback(error: BaseException) -> str:
    # Without our own frame, the first one.
    return "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next)).rstrip()


def _shorten(message: str) -> str:
    data = message.encode("utf-8", "replace")
    if len(data) <= MAX_ERROR_BYTES:
        return data.decode()
    # The end of a traceback says the most.
    head, tail = data[: MAX_ERROR_BYTES // 8], data[-MAX_ERROR_BYTES * 3 // 4 :]
    return f"{head.decode(errors='ignore')}\n[… cut …]\n{tail.decode(errors='ignore')}"
