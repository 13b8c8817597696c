"""A node's process as a host of a cluster runs it."""

import time

from impala.launching import addresses, commands, node_host, stopping
from impala.launching.shared_memory import machine
from tests.programs.running import wait_for


def talk():
    print("words " * 500_000, end="the last one", flush=True)


def test_what_a_node_wrote_arrives_whole_before_its_end_is_told(tmp_path):
    import launchpad as lp

    program = lp.Program("talks")
    program.add_node(lp.PyNode(talk), label="talker")
    (command,) = commands.of(program, tmp_path, stopper=stopping.stop, bind=addresses.LookedUp)
    host, answers = node_host.NodeHost(), []
    job = node_host.Job(
        command.name, command.task, "a token", {}, 0.0, machine(), sees_gpu=False, prepares=False, incarnation=None,
        memory="",
    )  # fmt: skip
    host.start(job, command.data.read_bytes())
    try:
        time.sleep(5)  # it may end before it is first asked
        wait_for(lambda: answers.append(host.status()) or answers[-1].exit_status is not None, 60, "it ended")
    finally:
        host.end()
    log = b"".join(answer.log for answer in answers).decode()
    assert answers[-1].exit_status == 0 and len(answers) >= 4 and log.count("words") == 500_000
    assert log.endswith("the last one")
