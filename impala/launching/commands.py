"""From a Launchpad program to the commands of its processes, without starting any."""

import functools
import os
import signal
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Command(NamedTuple):
    """Starts one node."""

    name: str  # of the node: "actor/0"
    argv: list[str]
    environment: dict[str, str]  # variables on top of the launcher's


def of(program, folder: Path, environment_of: Callable[[str], Mapping[str, str]]) -> list[Command]:
    """Returns a command for each node of an `lp.Program`.

    The steps are those of `lp.launch` with `local_mp`, which would then hand the processes to a watcher of its own.
    What the nodes are pickled to lies in `folder` and is needed for as long as nodes may be started again.

    Args:
      environment_of: (label of a group of nodes) → variables for their processes.
    """
    from launchpad import context
    from launchpad.nodes.python.local_multi_processing import PythonProcess

    stopper = functools.partial(os.kill, os.getpid(), signal.SIGTERM)  # what `lp.stop()` calls in a node
    for label, nodes in program.groups.items():
        resources = PythonProcess(env=dict(environment_of(label)))
        for node in nodes:
            node.launch_context.initialize(context.LaunchType.LOCAL_MULTI_PROCESSING, resources, stopper)
    for label, nodes in program.groups.items():
        for node in nodes:
            for handle in node.input_handles:
                handle.connect(node, label)
    for node in program.get_all_nodes():
        node.bind_addresses()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        executables = [
            executable
            for label, nodes in program.groups.items()
            for executable in nodes[0].to_executables(nodes, label, nodes[0].launch_context)
        ]
    finally:
        tempfile.tempdir = before
    return [Command(each.title, each.command_as_list, dict(each.env_overrides)) for each in executables]
