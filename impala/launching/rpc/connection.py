"""One client's channel to one server: calls, their deadlines, their repetition while the server is away."""

import functools
import threading
import time
from concurrent import futures
from typing import Any, NamedTuple

import grpc

from impala.launching.rpc import codec, tls, tokens
from impala.launching.rpc.pending import PendingCall, Schedule
from impala.launching.rpc.status import StatusCode, StatusNotOk

CALL_PATH = "/courier.CourierService/Call"
LIST_PATH = "/courier.CourierService/ListMethods"

_LIST_TIMEOUT_SECONDS = 10.0
_STOP_CHECK_SECONDS = 0.2
_METADATA_BYTES = 64 * 2**10  # for a status message of 8 KiB, whose percent-encoding may triple it
_TRANSPORT_CODES = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAUTHENTICATED)


@codec.register
class Request(NamedTuple):
    """What a call sends. The path in an error message starts with one of its field names."""

    method: str
    args: tuple
    kwargs: dict


class Connection:
    """Makes calls. The first one opens the channel, so a client may be built, pickled and forked before."""

    def __init__(
        self,
        address: str,
        *,
        timeout_seconds: float | None,
        wait_for_ready: bool,
        compress: bool = False,
        stop_event: threading.Event | None = None,
    ):
        """Describe the server and the calls; see `Client`."""
        self.address = address
        self._timeout_seconds = timeout_seconds
        self._wait_for_ready = wait_for_ready
        self._compress = compress
        self._stop_event = stop_event
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None

    def __del__(self):
        try:
            if self._channel is not None:
                self._channel.close()
        except Exception:  # the interpreter is going down, or __init__ failed
            pass

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method and wait for its result.

        Raises:
          TypeError, CodecError: the arguments cannot be sent, and were not.
          StatusNotOk: the call failed; CANCELLED if the stop event ended the wait.
        """
        if self._stop_event is not None:
            return self._wait(self.start(method, *args, **kwargs))
        request = self._encode(method, args, kwargs)
        schedule = Schedule(self._timeout_seconds)
        self._open()
        while True:
            try:  # gRPC's blocking form takes half the time of a future
                return self._decode(method, self._stub(request, **self._options(schedule)))
            except grpc.RpcError as error:
                status = self._status_of(method, error)
            if not self._is_repeatable(status):
                raise status
            time.sleep(schedule.next_pause_seconds())

    def start(self, method: str, /, *args: Any, **kwargs: Any) -> futures.Future:
        """Call a method and return its future, which never counts as running: it can be cancelled until done.

        Raises:
          TypeError, CodecError: the arguments cannot be sent, and were not.
        """
        request = self._encode(method, args, kwargs)
        schedule = Schedule(self._timeout_seconds)
        self._open()

        def send() -> grpc.Future:
            return self._stub.future(request, **self._options(schedule))

        return PendingCall(send, functools.partial(self._receive, method), self._is_repeatable, schedule).future

    def list_methods(self) -> list[str]:
        """List what the server offers.

        Raises:
          StatusNotOk: there is no answer within 10 seconds, or it is an error.
        """
        self._open()
        options = self._options(Schedule(_LIST_TIMEOUT_SECONDS)) | {"wait_for_ready": True}
        try:
            return self._decode("list_methods", self._channel.unary_unary(LIST_PATH)(b"", **options))
        except grpc.RpcError as error:
            raise self._status_of("list_methods", error) from None

    def _open(self) -> None:
        with self._lock:
            if self._channel is None:
                token = tokens.read_token()
                self._metadata = () if token is None else ((tokens.METADATA_KEY, token),)
                target, options = _target(self.address), _channel_options()
                if tls.is_on():
                    channel = grpc.secure_channel(target, tls.channel_credentials(), options + tls.channel_options())
                else:
                    channel = grpc.insecure_channel(target, options=options)
                self._stub = channel.unary_unary(CALL_PATH)
                self._channel = channel

    def _encode(self, method: str, args: tuple, kwargs: dict) -> bytes:
        return codec.encode(Request(method, args, kwargs), compress=self._compress)

    def _options(self, schedule: Schedule) -> dict[str, Any]:
        return {
            "timeout": schedule.remaining_seconds(),
            "wait_for_ready": self._wait_for_ready,
            "metadata": self._metadata,
        }

    def _receive(self, method: str, attempt: grpc.Future) -> Any:
        if attempt.code() is not grpc.StatusCode.OK:
            raise self._status_of(method, attempt)
        return self._decode(method, attempt.result())

    def _decode(self, method: str, reply: bytes) -> Any:
        try:
            return codec.decode(reply)
        except codec.CodecError as error:
            raise StatusNotOk(f"the reply of {method}: {error}", StatusCode.INTERNAL) from error

    def _status_of(self, method: str, error: grpc.RpcError) -> StatusNotOk:
        code, message = StatusCode(error.code().value[0]), error.details() or ""
        if code is StatusCode.UNKNOWN and message == "Stream removed":  # gRPC's words where the connection broke
            code = StatusCode.UNAVAILABLE
        if code in _TRANSPORT_CODES:  # gRPC says neither what was called nor where
            message = f"{message} [{method} at {self.address}]"
        return StatusNotOk(message, code)

    def _is_repeatable(self, status: StatusNotOk) -> bool:
        return self._wait_for_ready and status.code is StatusCode.UNAVAILABLE

    def _wait(self, future: futures.Future) -> Any:
        try:
            while not self._stop_event.is_set():
                if futures.wait([future], _STOP_CHECK_SECONDS).done:
                    return future.result()
        finally:
            future.cancel()  # does nothing to one that is done
        raise StatusNotOk(f"the wait for {self.address} was stopped", StatusCode.CANCELLED)


def _target(address: str) -> str:
    # Servers bind 127.0.0.1 unless told otherwise; on the name "localhost" gRPC would try [::1] as well, and
    # show the token to whoever listens there.
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host == "localhost" else address


def _channel_options() -> list[tuple[str, int]]:
    return [
        # The codec has its own limit for what is sent.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", codec.max_bytes()),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        # gRPC's decompression has no limit; the codec's has.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # A cluster's HTTP proxy leads out of the cluster.
        ("grpc.enable_http_proxy", 0),
        # A host that vanished under a call is noticed after 30 s; one that is back is reached within 5 s.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]
