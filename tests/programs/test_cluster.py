"""Programs on a Ray cluster: real raylets as hosts, lost and found again, and what a user is told."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from impala import provenance
from impala.launching import node_host, ports, ray_cluster, ray_health
from impala.launching.restarts import Restarts
from impala.learning import checkpoints
from tests.faults import certificates
from tests.faults.figures import within
from tests.faults.hosts import (
    add_host_with_another_numpy,
    cable,
    growing_cluster,
    head,
    host_without,
    num_alive,
    ray_host,
)
from tests.programs.running import (
    CATCH,
    END_SECONDS,
    ENDLESS,
    PACED,
    ROOT,
    START_SECONDS,
    alive,
    end_of,
    ends_in_order,
    has_learned,
    has_played,
    learns_on,
    press_ctrl_c,
    restarts,
    rows,
    run,
    start,
    start_cold,
    wait_for,
    wait_until_it_trains,
)  # fmt: skip

TWO_ACTORS = ["--actor.num-actors", "2", "--actor.num-environments", "16"]
BACK_SECONDS = 150.0  # a node of an idle cluster needs 15; 60 were not enough beside other tests
LEFT_SECONDS = 30  # until no process of a run is left on any host
GROUP_SECONDS = 60  # until learners, or what holds the state, are beyond their death, where a host has room for them


@pytest.fixture(scope="module")
def cluster():
    """Three hosts: the head, where the commands are given, has room for a learner and its table, the others for an actor each."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="hosts-")  # of the nodes' scratch; short, for Ray's sockets lie there
    made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2, include_dashboard=False))
    made.hosts = [made.add_node(num_cpus=1) for _ in range(2)]
    folder = os.environ.pop("TMPDIR")
    os.environ |= {} if before is None else {"TMPDIR": before}
    yield made
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def one_host():
    with head() as address:
        yield address


def left() -> list[psutil.Process]:
    """Returns the processes that hosts of a cluster started for nodes: these, and fork servers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_ours = Path(process.environ().get("TMPDIR", "")).name.startswith(node_host.PREFIX)
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def nodes() -> dict[str, psutil.Process]:
    """Returns the processes of nodes on the hosts of a cluster, by name; none may run twice."""
    found = {}
    for process in left():
        with contextlib.suppress(psutil.Error):
            if "/" in process.name():
                other = found.setdefault(process.name(), process)
                is_child = process.ppid() == other.pid  # that has yet to run a program of its own
                assert other is process or is_child, f"{process} and {other}"
    return found


def reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1.0):
        return True
    return False


def host_of(process) -> int:
    """Returns the raylet that a node's process descends from."""
    return next(parent.pid for parent in process.parents() if parent.name() == "raylet")


@pytest.fixture
def catch(cluster, tmp_path):
    """Starts Catch on the cluster without an end; returns the process and the run's folder. All must be gone afterwards."""

    def start_it(*arguments):
        process = start(
            *CATCH, "--cluster", cluster.address, "--run", tmp_path / "run", *ENDLESS, *TWO_ACTORS, *arguments
        )
        wait_until_it_trains(tmp_path / "run", 5)
        return process, tmp_path / "run"

    yield start_it
    wait_for(lambda: not left(), 30, f"no node is left: {left()}")


@pytest.mark.soak
def test_it_learns_on_three_hosts(cluster, tmp_path):
    done = run(*CATCH, "--cluster", cluster.address, "--run", tmp_path / "run", *TWO_ACTORS)
    assert done.returncode == 0, done.stderr
    assert float(rows(tmp_path / "run")[-1]["return_mean"]) > 0.8
    wait_for(lambda: not left(), 30, "no node is left")


def test_it_trains_and_its_logs_come_home(one_host, tmp_path):
    process, folder = start(*CATCH, "--cluster", one_host, "--run", tmp_path, *ENDLESS, *TWO_ACTORS, *PACED), tmp_path
    wait_until_it_trains(folder, 5)
    assert set(nodes()) == {"learner/0", "table/0", "actor/0", "actor/1"}
    check_that_it_ends_and_its_logs_are_here(process, folder)
    assert not left()


@pytest.mark.soak
@pytest.mark.parametrize("config", ["catch", "pong"])
def test_the_first_update_comes_within_40_seconds(one_host, tmp_path, config):
    with within(40, f"{config} on a cluster of one host: the first update is done"):
        process = start_cold("train", config, "--cluster", one_host, "--run", tmp_path, *ENDLESS)
        wait_until_it_trains(tmp_path)
    ends_in_order(process)
    assert not left()


@pytest.mark.soak
def test_it_trains_on_three_hosts_and_its_logs_come_home(cluster, catch):
    process, folder = catch(*PACED)
    actors = {name: node for name, node in nodes().items() if name.startswith("actor")}
    assert len({host_of(node) for node in actors.values()}) == 2 and len(nodes()) == 4
    assert host_of(nodes()["learner/0"]) not in {host_of(node) for node in actors.values()}
    output = check_that_it_ends_and_its_logs_are_here(process, folder)
    assert re.search(r"3 hosts: .*: (table/0, learner/0|learner/0, table/0)", output), output


def check_that_it_ends_and_its_logs_are_here(process, folder) -> str:
    wait_for(lambda: float(rows(folder)[-1]["rss_actors_mb"] or 0) > 2 * 200, 60, "the memory of both actors is known")
    assert float(rows(folder)[-1]["rss_table_mb"] or 0) > 100, "of all hosts"
    with within(15, "on a cluster, Ctrl-C while it trains: the run has ended with its checkpoint"):
        output = ends_in_order(process)
    assert (folder / "logs/learner-0.log").is_file()
    assert "learning on /CPU:0" in (folder / "logs/learner/0").read_text()
    last = rows(folder)[-1]
    assert last["unsound_chunks"] == "0" and not restarts(folder)
    assert checkpoints.read_state(folder / "checkpoints")["updates"] == int(last["updates"])
    return output


@pytest.mark.soak
def test_a_host_that_is_lost_costs_its_actor_until_another_comes(cluster, catch):
    process, folder = catch()
    with within(30, "a host's raylet is killed: its actor is given up"):
        cluster.remove_node(cluster.hosts.pop(), allow_graceful=False)
        wait_for(lambda: restarts(folder), BACK_SECONDS, "the loss is noticed")
    (lost,) = [row["node"] for row in restarts(folder)]
    updates = int(rows(folder)[-1]["updates"])
    wait_for(lambda: int(rows(folder)[-1]["updates"]) > updates + 20, BACK_SECONDS, "the other actor is enough")
    assert lost not in nodes()
    with within(30, "another host joins: the actor of the lost one has a place there"):
        cluster.hosts.append(cluster.add_node(num_cpus=1))
        wait_for(lambda: lost in nodes(), BACK_SECONDS, "it has a place again")
    has_learned(folder)
    output = ends_in_order(process)
    assert f"{lost} ended with status 75 (its host, or Ray's worker there, is gone): it starts again" in output
    assert len(restarts(folder)) == 1 and rows(folder)[-1]["unsound_chunks"] == "0"


@pytest.mark.soak
def test_a_lost_host_of_the_learner_costs_what_its_checkpoint_lacks_where_the_folder_is_on_all(cluster, catch):
    large = ["--cluster.learner-cpus", 1.5, "--cluster.table-cpus", 1.5]  # more than any other host has
    host = cluster.add_node(num_cpus=5)  # room for actors, too
    process, folder = catch("--cluster.shared-folder", "true", "--checkpoint-period-seconds", 2, *large)
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    assert host_of(nodes()["learner/0"]) == host_of(nodes()["table/0"])
    saved = checkpoints.read_state(folder / "checkpoints")["updates"]
    time.sleep(3.0)  # so that the launcher has heard of as many
    cluster.remove_node(host, allow_graceful=False)
    group = ("learner/0", "table/0")
    wait_for(lambda: [row for row in restarts(folder) if row["node"] in group], BACK_SECONDS, "the loss is noticed")
    with within(GROUP_SECONDS, "the learner's host is lost, and another joins: there are more frames than before"):
        another = cluster.add_node(num_cpus=5)
        learns_on(folder)
    has_learned(folder)
    (lost,) = [row for row in restarts(folder) if row["node"] in group]
    assert int(rows(folder)[-1]["updates"]) > int(lost["updates"]) >= saved > 0
    output = ends_in_order(process)
    assert "all nodes start again, from the newest checkpoint" in output
    cluster.remove_node(another)


@pytest.mark.soak
def test_the_lost_host_of_a_second_learner_is_what_is_told_and_both_come_back(cluster, catch):
    """The first learner ends, too, since it lost its peer, perhaps before Ray knows of the host."""
    host = cluster.add_node(num_cpus=5)  # no other has room for a learner and its table
    keys = ["--learner.num-learners", 2, "--checkpoint-period-seconds", 2]
    process, folder = catch(*keys)
    assert host_of(nodes()["learner/1"]) == host_of(nodes()["table/1"]) != host_of(nodes()["learner/0"])
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    with within(GROUP_SECONDS, "the host of the second learner is lost, and another joins: there are more frames than before"):
        cluster.remove_node(host, allow_graceful=False)
        another = cluster.add_node(num_cpus=5)
        wait_for(lambda: restarts(folder), BACK_SECONDS, "the loss is noticed")
        learns_on(folder)
    output = ends_in_order(process)
    told = {row["node"] for row in restarts(folder)} & {"learner/0", "learner/1", "table/0", "table/1"}
    assert told and told <= {"learner/1", "table/1"}, restarts(folder)
    assert "all nodes start again, from the newest checkpoint" in output
    cluster.remove_node(another)


@pytest.mark.soak
def test_dqn_whose_host_is_lost_goes_on_elsewhere_where_the_folder_is_on_all(cluster, tmp_path):
    """Acting, learning and replay stand together; the copy of the table is read there, too."""
    host = cluster.add_node(num_cpus=5)
    keys = ["--cluster.shared-folder", "true", "--checkpoint-period-seconds", 2, "--replay.checkpoint-minutes", 0.1]
    keys += ["--cluster.learner-cpus", 3, "--cluster.evaluator-cpus", 0]  # no other host has as much
    folder = tmp_path / "run"
    process = start("train", "dqn_catch", "--cluster", cluster.address, "--run", folder, *ENDLESS, *keys)
    wait_until_it_trains(folder, 5)
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    wait_for(lambda: list((folder / "replay").glob("*/*/DONE")), 60, "a copy of the table")
    cluster.remove_node(host, allow_graceful=False)
    wait_for(lambda: restarts(folder), BACK_SECONDS, "the loss is noticed")
    another = cluster.add_node(num_cpus=5)
    learns_on(folder)
    has_learned(folder)
    output = ends_in_order(process)
    assert "all nodes start again, from the newest checkpoint" in output
    (said,) = [line for line in output.splitlines() if "transitions in the replay table" in line]
    assert "the first update waits" not in said, "the table is not empty"
    cluster.remove_node(another)
    wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="a host with another view of the disk needs root")
def test_a_host_that_lacks_the_folder_that_all_share_is_refused_by_name(cluster, tmp_path):
    large = ["--cluster.learner-cpus", 1.5, "--cluster.table-cpus", 1.5, "--cluster.shared-folder", "true"]
    with host_without(tmp_path, cluster.address):
        done = run(*CATCH, "--cluster", cluster.address, "--run", tmp_path / "run", *TWO_ACTORS, *large)
    assert done.returncode == 2 and f"{tmp_path}/run/token is missing there" in done.stderr, done.stderr
    assert done.stderr.count("\n") <= 3 and not left()


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="a host with another view of the disk needs root")
def test_a_learner_whose_host_is_lost_does_not_begin_anew_where_the_folder_is_not(cluster, catch, tmp_path):
    """The only host with room for it is named, and not used; a host with the folder goes on with the run."""
    keys = ["--cluster.learner-cpus", 1.5, "--cluster.table-cpus", 1.5, "--cluster.shared-folder", "true", "--cluster.wait-seconds", 20]
    host = cluster.add_node(num_cpus=5)
    process, folder = catch(*keys, "--checkpoint-period-seconds", 2)
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    with host_without(tmp_path, cluster.address):
        cluster.remove_node(host, allow_graceful=False)
        output, errors = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 75 and f"{folder}/token is missing there" in output + errors, output + errors
    another = cluster.add_node(num_cpus=5)
    done = run(*CATCH, "--cluster", cluster.address, "--run", folder, *TWO_ACTORS, *keys)
    assert done.returncode == 0 and "resum" in done.stdout, done.stdout + done.stderr
    cluster.remove_node(another)


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="process ids of one's own need root")
def test_a_host_with_process_ids_of_its_own_trains(cluster, tmp_path):
    """As a container; at a loopback address it is refused, since Reverb may crash there."""
    import ray

    command = f"{Path(sys.executable).parent}/ray start --num-cpus 5 --block --address {cluster.address}"
    hidden = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", command]
    with subprocess.Popen(hidden, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as host:
        try:
            with ray.init(cluster.address, log_to_driver=False, logging_level="ERROR"):
                wait_for(lambda: ray.cluster_resources()["CPU"] >= 2 + 5, START_SECONDS, "the host has joined")
            large = ["--cluster.actor-cpus", 2.5]  # more than any other host has
            done = run(*CATCH, "--cluster", cluster.address, "--run", tmp_path / "run", *TWO_ACTORS, *large)
        finally:
            host.kill()
    assert done.returncode == 0 and float(rows(tmp_path / "run")[-1]["return_mean"]) > 0.8, done.stderr


@pytest.mark.soak
def test_what_is_killed_comes_back_and_a_killed_driver_leaves_nothing(cluster, catch):
    process, folder = catch("--checkpoint-period-seconds", 2)
    victim, frames = nodes()["actor/1"], int(rows(folder)[-1]["frames"])
    with within(15, "on a cluster, an actor is killed: another acts, and 200 episodes of that actor's have counted since"):
        with within(15, "on a cluster, an actor is killed: another is in its place"):
            victim.kill()
            wait_for(lambda: nodes().get("actor/1", victim).pid != victim.pid, BACK_SECONDS, "the actor is back")
        frames = max(frames, int(restarts(folder)[-1]["frames"]))
        wait_for(lambda: has_played(folder, 1, frames), BACK_SECONDS, "its episodes count")
    wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
    with within(GROUP_SECONDS, "on a cluster, the learner is killed: there are more frames than before"):
        nodes()["learner/0"].kill()
        wait_for(lambda: len(restarts(folder)) == 2, 20, "its death is noticed")
        learns_on(folder)
    assert [row["node"] for row in restarts(folder)] == ["actor/1", "learner/0"]
    with within(LEFT_SECONDS, "on a cluster, the command is killed: no process is left on any host"):
        process.kill()
        wait_for(lambda: not left(), 2 * LEFT_SECONDS, "the nodes of a killed driver are gone")


@pytest.mark.soak
@pytest.mark.parametrize("program, keys", [
    ("seed", ["--cluster.learner-cpus", 2]), ("ga3c", ["--cluster.learner-cpus", 2]), ("apex", ["--cluster.evaluator-cpus", 0]),
])  # fmt: skip
def test_the_other_programs_survive_the_loss_of_a_host_too(cluster, tmp_path, program, keys):
    """The keys leave no room for an actor at the head.

    All of DQN stands where the learner does, so it has no other host to lose; Ape-X is DQN with actors elsewhere.
    """
    command = ["train", f"{program}_catch", "--cluster", cluster.address, "--run", tmp_path / "run"]
    process = start(*command, *ENDLESS, *TWO_ACTORS, *keys)
    wait_until_it_trains(tmp_path / "run", 5)
    cluster.remove_node(cluster.hosts.pop(), allow_graceful=False)
    wait_for(lambda: restarts(tmp_path / "run"), BACK_SECONDS, "the loss is noticed")
    (lost,) = [row["node"] for row in restarts(tmp_path / "run")]
    cluster.hosts.append(cluster.add_node(num_cpus=1))
    wait_for(lambda: lost in nodes(), BACK_SECONDS, "it has a place again")
    learns_on(tmp_path / "run")
    has_learned(tmp_path / "run")
    ends_in_order(process)
    wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
def test_a_node_ends_with_the_worker_of_rays_that_holds_it_and_comes_back(cluster, catch):
    process, folder = catch()
    victim = nodes()["actor/1"]
    with within(30, "the worker of Ray's that holds an actor is killed: another is in its place"):
        with within(5, "the worker of Ray's that holds an actor is killed: it has ended, too"):
            victim.parent().kill()
            wait_for(lambda: not victim.is_running(), 30, "its node ends with it")
        wait_for(lambda: "actor/1" in nodes(), BACK_SECONDS, "it is back")
    updates = int(rows(folder)[-1]["updates"])
    wait_for(lambda: int(rows(folder)[-1]["updates"]) > updates + 20, BACK_SECONDS, "it trains")
    ends_in_order(process)
    assert [row["node"] for row in restarts(folder)] == ["actor/1"]


@pytest.mark.soak
def test_a_host_that_is_silent_for_minutes_is_given_up_and_what_wakes_up_there_ends(cluster, catch):
    """As behind a broken network: every process of the host is frozen, none is dead."""
    process, folder = catch()
    name, frozen = next((name, node) for name, node in nodes().items() if name.startswith("actor"))
    raylet = psutil.Process(host_of(frozen))
    parts = {host: host.all_processes["raylet"][0].process for host in cluster.hosts}
    (host,) = [host for host, part in parts.items() if part.pid == raylet.pid]
    everything = [raylet, *raylet.children(recursive=True)]
    time.sleep(3.0)  # so that the launcher has heard that the actor acts: what still starts may be silent for longer
    with within(75, "every process of a host is frozen: it is given up"):  # Ray asks it five times, for ten seconds each
        for each in everything:
            each.suspend()
        wait_for(lambda: name in [row["node"] for row in restarts(folder)], 120, "it is given up")
    updates = int(rows(folder)[-1]["updates"])
    time.sleep(120)
    assert int(rows(folder)[-1]["updates"]) > updates + 100, "the other actor is enough"
    for each in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.resume()
    wait_for(lambda: parts[host].poll() is not None, 60, "the host learns that it was given up")  # nobody else reaps it
    wait_for(lambda: not frozen.is_running(), 30, "and its node ends")
    cluster.hosts.remove(host)
    cluster.remove_node(host, allow_graceful=False)
    cluster.hosts.append(cluster.add_node(num_cpus=1))
    wait_for(lambda: name in nodes(), 60, "it has a place again")
    assert f"NOTE: {name} has been silent for" in ends_in_order(process)
    assert {row["unsound_chunks"] for row in rows(folder)} <= {"", "0"} and len(restarts(folder)) == 1


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("ip"), reason="a network of one's own needs root, and iproute2")
def test_a_host_behind_a_broken_cable_is_given_up_and_rejoins(monkeypatch, tmp_path):
    """For five minutes no packet passes: connections hang, and nobody there or here is told that they are broken."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for name, value in ray_health.SOONER.items():  # as docs/cluster.md and the script for Slurm start the head
        monkeypatch.setenv(name, str(value))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    here, there, folder = "10.213.7.1", "10.213.7.2", tmp_path / "run"
    with contextlib.ExitStack() as ends:
        namespace, set_cable = ends.enter_context(cable(here, there))
        at_head = ("--node-ip-address", here, "--port", 6399, "--num-cpus", 3, "--include-dashboard", "false")
        far = ("--address", f"{here}:6399", "--node-ip-address", there, "--num-cpus", 1)
        inside = ("ip", "netns", "exec", namespace)
        ends.enter_context(ray_host("--head", *at_head))
        wait_for(lambda: reachable(f"{here}:6399"), 60, "the head listens")
        lost = ends.enter_context(ray_host(*far, inside=inside))
        process = start(*CATCH, "--cluster", f"{here}:6399", "--run", folder, *ENDLESS, *TWO_ACTORS)
        ends.callback(process.kill)
        wait_until_it_trains(folder, 5)
        ours = os.readlink("/proc/self/ns/net")
        ((name, node),) = [each for each in nodes().items() if os.readlink(f"/proc/{each[1].pid}/ns/net") != ours]
        time.sleep(3.0)  # so that the launcher has heard that the actor acts
        began = time.monotonic()
        with within(30, "no packet passes to a host: it is given up"):
            set_cable("down")
            wait_for(lambda: restarts(folder), 120, "it is given up")
        updates = int(rows(folder)[-1]["updates"])
        time.sleep(max(0.0, began + 300 - time.monotonic()))
        assert int(rows(folder)[-1]["updates"]) > updates + 100, "the other actor is enough"
        set_cable("up")
        wait_for(lambda: lost.poll() is not None and not node.is_running(), 60, "nothing of before goes on there")
        with within(60, "the host is connected again, and joins: its actor has a place"):
            ends.enter_context(ray_host(*far, inside=inside))
            wait_for(lambda: name in nodes(), 120, "it has a place again")
        learns_on(folder)
        output = ends_in_order(process)
        assert f"NOTE: {name} has been silent for" in output
        assert [row["node"] for row in restarts(folder)] == [name]
        assert {row["unsound_chunks"] for row in rows(folder)} <= {"", "0"}
        wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
@pytest.mark.parametrize("with_tls", [False, True])
def test_two_learners_on_two_hosts_are_one_and_come_back_together(monkeypatch, tmp_path, with_tls):
    """Each has an address of its own, so they add their gradients over the network."""
    here, there, folder = "10.213.8.1", "10.213.8.2", tmp_path / "run"
    names = f"IP:{here}", f"IP:{there}", "IP:127.0.0.1", "DNS:localhost"
    for name, value in (certificates.make(tmp_path / "tls", names) if with_tls else {}).items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as ends:
        namespace, _ = ends.enter_context(cable(here, there))
        at_head = ("--node-ip-address", here, "--port", 6398, "--num-cpus", 3, "--include-dashboard", "false")
        ends.enter_context(ray_host("--head", *at_head))
        wait_for(lambda: reachable(f"{here}:6398"), 60, "the head listens")
        far = ("--address", f"{here}:6398", "--node-ip-address", there, "--num-cpus", 3)
        ends.enter_context(ray_host(*far, inside=("ip", "netns", "exec", namespace)))
        if with_tls:
            refused = run(*CATCH, "--cluster", f"{here}:6398", "--run", folder, RAY_USE_TLS="0")
            assert refused.returncode == 2 and "certificates as there" in refused.stderr, refused
        keys = ["--learner.num-learners", 2, "--checkpoint-period-seconds", 2]
        process = start(*CATCH, "--cluster", f"{here}:6398", "--run", folder, *ENDLESS, *TWO_ACTORS, *keys)
        ends.callback(process.kill)
        wait_until_it_trains(folder, 5)
        first, second = nodes()["learner/0"], nodes()["learner/1"]
        assert len({os.readlink(f"/proc/{each.pid}/ns/net") for each in (first, second)}) == 2
        wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
        second.kill()
        wait_for(lambda: restarts(folder), 20, "its death is noticed")
        learns_on(folder)
        wait_for(lambda: float(rows(folder)[-1]["return_mean"] or 0) > 0.8, START_SECONDS, "it has learned Catch")
        ends_in_order(process)
        assert [row["node"] for row in restarts(folder)] == ["learner/1"]
        wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
@pytest.mark.parametrize("dies, is_far", [("gcs_server", False), ("gcs_server", True), ("raylet", True)])
def test_when_rays_head_or_the_commands_raylet_dies_the_run_ends_by_name_and_can_be_resumed(tmp_path, dies, is_far):
    """Of a head on another host, an actor alone ends with it; the others answer on, and what they learned is saved."""
    here, there, folder = "10.213.9.1", "10.213.9.2", tmp_path / "run"
    with contextlib.ExitStack() as ends:
        namespace, _ = ends.enter_context(cable(here, there))
        # A node of the far head finds it by files of its own, or else the driver here would take its raylet for this host.
        own_files = ("sh", "-c", 'mount -t tmpfs none /tmp/ray && exec "$@"', "sh")
        of_head, inside = (there, ("ip", "netns", "exec", namespace, *own_files)) if is_far else (here, ())
        at_head = ("--node-ip-address", of_head, "--port", 6397, "--num-cpus", 1 if is_far else 4)
        host = ends.enter_context(ray_host("--head", "--include-dashboard", "false", *at_head, inside=inside))
        address = f"{of_head}:6397"
        wait_for(lambda: reachable(address), 60, "the head listens")
        if is_far:
            mine = ends.enter_context(ray_host("--address", address, "--node-ip-address", here, "--num-cpus", 3))
            time.sleep(5.0)  # the command is given on a host of the cluster
        process = start(
            *CATCH, "--cluster", address, "--run", folder, *ENDLESS, *TWO_ACTORS, "--checkpoint-period-seconds", 60
        )
        ends.callback(process.kill)
        wait_for(lambda: checkpoints.read_state(folder / "checkpoints"), START_SECONDS, "a checkpoint")
        saved = checkpoints.read_state(folder / "checkpoints")["updates"]
        family = psutil.Process((mine if dies == "raylet" else host).pid).children(recursive=True)
        (victim,) = [each for name, each in alive(family) if name == dies]
        whose = "another" if is_far and dies != "raylet" else "this"
        with within(15 if dies == "raylet" else 40, f"Ray's {dies} is killed, of {whose} host: the run has ended"):
            victim.kill()
            output, errors = process.communicate(timeout=180)
        assert process.returncode == 75, errors
        # A head's raylet ends with its server.
        gone = "Ray's raylet of this host has ended" if dies == "raylet" or not is_far else "Ray's head does not listen at "
        assert re.search(f"{gone}.*: the run ends, and can be resumed", output), output
        wait_for(lambda: not left(), 90, "no node is left")
    if dies == "gcs_server" and is_far:
        assert checkpoints.read_state(folder / "checkpoints")["updates"] > saved, "the learner was told to end"
    done = run(*CATCH, "--run", folder, *TWO_ACTORS)
    assert done.returncode == 0 and "resum" in done.stdout, done.stdout + done.stderr


@pytest.mark.soak
def test_when_ray_ends_while_the_command_waits_for_room_it_says_so_and_ends_with_75(tmp_path):
    address = f"127.0.0.1:{ports.Holder().take()}"
    at_head = ("--node-ip-address", "127.0.0.1", "--port", address.rpartition(":")[2], "--num-cpus", 1)
    with ray_host("--head", *at_head, "--include-dashboard", "false") as host:
        wait_for(lambda: reachable(address), 60, "the head listens")
        process = start(*CATCH, "--cluster", address, "--run", tmp_path / "run", "--cluster.wait-seconds", 300)
        time.sleep(25)
        (raylet,) = [each for name, each in alive(psutil.Process(host.pid).children(recursive=True)) if name == "raylet"]
        with within(20, "this host's raylet is killed while the command waits for room: it has ended"):
            raylet.kill()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 75 and errors.startswith("--cluster: Ray's raylet of this host has ended; expected a"), errors


@pytest.mark.soak
@pytest.mark.parametrize("program", ["seed", "r2d2", "ga3c", "dqn", "apex", "a3c", "dppo", "gorila"])
def test_the_other_programs_learn_there_too(cluster, tmp_path, program):
    options = TWO_ACTORS if program in ("seed", "ga3c") else ["--cluster.evaluator-cpus", 0]
    options += ["--server.num-shards", 2, "--cluster.actor-cpus", 0.5] if program == "a3c" else []
    done = run("train", f"{program}_catch", "--cluster", cluster.address, "--run", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    last = rows(tmp_path / "run")[-1]
    assert float(last["evaluation_mean"] or last["return_mean"]) >= 0.9 and not restarts(tmp_path / "run"), last


@pytest.mark.soak
def test_a_deterministic_policy_trains_there_too(cluster, tmp_path):
    keys = ["--total-frames", 3_000, "--replay.min-size", 400, "--evaluator.num-episodes", 0, "--target-return", "null"]
    done = run("train", "apex_dpg_pendulum", "--cluster", cluster.address, "--run", tmp_path / "run", *keys)
    assert done.returncode == 0, done.stderr
    last = rows(tmp_path / "run")[-1]
    assert int(last["updates"]) > 100 and last["skipped_updates"] == "0" and not restarts(tmp_path / "run"), last


@pytest.mark.soak
def test_a_node_waits_for_a_host_and_the_run_begins_with_those_that_must_stand(cluster, catch):
    process, folder = catch("--actor.num-actors", 3, "--cluster.min-actors", 2)
    assert {"actor/0", "actor/1"} < set(nodes()) and len(nodes()) == 4
    more = cluster.add_node(num_cpus=1)
    wait_for(lambda: len(nodes()) == 5, BACK_SECONDS, "the third actor has a place")
    output = ends_in_order(process)
    assert "; 1 node waits for room" in output and restarts(folder) == []
    cluster.remove_node(more)


@pytest.mark.soak
def test_relays_stand_on_different_hosts_and_one_that_is_killed_brings_all_back(catch):
    halves = ["--cluster.relay-cpus", 0.5, "--cluster.actor-cpus", 0.5]
    process, folder = catch("--actor.num-relays", 2, *halves, "--checkpoint-period-seconds", 2)
    hosts = {name: host_of(nodes()[name]) for name in ("relay/0", "relay/1", "learner/0")}
    assert len(set(hosts.values())) == 3, hosts
    nodes()["relay/1"].kill()
    wait_for(lambda: restarts(folder), BACK_SECONDS, "it is noticed")
    learns_on(folder)
    assert "relay/1 ended with signal 9: all nodes start again" in ends_in_order(process)


@pytest.mark.soak
@pytest.mark.parametrize("spread, num_hosts", [("true", 3), ("false", 2)])
def test_actors_of_the_cluster_that_one_stands_in_are_spread_if_wished(tmp_path, spread, num_hosts):
    """Three actors on a head with room for one and two hosts with room for two each."""
    address = f"127.0.0.1:{ports.Holder().take()}"
    with contextlib.ExitStack() as ends:
        at_head = ("--node-ip-address", "127.0.0.1", "--port", address.rpartition(":")[2], "--num-cpus", 3)
        ends.enter_context(ray_host("--head", *at_head, "--include-dashboard", "false"))
        wait_for(lambda: reachable(address), 60, "the head listens")
        for number in (2, 3):
            ends.enter_context(ray_host("--address", address, "--node-ip-address", "127.0.0.1", "--num-cpus", 2))
            wait_for(lambda number=number: num_alive(address) == number, 60, "the host has joined")
        keys = ["--actor.num-actors", 3, "--actor.num-environments", 8, "--cluster.spread-actors", spread]
        process = start(*CATCH, "--cluster", "auto", "--run", tmp_path / "run", *ENDLESS, *keys)
        ends.callback(process.kill)
        wait_until_it_trains(tmp_path / "run", 5)
        hosts = {host_of(node) for name, node in nodes().items() if name.startswith("actor")}
        ends_in_order(process)
        assert len(hosts) == num_hosts
        wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
def test_an_autoscaler_brings_hosts_for_the_actors_that_wait(tmp_path):
    """As KubeRay's does with `--max-nodes`; its hosts are processes of this machine, and go when they are idle."""
    address = f"127.0.0.1:{ports.Holder().take()}"
    with growing_cluster(address, tmp_path, max_hosts=3):
        wait_for(lambda: reachable(address), 60, "the head listens")
        keys = [*TWO_ACTORS, "--cluster.min-actors", "1", "--cluster.wait-seconds", "120"]
        process = start(*CATCH, "--cluster", address, "--run", tmp_path / "run", *ENDLESS, *keys)
        wait_until_it_trains(tmp_path / "run", 5)
        wait_for(lambda: {"actor/0", "actor/1"} < set(nodes()), BACK_SECONDS, "both actors have a host")
        assert len({host_of(node) for name, node in nodes().items() if name.startswith("actor")}) == 2
        ends_in_order(process)
        wait_for(lambda: not left(), 30, "no node is left")


@pytest.mark.soak
def test_a_host_with_other_packages_is_refused_in_one_line(cluster, tmp_path):
    more = add_host_with_another_numpy(cluster, tmp_path)
    done = run(*CATCH, "--cluster", cluster.address, "--run", tmp_path / "run", "--actor.num-actors", 3)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert re.search("actor/. on .*: numpy is 9.9 there and .* here; expected the same on every host", done.stderr)
    assert not left()
    cluster.remove_node(more)


@pytest.mark.soak
def test_a_host_with_other_packages_that_joins_late_is_said_and_not_used(cluster, catch, tmp_path):
    process, folder = catch("--actor.num-actors", 3, "--cluster.min-actors", 2, "--checkpoint-period-seconds", 2)
    more = add_host_with_another_numpy(cluster, tmp_path)
    time.sleep(40)  # it was refused five times within 21 s, and then the run ended
    assert len(nodes()) == 4 and restarts(folder) == []
    nodes()["learner/0"].kill()  # all nodes are placed again, one of them there perhaps
    wait_for(lambda: len(restarts(folder)) == 1, 20, "its death is noticed")
    learns_on(folder)
    assert len(nodes()) == 4
    output = ends_in_order(process)
    assert "numpy is 9.9 there" in output, output
    cluster.remove_node(more)


@pytest.mark.parametrize("arguments, status, words", [
    (["--cluster", "127.0.0.1:9"], 2, "--cluster 127.0.0.1:9: [Errno 111] Connection refused; expected HOST:PORT"),
    (["--cluster", "nonsense"], 2, "--cluster nonsense: no address; expected HOST:PORT"),
    (["--cluster", "HERE", "--threads"], 2, "--cluster: not with --threads"),
    (["--cluster", "HERE", "--cluster.first-port", 3000, "--cluster.last-port", 2000], 2, "expected a range of ports"),
    (["--cluster", "HERE", "--cluster.actor-cpu", 3], 2, "cluster.actor_cpu: unknown key; did you mean cluster.actor_cpus?"),
    (["--cluster", "HERE", "--cluster.actor-cpus", 3, "--cluster.wait-seconds", 5], 75, "no room for actor/0, actor/1 within 5 s: they need 6 CPUs, of which"),
    pytest.param(
        ["--cluster", "HERE", "--cluster.first-port", 1024, "--cluster.last-port", 1024], 75,
        "no free port from 1024 to 1024", marks=pytest.mark.soak,
    ),
    pytest.param(
        ["--cluster", "HERE", "--cluster.learner-gpus", 1, "--cluster.wait-seconds", 2], 75,
        "and 1 GPUs, of which 0 are free", marks=pytest.mark.soak,
    ),
])  # fmt: skip
def test_what_cannot_be_is_one_line_and_leaves_nothing(one_host, tmp_path, arguments, status, words):
    arguments = [one_host if argument == "HERE" else argument for argument in arguments]
    done = run(*CATCH, "--run", tmp_path / "run", *TWO_ACTORS, *arguments)
    assert done.returncode == status and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not left()


@pytest.mark.soak
def test_who_lacks_rays_token_is_refused_in_one_line(tmp_path):
    with head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=40 * "a") as address:
        others = dict(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=40 * "b"), dict(RAY_AUTH_MODE="disabled")
        for environment in others:
            done = run(*CATCH, "--cluster", address, "--run", tmp_path / "run", **environment)
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            assert f"--cluster {address}: " in done.stderr and "and its token" in done.stderr
        ours = dict(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=40 * "a")
        done = run(*CATCH, "--cluster", address, "--run", tmp_path / "run", "--total-frames", 20_000, **ours)
        assert done.returncode == 0 and "Ray asks for no token" not in done.stdout, done.stderr
        assert not left()


@pytest.mark.soak
def test_with_tls_it_trains_and_who_shows_another_certificate_or_none_is_refused_in_one_line(tmp_path):
    import ray

    names = "IP:127.0.0.1", "DNS:localhost", f"IP:{ray.util.get_node_ip_address()}"
    ours, theirs = (certificates.make(tmp_path / name, names) for name in ("ours", "theirs"))
    with head(**ours) as address:
        command = (*CATCH, "--cluster", address, "--run", tmp_path / "run", "--total-frames", 20_000)
        done = run(*command, **ours)
        assert done.returncode == 0 and "learning on" in (tmp_path / "run/logs/learner/0").read_text(), done.stderr
        for environment in (theirs, {}):
            done = run(*command, **environment)
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
            assert f"--cluster {address}: no answer of Ray's within" in done.stderr and "certificates as there" in done.stderr
        assert not left()


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0, reason="a network of one's own needs root")
@pytest.mark.parametrize("rays", ["11.22.33.44", "10.9.8.7"])
def test_a_public_address_needs_consent(tmp_path, rays):
    """In a network that nobody else sees, on an address of the open Internet, be it Ray's or another of the host."""
    script = f"""
ip link set lo up && ip address add 11.22.33.44/32 dev lo && ip address add 10.9.8.7/32 dev lo && ip route add default dev lo src {rays}
export RAY_AUTH_MODE=disabled
run() {{ {sys.executable} -m impala {" ".join(CATCH)} --cluster {rays}:6399 --run {tmp_path}/run --total-frames 20000 "$@"; echo "status $?" >&2; }}
{Path(sys.executable).parent}/ray start --head --port 6399 --node-ip-address {rays} --num-cpus 4 --include-dashboard false
run; run --cluster.trusted-network true
"""
    command = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    first, _, second = done.stderr.partition("status 2\n")
    assert "hosts have public addresses (11.22.33.44)" in first and "cluster.trusted_network=true" in first, done
    assert second.strip() == "status 0", second


@pytest.mark.soak
@pytest.mark.skipif(os.getuid() != 0 or not (shutil.which("nft") and shutil.which("ip")), reason="needs root and nftables")
def test_the_firewall_of_the_page_lets_the_hosts_in_and_nobody_else():
    page = (ROOT / "docs/security.md").read_text()
    rules = page[page.index("table inet impala"):].partition("```")[0]
    with contextlib.ExitStack() as ends:
        namespace, _ = ends.enter_context(cable("10.0.0.6", "10.0.0.5"))
        inside = ["ip", "netns", "exec", namespace]
        server = [*inside, sys.executable, "-m", "http.server", "20001"]
        process = ends.enter_context(subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        ends.callback(process.kill)
        wait_for(lambda: reachable("10.0.0.5:20001"), 20, "without a firewall anybody gets in")
        subprocess.run([*inside, "nft", "-f", "-"], input=rules, text=True, check=True)
        assert not reachable("10.0.0.5:20001"), "a stranger"
        subprocess.run(["ip", "address", "add", "10.0.0.2/32", "dev", "lo"], check=True)
        ends.callback(subprocess.run, ["ip", "address", "delete", "10.0.0.2/32", "dev", "lo"], check=True)
        subprocess.run(["ip", "-n", namespace, "route", "add", "10.0.0.2", "via", "10.0.0.6"], check=True)
        socket.create_connection(("10.0.0.5", 20001), 5.0, source_address=("10.0.0.2", 0)).close()


def test_hosts_that_differ_are_compared_by_name():
    mine = {"tensorflow": "2.15.1", "commit": "abc", "ray": "2.60.0"}
    assert node_host.differences(mine, mine | {"commit": "unknown"}) == []  # git may be slow there
    assert node_host.differences(mine, mine | {"commit": "def"}, ignored=("commit",)) == []
    assert node_host.differences(mine, {"tensorflow": "2.16.0", "commit": "abc", "jax": "1"}) == [
        "tensorflow is 2.16.0 there and 2.15.1 here", "ray is missing there and 2.60.0 here", "jax is 1 there and missing here",
    ]  # fmt: skip


def test_a_simulator_that_a_host_lacks_is_no_difference_but_another_version_is(monkeypatch):
    mine = node_host.facts(())
    assert mine["minatar"] != "unknown"
    monkeypatch.setattr(provenance, "installed", lambda packages: {"minatar": "0.1"})
    theirs = node_host.facts(())
    assert theirs["mujoco"] == "unknown"
    assert node_host.differences(mine, theirs) == [f"minatar is 0.1 there and {mine['minatar']} here"]


def test_a_file_that_hosts_share_is_compared_by_what_is_in_it(tmp_path):
    path = tmp_path / "token"
    before = node_host.facts((), [path])
    assert str(path) not in before, "missing"
    path.write_text("1")
    mine = node_host.facts((), [path])
    path.write_text("2")
    (line,) = node_host.differences(mine, node_host.facts((), [path]))
    assert line.startswith(f"{path} is ")
    assert node_host.differences(mine, before) == [f"{path} is missing there and {mine[str(path)]} here"]


# --- programs of Launchpad's own


@pytest.fixture
def connected(cluster):
    import ray

    ray_cluster.connect(cluster.address, is_trusted=False)
    yield
    ray.shutdown()


def launched(program, folder):
    small = ray_cluster.Placement(needs=lambda name: ray_cluster.Needs(cpus=0.5))
    nodes = ray_cluster.launch(program, folder, placement=small)
    ray_cluster.wait(nodes)
    return {name: nodes.log(name).read_text() for name in nodes.names()}


@pytest.mark.soak
def test_launchpads_examples_run_there_unchanged(cluster, connected, tmp_path):
    from absl import flags
    from launchpad.examples.batching.launch import make_program as batching
    from launchpad.examples.consumer_producers.program import make_program as consumer_producers
    from launchpad.examples.hello_world.launch import make_program as hello_world
    from launchpad.examples.program_wait.launch import make_program as program_wait

    assert launched(hello_world(), tmp_path)["hello_printer/0"].strip() == "Hello World!!!"
    assert "Results: [0, 1]" in launched(consumer_producers(num_producers=2), tmp_path)["consumer/0"]
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(["pytest"])
    assert set(launched(batching(), tmp_path)) == {"server/0", "clients/0", "clients/1"}  # it ends only by their results
    logs = launched(program_wait(), tmp_path)  # one node asks for an end, four learn of it in their own ways
    assert sum("Clean termination of" in log for log in logs.values()) == 4, logs
    assert not left()


class Parameters:
    def __init__(self):
        self._sum = 0

    def add(self, number):
        self._sum += number
        return self._sum


class Worker:
    def __init__(self, parameters, colleague):
        self._parameters, self._colleague = parameters, colleague

    def run(self):
        import launchpad as lp

        for number in range(10):
            self._parameters.add(number)
        print("sum", self._parameters.add(self._colleague.add(5)))
        lp.stop()


@pytest.mark.soak
def test_a_parameter_server_and_nodes_that_share_a_process_run_there(cluster, connected, tmp_path):
    import launchpad as lp

    program = lp.Program("parameters")
    parameters = program.add_node(lp.CourierNode(Parameters), label="server")
    own, worker = lp.CourierNode(Parameters), None
    worker = lp.CourierNode(Worker, parameters, own.create_handle())
    program.add_node(lp.MultiThreadingColocation([own, worker]), label="both")
    assert "sum 50" in launched(program, tmp_path)["both/0"]
    assert not left()


def fail():
    raise RuntimeError("broken")


class Broken:
    def run(self):
        fail()


@pytest.mark.soak
@pytest.mark.parametrize("is_called", [False, True])
def test_a_node_that_fails_ends_such_a_program_by_name(cluster, connected, tmp_path, is_called):
    """At once if others call it, else when it has failed as often as it may."""
    import launchpad as lp

    wait_for(lambda: not left(), 30, "those of the test before are gone")
    program = lp.Program("broken")
    program.add_node(lp.PyNode(time.sleep, 1e6), label="sleeper")
    program.add_node(lp.CourierNode(Broken) if is_called else lp.PyNode(fail), label="broken")
    reason = "and others call it" if is_called else "broken/0 died 3 times in a row, the last time within 60 s of its start"
    restarts = Restarts(max_in_a_row=2, max_per_hour=60)
    with pytest.raises(RuntimeError, match=f"broken/0 ended with status 1, {reason}; see .*logs/broken/0"):
        ray_cluster.wait(ray_cluster.launch(program, tmp_path), restarts=restarts)
    said = (tmp_path / "logs/broken/0").read_text()
    assert said.count("RuntimeError: broken\n") == (1 if is_called else 3), said
    assert not left()


def add_in_two_lives(parameters):
    """Adds 1 and dies; the next life, which finds 1, adds more and is done."""
    import launchpad as lp

    if parameters.add(1) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    print("sum", parameters.add(10))
    lp.stop()


@pytest.mark.soak
def test_a_node_of_such_a_program_that_dies_starts_again(cluster, connected, tmp_path):
    import launchpad as lp

    program = lp.Program("mortal")
    parameters = program.add_node(lp.CourierNode(Parameters), label="server")
    program.add_node(lp.PyNode(add_in_two_lives, parameters), label="worker")
    assert "sum 12" in launched(program, tmp_path)["worker/0"]
    assert not left()


@pytest.mark.soak
def test_a_frozen_node_is_replaced_and_its_stacks_come_home(cluster, catch):
    process, folder = catch("--liveness-seconds", 15)
    victim = nodes()["actor/1"]
    time.sleep(3.0)  # so that the launcher has heard that the actor acts: what still starts may be silent for longer
    with within(15 + 15, "on a cluster, an actor is frozen: after liveness_seconds, 15, another is in its place"):
        victim.suspend()
        wait_for(lambda: nodes().get("actor/1", victim).pid != victim.pid, BACK_SECONDS, "another has its place")
    learns_on(folder)
    output = ends_in_order(process)
    assert "actor/1 was silent for" in output and [row["node"] for row in restarts(folder)] == ["actor/1"]
    assert "most recent call first" in (folder / "logs/actor/1").read_text()


@pytest.mark.soak
def test_a_second_ctrl_c_ends_all_at_once(cluster, catch):
    process, _ = catch()
    nodes()["actor/1"].suspend()  # it would be waited for
    press_ctrl_c(process)
    time.sleep(1.0)
    with within(10, "on a cluster, a second Ctrl-C while an actor is frozen: the run has ended"):
        press_ctrl_c(process)
        end_of(process)
    assert process.returncode == 130
