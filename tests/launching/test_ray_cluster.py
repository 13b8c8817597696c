"""What a launcher does where Ray says no, or something else answers: without a cluster."""

import contextlib
import re
import signal
import socket
import sys
import threading
import time
import types

import pytest

from impala import config
from impala.config import ConfigError
from impala.launching import beats, commands, ending, node_host, ray_cluster, ray_health, restarts, roles
from impala.nodes import placing
from tests.programs.running import CATCH, end_of, press_ctrl_c, start


@pytest.fixture
def stranger():
    """Yields (a socket that listens and by itself never answers, its address)."""
    with socket.socket() as listening:
        listening.bind(("", 0))  # Ray takes this host's own address for 127.0.0.1
        listening.listen()
        yield listening, f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("banner, is_named", [
    pytest.param(b"", True, marks=pytest.mark.soak), (b"SSH-2.0-OpenSSH_9.2\r\n", False),
])  # fmt: skip
def test_a_port_of_something_else_is_refused_in_one_line(monkeypatch, stranger, banner, is_named):
    listening, address = stranger
    kept = []

    def greet():
        with contextlib.suppress(OSError):  # the test is over, or the caller is gone
            while True:
                kept.append(listening.accept()[0])
                kept[-1].sendall(banner)

    threading.Thread(target=greet, daemon=True).start()
    monkeypatch.setattr(ray_cluster, "_PROBE_SECONDS", 10.0)  # Ray has to be imported meanwhile
    monkeypatch.setenv("RAY_ADDRESS", address)
    began = time.monotonic()
    with pytest.raises(ConfigError) as refusal:
        ray_cluster.connect(address if is_named else "auto", is_trusted=False)
    (line,) = refusal.value.lines
    shown = address if is_named else rf"auto \([\d.]+:{address.partition(':')[2]}\)"
    assert re.match(f"--cluster {shown}: no answer of Ray's within 10 s; expected HOST:PORT where", line), line
    assert len(kept) >= 2 and time.monotonic() - began < 60


@pytest.mark.parametrize("host, fault", [
    ("10.0.0.7", None), ("localhost", None), ("fd00::7", "a host's address is fd00::7; expected `ray start --node-ip-address`"),
    ("nobody.invalid", "a host's address is nobody.invalid: "),
])  # fmt: skip
def test_hosts_are_called_at_ipv4_addresses_or_names(host, fault):
    assert (ray_cluster._fault_of(host) or "").startswith(fault or "") and (fault is None) == (ray_cluster._fault_of(host) is None)


def test_a_cluster_of_ipv6_hosts_is_refused_in_one_line(monkeypatch):
    fake, ended = FakeRay(HERE, {}), []
    fake.nodes = lambda: [dict(Alive=True, NodeManagerAddress="10.0.0.7"), dict(Alive=True, NodeManagerAddress="fd00::7")]
    fake.init, fake.shutdown = lambda *_, **__: None, lambda: ended.append(True)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(ray_cluster, "_probe", lambda *_: None)
    with pytest.raises(ConfigError) as refusal:
        ray_cluster.connect("[fd00::7]:6379", is_trusted=True)
    (line,) = refusal.value.lines
    assert line.startswith("--cluster [fd00::7]:6379: a host's address is fd00::7; expected") and refusal.value.status == 2 and ended
    for listening in fake.listening:
        listening.close()


def test_ctrl_c_ends_the_wait_for_an_answer(stranger, tmp_path):
    listening, address = stranger
    process = start(*CATCH, "--cluster", address, "--run", tmp_path / "run")
    listening.settimeout(120)
    callers = [listening.accept() for _ in range(2)]  # whether the port is open; then Ray's own client
    began = time.monotonic()
    press_ctrl_c(process)
    assert end_of(process) == "interrupted before anything began\n" and process.returncode == 130 and time.monotonic() - began < 10
    assert not (tmp_path / "run").exists() and callers


# --- placing


class Answer:
    """What a call of an actor returns; None: it is awaited for ever."""

    def __init__(self, value):
        self.value = value


class Actor:
    def __init__(self, ray):
        self._ray = ray

    def __getattr__(self, method):
        return types.SimpleNamespace(remote=lambda *arguments: Answer(self._ray.answer(method, arguments)))


class FakeRay:
    """As much of Ray as places actors, and answers at once.

    `described` is what the next actor says of its host, or a list for the next ones; `reserved` what the next ones say of their
    ports; `options` are those that actors were made with; `exit_status` what all say of their process; `jobs` is filled.
    """

    ip = "10.0.0.7"

    def __init__(self, described, free):
        import ray
        import ray.util.scheduling_strategies  # imported from there by `ray_cluster`, past this object

        self.exceptions, self.described, self.jobs, self.exit_status = ray.exceptions, described, [], None
        self.gone: Exception | None = None  # what a question to a node's host raises
        self.is_deaf = False  # whether a start is lost on its way
        self.reserved: list = []
        self.signals: list[tuple[int, ...]] = []
        self.options, self.num_placed, self.is_silent = [], 0, False  # actors that were made; whether `clear` is never answered
        self.log, self.util = b"", types.SimpleNamespace(get_node_ip_address=lambda: self.ip)
        self.listening = [socket.create_server(("127.0.0.1", 0)) for _ in ("head", "raylet")]
        self.head, self.raylet = (f"127.0.0.1:{each.getsockname()[1]}" for each in self.listening)
        here = dict(NodeID="1", Alive=True, NodeManagerAddress="127.0.0.1", NodeManagerPort=self.raylet.partition(":")[2])
        self.nodes = lambda: [here, dict(NodeID="7", Alive=True, NodeManagerAddress=self.ip)]
        self.available_resources, self.is_initialized = lambda: free, lambda: True

    def remote(self, _):
        def options(**given):
            self.options.append(given)
            return types.SimpleNamespace(remote=self.place)

        return types.SimpleNamespace(options=options)

    def place(self):
        self.num_placed += 1
        return Actor(self)

    def answer(self, method, arguments):
        if method == "clear" and self.is_silent:
            return None
        if method == "describe" and isinstance(self.described, list):
            return self.described.pop(0)
        if method == "reserve":
            return self.reserved.pop(0)
        if method == "status" and self.gone:
            return self.gone
        if method == "signal":
            self.signals.append(arguments)
        if method == "status" and self.is_silent:
            return None
        if method == "start":
            self.jobs.append(arguments[0])
        beat = beats.Node(0.0, False, "running", 0.0, {})
        number = self.jobs[-1].number if self.jobs and not self.is_deaf else 0
        at = arguments[0] if method == "status" else 0
        status = node_host.Status(number, self.exit_status, True, beat, True, False, self.log[at:], at)
        return {"describe": self.described, "status": status}.get(method, "done")

    def wait(self, answers, **_):
        return [answer for answer in answers if answer.value is not None], []

    def get(self, answer, timeout=None):
        if answer == []:
            return []
        if isinstance(answer.value, Exception):
            raise answer.value
        return answer.value

    def get_runtime_context(self):
        return types.SimpleNamespace(gcs_address=self.head, get_node_id=lambda: "1")

    def put(self, data):
        return data

    def kill(self, _):
        pass


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Places one actor by a Ray that is made up; returns both."""
    made = []

    def launch(described, free=(), reserved=(), should_stop=lambda: False, **placement):
        fake = FakeRay(described, dict(free))
        fake.reserved = list(reserved)
        made.append(fake)
        monkeypatch.setitem(sys.modules, "ray", fake)
        data = tmp_path / "logs/scratch/actor/job.pkl"
        data.parent.mkdir(parents=True)
        data.write_bytes(b"")
        starts = [commands.Command("actor/0", data, 0, ("port",) if reserved else ())]
        placed = ray_cluster.Placement(wait_seconds=0.3, **placement)
        kinds = roles.Roles([roles.ACTOR])
        return fake, ray_cluster.Nodes(starts, kinds, tmp_path, placed, "a token", should_stop)

    yield launch
    for listening in (each for fake in made for each in fake.listening):
        listening.close()


def look(nodes):
    nodes._polled = 0.0  # at once
    return nodes.ended()


HERE = ("here", {**node_host.facts(()), "the address": "private", "the family of its address": "IPv4"}, "1")
THERE = ("there", HERE[1] | {"numpy": "9.9"}, "2")
# As Ray says it: the traceback on the host is within.
CANNOT_BE = """The actor died because of an error raised in its creation task, ray::_Host.__init__() (pid=7, ip=10.0.0.7, repr=x)
RuntimeError: The actor with name _Host failed to import on the worker.
  File "x.py", line 1
ModuleNotFoundError: No module named 'impala'"""


def test_a_node_that_is_refused_again_and_again_takes_a_new_incarnation_only_when_it_starts(launched, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_REFUSED_SECONDS", 0.0)
    fake, nodes = launched(HERE)
    fake.exit_status = 1
    assert look(nodes) == {"actor/0": 1}
    given = []
    nodes.start_again("actor/0", 0.0)
    for described in (THERE, THERE, unfit(), THERE, HERE):
        fake.described, fake.exit_status = described, None
        nodes.start_due(lambda name: given.append(name) or 6 + len(given))
        assert look(nodes) == {}
    assert [job.incarnation for job in fake.jobs] == [None, 7] and given == ["actor/0"]
    assert nodes.left() == ["actor/0"]


def test_a_node_starts_again_where_it_was_unless_it_dies_there_again_at_once(launched, monkeypatch):
    fake, nodes = launched(HERE)
    for lived, num_placed in ((5.0, 1), (5.0, 2), (5.0, 2), (100.0, 2), (100.0, 2), (5.0, 3)):
        fake.exit_status = -9
        assert look(nodes) == {"actor/0": -9}
        nodes._hosted["actor/0"].began -= lived
        nodes.kill("actor/0")
        nodes.start_again("actor/0", 0.0)
        fake.exit_status = None
        nodes.start_due(lambda name: 1 + len(fake.jobs))
        assert look(nodes) == {} and nodes.left() == ["actor/0"] and fake.num_placed == num_placed
    assert [job.incarnation for job in fake.jobs] == [None, 2, 3, 4, 5, 6, 7]


def test_a_start_that_is_lost_on_its_way_is_no_start(launched):
    fake, nodes = launched(HERE)
    fake.is_deaf = True
    assert look(nodes) == {"actor/0": 75}
    assert nodes.node("actor/0").facts["last_words"] == "its host was not told to start it"
    fake.is_deaf = False
    nodes.start_again("actor/0", 0.0)
    nodes.start_due(lambda name: 1)
    assert look(nodes) == {} and nodes.left() == ["actor/0"] and fake.num_placed == 2


def test_a_node_that_freezes_there_again_at_once_starts_elsewhere(launched):
    fake, nodes = launched(HERE)
    for num_placed in (1, 2):
        nodes._hosted["actor/0"].began -= 400.0
        nodes._hosted["actor/0"].answered -= 390.0
        nodes.kill("actor/0")
        nodes.start_again("actor/0", 0.0)
        nodes.start_due(lambda name: 1)
        assert look(nodes) == {} and fake.num_placed == num_placed


def test_a_frozen_node_whose_host_does_not_answer_starts_elsewhere(launched):
    fake, nodes = launched(HERE)
    for is_silent, num_placed in ((False, 1), (True, 2)):
        fake.is_silent = is_silent
        nodes._hosted["actor/0"].began -= 100.0
        nodes.kill("actor/0")
        assert nodes.left() == [] and nodes.ended() == {"actor/0": -9}
        nodes.start_again("actor/0", 0.0)
        nodes.start_due(lambda name: 1)
        assert look(nodes) == {} and nodes.left() == ["actor/0"] and fake.num_placed == num_placed


def test_memory_that_is_missing_is_said(launched):
    needs = ray_cluster.Needs(cpus=1.0, memory_gb=500.0)
    with pytest.raises(ray_cluster.NoRoom) as refusal:
        launched(None, free={"CPU": 64.0, "memory": 47.19e9}, needs=lambda _: needs)
    (line,) = refusal.value.lines
    assert "1 CPUs, of which 64 are free and 500 GB of memory, of which 47.2 are free; expected a larger" in line, line


def unfit(words=CANNOT_BE):
    from ray import exceptions

    return exceptions.RayActorError(error_msg=words, actor_init_failed=True)


def test_a_host_that_cannot_make_a_node_is_refused_with_its_own_words(launched):
    with pytest.raises(ConfigError) as refusal:
        launched(unfit())
    assert refusal.value.status == 2
    assert refusal.value.lines == [
        "actor/0 on 10.0.0.7: ModuleNotFoundError: No module named 'impala'; expected the same packages on every host"
    ]


def test_a_host_that_is_lost_meanwhile_may_be_back(launched):
    import ray

    with pytest.raises(ray_cluster.NoRoom) as refusal:
        launched(ray.exceptions.RayActorError(error_msg="The node died."))
    assert refusal.value.status == 75 and "(The node died.)" in refusal.value.lines[0]


def test_of_a_lost_host_it_is_said_that_its_node_is_not_to_blame(launched):
    import ray

    fake, nodes = launched(HERE)
    fake.gone = ray.exceptions.RayActorError(error_msg="The node died.")
    assert look(nodes) == {"actor/0": 75} and nodes.node("actor/0").facts["lost_host"]
    fake.described, fake.gone = ray.exceptions.RayActorError(error_msg="The node died."), None
    nodes.start_again("actor/0", 0.0)
    nodes.start_due(lambda name: 1)
    assert look(nodes) == {"actor/0": 75} and nodes.node("actor/0").facts["lost_host"], "while it was placed again"


@pytest.mark.parametrize("is_first_launch", [True, False])
def test_a_host_that_is_lost_while_nodes_are_placed_costs_them_their_place_alone(launched, is_first_launch):
    """Ray learns of a host's death after half a minute, and may until then place something there."""
    import ray

    gone = ray.exceptions.RayActorError(error_msg="The node died.")
    fake, nodes = launched([gone, gone, HERE], avoids_unfit=not is_first_launch)
    assert nodes.left() == ["actor/0"] and len(fake.jobs) == 1 and fake.num_placed == 3


def test_so_does_one_that_is_lost_while_ports_are_reserved(launched):
    import ray

    gone, away = ray.exceptions.RayActorError(error_msg="The node died."), ray.exceptions.ActorUnavailableError("Away.", None)
    fake, nodes = launched(HERE, reserved=[away, gone, {"a key": "10.0.0.7:9"}])
    assert nodes.left() == ["actor/0"] and len(fake.jobs) == 1 and fake.num_placed == 2
    assert fake.jobs[0].addresses == {"a key": "10.0.0.7:9"} and not fake.reserved


def test_the_wait_for_ports_has_an_end(launched, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ASK_SECONDS", 0.5)
    with pytest.raises(ray_cluster.NoRoom, match="the host of actor/0 does not answer"):
        launched(HERE, reserved=[None])


def test_the_wait_for_ports_hears_the_stop_signal(launched):
    began = time.monotonic()
    with pytest.raises(ray_cluster.Interrupted):
        launched(HERE, reserved=[None], should_stop=lambda: time.monotonic() > began + 0.3)
    assert time.monotonic() < began + 2


def test_what_a_lost_answer_held_of_the_log_comes_with_the_next_one_and_nothing_twice(launched):
    import ray

    fake, nodes = launched(HERE)
    fake.log = b"one "
    look(nodes)
    fake.log, fake.gone = b"one two ", ray.exceptions.ActorUnavailableError("The actor is unavailable.", None)
    look(nodes)
    fake.log, fake.gone = b"one two three ", None
    hosted = nodes._hosted["actor/0"]
    hosted.question = hosted.ask()  # `dump_stacks` asks once more before the answer is read
    later = hosted.ask()
    look(nodes)
    nodes._take("actor/0", later)
    fake.log += b"four"
    look(nodes)
    assert nodes.log("actor/0").read_bytes() == b"one two three four"
    again = nodes._hosted["actor/0"].again()  # the next process there writes into the same file
    assert again.num_logged == len(fake.log)


def test_a_cluster_that_is_ending_starts_nobody(launched):
    fake, nodes = launched(None, num_awaited=0)
    waiting = nodes._hosted["actor/0"]
    nodes.stop()
    fake.wait = lambda answers, **_: (answers, [])
    waiting.described.value = HERE
    assert look(nodes) == {} and "actor/0" in nodes._standing() and not fake.jobs


def test_a_commit_made_since_the_start_does_not_keep_the_nodes_from_starting_again(launched):
    edited = ("there", HERE[1] | {"commit": "another"}, "2")
    again = placing.placement_again(config.load("configs/catch.yaml"))
    fake, nodes = launched(edited, ignored=again.ignored)
    assert len(fake.jobs) == 1


def test_a_host_that_is_unfit_is_avoided_when_all_nodes_start_again(launched):
    """It joined late, and was said and not used; a learner that dies later must not end the run for that."""
    again = placing.placement_again(config.load("configs/catch.yaml"))
    how = dict(ignored=again.ignored, avoids_unfit=again.avoids_unfit)
    fake, nodes = launched([THERE, HERE], **how)
    assert nodes.left() == ["actor/0"] and len(fake.jobs) == 1
    assert [options.get("label_selector") for options in fake.options] == [None, {"ray.io/node-id": "!in(2)"}]
    (line,) = [line for line in nodes.words() if "numpy" in line]
    assert line.startswith("actor/0 on there: numpy is 9.9 there and ") and line.endswith(": that host is not used")


def test_a_host_that_is_refused_late_is_avoided(launched, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_REFUSED_SECONDS", 0.0)
    fake, nodes = launched(None, num_awaited=0)
    for described, avoided in ((THERE, ["2"]), (unfit(), ["2", "7"])):
        nodes._hosted["actor/0"].described.value = fake.described = described
        assert look(nodes) == {}
        fake.described = None
        nodes.start_due(lambda name: 1)
        assert fake.options[-1]["label_selector"] == {"ray.io/node-id": f"!in({','.join(avoided)})"}


def test_a_host_is_avoided_for_a_while_unless_another_node_could_be_made_there(launched, monkeypatch):
    """One failed for another reason, a full disk perhaps."""
    fake, nodes = launched(HERE, avoids_unfit=True)
    nodes._hosted["actor/1"] = ray_cluster._Hosted(None, None)
    nodes._hosted["actor/0"].place = ("there", HERE[1], "7")
    nodes._lose_unplaced("actor/1", unfit())
    assert nodes._hosted["actor/1"].is_over and not nodes._unfit
    nodes._hosted["actor/0"].place = HERE
    nodes._lose_unplaced("actor/1", unfit())
    assert nodes._avoided() == ["7"]
    later = time.monotonic() + 601.0
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: later)
    assert nodes._avoided() == [] and nodes._fit_hosts() is None, "it may have been mended"


def test_a_node_that_could_not_be_made_is_placed_again_also_where_its_host_is_not_avoided(launched):
    """It may be the launcher's own, or one of other nodes."""
    elsewhere = CANNOT_BE.replace("10.0.0.7", "10.0.0.8")
    fake, nodes = launched([unfit(elsewhere), HERE], avoids_unfit=True)
    assert nodes.left() == ["actor/0"] and fake.num_placed == 2 and not nodes._unfit


def test_so_is_a_host_that_cannot_even_make_a_node(launched):
    fake, nodes = launched([unfit(), HERE], avoids_unfit=True)
    assert nodes.left() == ["actor/0"] and len(fake.jobs) == 1
    assert [options.get("label_selector") for options in fake.options] == [None, {"ray.io/node-id": "!in(7)"}]
    (line,) = [line for line in nodes.words() if "No module" in line]
    assert line == "actor/0 on 10.0.0.7: ModuleNotFoundError: No module named 'impala': that host is not used"


@pytest.mark.parametrize("may_be_public", [True, False])
def test_a_host_with_a_public_address_that_joins_late_needs_consent_too(launched, monkeypatch, may_be_public):
    monkeypatch.setattr(ray_cluster._Consent, "may_be_public", may_be_public)
    public = ("there", HERE[1] | {"the address": "11.22.33.44"}, "2")
    fake, nodes = launched(None, num_awaited=0)
    nodes._hosted["actor/0"].described.value = public
    look(nodes)
    assert len(fake.jobs) == may_be_public
    assert may_be_public or nodes.node("actor/0").facts["says"] == [
        "actor/0 on there: its address 11.22.33.44 is public; expected a private network, or cluster.trusted_network=true "
        "behind a firewall"
    ]


def test_where_every_host_is_unfit_the_run_can_be_resumed_later(launched):
    with pytest.raises(ray_cluster.NoRoom) as refusal:
        launched(THERE, avoids_unfit=True)
    assert refusal.value.status == 75 and "(actor/0 on there: numpy is 9.9 there" in refusal.value.lines[0]


@pytest.mark.parametrize("address, is_refused", [("127.0.0.1", True), ("::1", True), ("10.0.0.7", False)])
def test_another_namespace_of_process_ids_is_refused_at_a_loopback_address_alone(launched, monkeypatch, address, is_refused):
    fact = "at a loopback address, the namespace of process ids"
    monkeypatch.setattr(FakeRay, "ip", address)
    there = HERE[1] | {"the family of its address": "IPv6" if ":" in address else "IPv4"} | ({fact: "pid:[1]"} if is_refused else {})
    if not is_refused:
        assert len(launched(("there", there, "2"))[0].jobs) == 1
        return
    with pytest.raises(ConfigError) as refusal:
        launched(("there", there, "2"))
    (line,) = refusal.value.lines
    assert line.startswith(f"actor/0 on there: {fact} is pid:[1] there and pid:[") and refusal.value.status == 2


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_head_that_is_gone_ends_the_run_whether_or_not_nodes_still_answer(launched, stranger, monkeypatch, is_silent):
    fake, nodes = launched(HERE)
    monkeypatch.setattr(ray_health, "_HEAD_SECONDS", 0.0)
    monkeypatch.setattr(ray_cluster, "_TELLING_SECONDS", 0.0)
    health = nodes._health
    listening, gone = stranger
    fake.is_silent = is_silent
    for where in [*4 * ["127.0.0.1:1"], gone, *4 * ["127.0.0.1:1"]]:  # it is back in time
        health._head, nodes._polled = where, 0.0
        assert nodes.left() == ["actor/0"]
    listening.close()
    health._head, nodes._polled = gone, 0.0
    with pytest.raises(ending.Unreachable, match=f"Ray's head does not listen at {gone} any more"):
        nodes.left()
    assert fake.signals == [(signal.SIGTERM,)], "a learner saves, where it still runs"
    nodes.kill()
    nodes.stop(should_kill=lambda: True)
    assert nodes.left() == ["actor/0"], "it is not known to have ended"


def test_without_this_hosts_raylet_the_run_ends_before_ray_is_given_anything(launched, monkeypatch):
    """Ray would end the process then, without a word."""
    monkeypatch.setattr(ray_cluster, "_TELLING_SECONDS", 0.0)
    fake, nodes = launched(HERE)
    fake.listening[1].close()
    nodes._polled = 0.0
    with pytest.raises(ending.Unreachable, match="Ray's raylet of this host has ended"):
        nodes.left()
    monkeypatch.setattr(FakeRay, "put", lambda self, data: pytest.fail("it was given an object"))
    with pytest.raises(ray_cluster.NoRoom, match="Ray's raylet of this host has ended") as refusal:
        ray_cluster.Nodes([], roles.Roles([roles.ACTOR]), nodes._logs.parent, ray_cluster.Placement(), "", lambda: False)
    assert refusal.value.status == 75
    other = ray_cluster.Nodes.__new__(ray_cluster.Nodes)
    other.__dict__ = nodes.__dict__ | {"_health": types.SimpleNamespace(fault="", ask=lambda: "gone"), "_polled": 0.0}
    other.kill()
    assert other.left() == [], "of an earlier launch nobody is asked"


def test_without_ray_nobody_waits_for_room(launched, monkeypatch):
    said = iter(["", "", "Ray is gone"])
    monkeypatch.setattr(ray_health.Health, "ask", lambda self: next(said))
    with pytest.raises(ray_cluster.NoRoom, match="--cluster: Ray is gone") as refusal:
        launched(None)
    assert refusal.value.status == 75


def test_stacks_of_a_frozen_node_are_fetched_before_it_is_killed(launched, monkeypatch):
    """A question without an answer yet is of the time before the dump; its log is taken, too."""
    fake, nodes = launched(HERE)
    monkeypatch.setattr(ray_cluster.time, "sleep", lambda _: None)
    fake.log = b"before\n"
    look(nodes)  # an answer: it has been heard
    fake.log = b"before\nold\n"
    nodes._hosted["actor/0"].question = nodes._hosted["actor/0"].ask()
    fake.log = b"before\nold\nthe stacks\n"
    nodes.dump_stacks(["actor/0"])
    assert nodes.log("actor/0").read_bytes() == b"before\nold\nthe stacks\n"
    assert nodes._hosted["actor/0"].question is None


@pytest.mark.parametrize("is_called, num_lives, reason", [(False, 3, "actor/0 died 3 times in a row, .*"), (True, 1, "and others call it")])
def test_a_node_of_any_program_returns_a_few_times_unless_others_call_it(launched, monkeypatch, is_called, num_lives, reason):
    monkeypatch.setattr(restarts, "_FIRST_SECONDS", 0.0)
    fake, nodes = launched(HERE)
    fake.exit_status = 1
    monkeypatch.setattr(nodes, "is_called", lambda name: is_called)
    with pytest.raises(RuntimeError, match=f"actor/0 ended with status 1, {reason}; see .*actor/0"):
        ray_cluster.wait(nodes, restarts=restarts.Restarts(max_in_a_row=2, max_per_hour=60))
    assert len(fake.jobs) == num_lives
