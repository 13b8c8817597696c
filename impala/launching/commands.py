"""From a Launchpad program to the commands of its processes, without starting any."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

_DATA_FILE = "job.pkl"


class Command(NamedTuple):
    """Starts one node."""

    name: str  # of the node: "actor/0"
    data: Path  # the functions of all nodes of its group, pickled
    task: int  # which of them
    ports: tuple[str, ...]  # names of the addresses that it serves


def of(program, folder: Path, *, stopper: Callable[[], None], bind: Callable) -> list[Command]:
    """Returns a command for each node of an `lp.Program`.

    The steps are those of `lp.launch` with `local_mp`, which would then hand the processes to a watcher of its own.
    The pickles lie in `folder`, and are needed for as long as nodes may be started again.

    Args:
      stopper: what `lp.stop()` calls in a node; pickled with it.
      bind: (node's name, port's name) → an `lp.AbstractAddressBuilder`.
    """
    from launchpad import context
    from launchpad.launch import serialization

    for nodes in program.groups.values():
        for node in nodes:
            node.launch_context.initialize(context.LaunchType.LOCAL_MULTI_PROCESSING, None, stopper)
    for label, nodes in program.groups.items():
        for node in nodes:
            for handle in node.input_handles:
                handle.connect(node, label)
    ports = {}
    for label, nodes in program.groups.items():
        for index, node in enumerate(nodes):
            name = f"{label}/{index}"
            ports[name] = tuple(address.name or f"port{k}" for k, address in enumerate(node.addresses))
            for address, port in zip(node.addresses, ports[name]):
                address.bind(bind(name, port))
    starts = []
    for label, nodes in program.groups.items():
        data = folder / label / _DATA_FILE
        data.parent.mkdir(parents=True)
        data.touch(mode=0o600)  # loading a pickle runs code
        serialization.serialize_functions(str(data), label, [node.function for node in nodes])
        names = [f"{label}/{index}" for index in range(len(nodes))]
        starts += [Command(name, data, task, ports[name]) for task, name in enumerate(names)]
    return starts


def argv(data: Path, task: int) -> list[str]:
    """Returns the command line that runs one of the functions in `data` as a node, on this host."""
    from launchpad.nodes import python

    entry = Path(python.__file__).with_name("process_entry.py")
    return [sys.executable, str(entry), "--data_file", str(data), "--lp_task_id", str(task)]
