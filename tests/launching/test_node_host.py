"""A node's process as a host of a cluster runs it."""

import time

from impala import config as config_lib
from impala.launching import addresses, commands, node_host, stopping
from impala.launching.shared_memory import machine
from impala.nodes import placing
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


def test_the_users_modules_are_compared_environments_among_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"environment.name": "worlds_of_one:Make", "network.torso": "torsos_of_one:Wide"}
    words = placing.placement(config_lib.build({}, keys)).own_words
    assert words == [*keys.items()]
    absent = node_host.facts(words)
    for word in keys.values():
        (tmp_path / f"{word.partition(':')[0]}.py").write_text("one")
    mine = node_host.facts(words)
    (tmp_path / "worlds_of_one.py").write_text("other")
    (line,) = node_host.differences(mine, node_host.facts(words))
    assert line.startswith("environment.name worlds_of_one:Make is ")
    lines = node_host.differences(mine, absent)
    assert len(lines) == 2 and all(" is missing there and " in line for line in lines), lines


def test_built_in_environments_are_no_modules_of_the_users():
    config = config_lib.build({}, {"environment.name": ["atari:pong", "my_games:Maze-v0"], "actor.num_actors": 2})
    assert config.own_words == [("environment.name", "my_games:Maze-v0")]
