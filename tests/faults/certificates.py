"""Certificates for mutual TLS, made by openssl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def make(folder: Path, names: Sequence[str] = ("IP:127.0.0.1", "DNS:localhost")) -> dict[str, str]:
    """Makes an authority, and its certificate for hosts that are called `names`; returns Ray's variables that use both."""
    folder.mkdir(exist_ok=True)
    (folder / "names").write_text(f"subjectAltName={','.join(names)}\n")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout authority.key -out authority.pem -subj /CN=authority -days 2",
        "req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=node",
        "x509 -req -in request.pem -CA authority.pem -CAkey authority.key -CAcreateserial -out certificate.pem "
        "-days 2 -extfile names",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)
    files = dict(SERVER_CERT="certificate", SERVER_KEY="key", CA_CERT="authority")
    return {"RAY_USE_TLS": "1"} | {f"RAY_TLS_{name}": str(folder / f"{file}.pem") for name, file in files.items()}
