"""Mutual TLS between nodes, with Ray's switch and Ray's files, so that a cluster is configured once.

RAY_USE_TLS=1, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT: a certificate, its key, and the certificate
of the authority that signed it. Each side shows its certificate and asks for the other's. A server's certificate must
name the address that clients call or, if IMPALA_TLS_NAME is set, that name.
"""

import os
from pathlib import Path

import grpc

_SWITCH = "RAY_USE_TLS"
_FILES = ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT")
_NAME_VARIABLE = "IMPALA_TLS_NAME"


def is_on() -> bool:
    """Returns whether calls are encrypted."""
    return os.environ.get(_SWITCH, "0").lower() in ("1", "true")


def server_credentials() -> grpc.ServerCredentials:
    """Returns what a server shows and asks for.

    Raises:
      RuntimeError: a variable or its file is missing.
    """
    key, certificate, authority = _read()
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=authority, require_client_auth=True)


def channel_credentials() -> grpc.ChannelCredentials:
    """Returns what a client shows and asks for; raises as `server_credentials`."""
    key, certificate, authority = _read()
    return grpc.ssl_channel_credentials(root_certificates=authority, private_key=key, certificate_chain=certificate)


def channel_options() -> list[tuple[str, str]]:
    """Returns the option that expects IMPALA_TLS_NAME in a server's certificate; [] (its host's name) if not set."""
    name = os.environ.get(_NAME_VARIABLE)
    return [("grpc.ssl_target_name_override", name)] if name else []


def _read() -> list[bytes]:
    contents = []
    for variable in _FILES:
        path = os.environ.get(variable)
        if not path:
            raise RuntimeError(f"{_SWITCH} is set and {variable} is not; expected the path of a PEM file")
        try:
            contents.append(Path(path).read_bytes())
        except OSError as error:
            raise RuntimeError(f"{variable}={path} cannot be read: {error.strerror}") from error
    return contents
