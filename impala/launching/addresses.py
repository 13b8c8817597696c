"""Where the nodes of a program on a cluster are found: a table that every process reads when it needs an address."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import launchpad as lp

TABLE_VARIABLE = "IMPALA_ADDRESSES"  # holds the path of the table in the processes of nodes


def key(node: str, port: str) -> str:
    """Returns the key of one of a node's ports."""
    return f"{node}:{port}"


class LookedUp(lp.AbstractAddressBuilder):
    """Finds an address when it is used: where a node stands is known only after the program was made."""

    def __init__(self, node: str, port: str):
        self._key = key(node, port)

    def build(self) -> str:
        return read(Path(os.environ[TABLE_VARIABLE]))[self._key]


def write(path: Path, table: Mapping[str, str]) -> None:
    """Writes the table {key: "host:port"}, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(dict(table)))
    temporary.replace(path)


def read(path: Path) -> dict[str, str]:
    """Returns the table."""
    return json.loads(path.read_text())
