"""Runs a program on a Ray cluster: Ray decides where nodes run, and tells when a host is gone.

Every node is a Ray actor that does nothing but start the node's own process (`node_host`) on the host where Ray put it:
the process has the same command, signals and devices as in a local run. What happens after a death is decided in
`supervising`, as for local runs. Ages are sent, never times, so that no two clocks are compared.
"""

import contextlib
import ipaddress
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from impala.config import ConfigError
from impala.launching import addresses, beats, commands, ending, local, memory, node_host, ray_health, rpc, stopping
from impala.launching.processes import EXIT_INTERRUPTED, EXIT_TRY_AGAIN, end_with_parent, first_line
from impala.launching.restarts import Restarts, Verdict
from impala.launching.roles import Role, Roles
from impala.launching.shared_memory import machine

_POLL_SECONDS, _CALM_SECONDS = 0.25, 2.0  # between two questions to a node: usually, and while all run well
_ASK_SECONDS, _CONNECT_SECONDS, _PROBE_SECONDS = 30.0, 5.0, 20.0
# Each question costs Ray milliseconds on either side. So many nodes are asked in a second, or more where there are more
# than 83 nodes: none may be left alone for so long that it counts as frozen.
_QUESTIONS_PER_SECOND = 50
# Until a node is placed again whose host is not fit for it, and until that host may be tried again.
_REFUSED_SECONDS, _AVOIDED_SECONDS = 60.0, 600.0
_SOON_SECONDS = 60.0  # a death sooner after a start is a reason to look for another place
_FIRST_PLACED_SECONDS = 5.0  # for nodes that few places suit, before the others take room (`Nodes._place_all`)
_HOST_LABEL = "ray.io/node-id"  # of every host
_ADDRESS = "the address"  # a fact of a host: the first of its addresses that is public, or "private"
_PRIVATE = "private"
_EXPECTED_ADDRESS = "expected a private network, or cluster.trusted_network=true behind a firewall"
_TELLING_SECONDS = 1.0  # until calls have left, before this process ends
_END_SECONDS = 3.0  # for a host to end its node before its actor is killed, which ends both


class _Consent:
    """What the caller of `connect` has agreed to; a process has one connection."""

    may_be_public = False  # hosts' addresses


class Needs(NamedTuple):
    """What a node needs of its host."""

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0  # 0: whatever there is


class Placement(NamedTuple):
    """Where the nodes of a program may run.

    `at_launcher`: (a node's name) → whether it must run on the launcher's host. `together`: (a node's name) → the name
    of its group, whose nodes must share a host; None: anywhere. `spreads`: (the name of a node of neither kind) →
    whether it is to stand where few others do. `num_awaited`: of the nodes that return alone, how many must have a
    place before the program begins; the others join when there is room for them.
    """

    needs: Callable[[str], Needs] = lambda name: Needs()
    at_launcher: Callable[[str], bool] = lambda name: False
    together: Callable[[str], str | None] = lambda name: None
    spreads: Callable[[str], bool] = lambda name: False
    num_awaited: int | None = None  # None: all
    wait_seconds: float = 60.0  # for room; then the launch is refused
    ports: tuple[int, int] = (20_000, 29_999)
    own_words: Sequence[tuple[str, str]] = ()  # (key, word of a module of the user's), the same on all hosts
    shares_folder: bool = False  # the launcher's folder is at the same path on all hosts
    ignored: Sequence[str] = ()  # facts of a host that may differ from the launcher's
    avoids_unfit: bool = False  # a host that is not fit for a node is avoided; else the launch is refused


def connect(address: str, *, is_trusted: bool) -> None:
    """Connects this process to the cluster at `address`, "auto" for the one that this host belongs to.

    Raises:
      ConfigError: Ray is not installed, does not answer or refuses, or a host has a public address and `is_trusted` is
        false.
    """
    # Ray would print a screen of what a host's raylet wrote last when the host is lost.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise ConfigError(["--cluster: needs ray; pip install 'impala[cluster]'"]) from None
    if address != "auto":
        _probe(address, address)
    elif found := _address_of_auto():
        _probe(found, f"auto ({found})")
    try:
        with _silent_stderr():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except Exception as error:  # ConnectionError, RuntimeError, AuthenticationError: whatever Ray raises
        said = first_line(error).partition(" Please specify")[0].rstrip(".")  # what follows is of Ray's own commands
        raise ConfigError([
            f"--cluster {address}: {said}; expected a running Ray cluster that this host belongs to, and "
            "its token"
        ]) from None  # fmt: skip
    hosts = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if unusable := [fault for host in hosts if (fault := _fault_of(host))]:
        ray.shutdown()
        raise ConfigError([f"--cluster {address}: {unusable[0]}"])
    public = _public([*hosts, *_interfaces()])
    _Consent.may_be_public = is_trusted
    if public and not is_trusted:
        ray.shutdown()
        raise ConfigError([
            f"--cluster {address}: hosts have public addresses ({', '.join(public[:3])}), and Reverb's port asks "
            f"nobody who they are; {_EXPECTED_ADDRESS}"
        ])  # fmt: skip


def _fault_of(host: str) -> str | None:
    """Returns why nodes cannot be called at this address of a host; None if they can."""
    expected = "expected `ray start --node-ip-address` with an IPv4 address, on which alone nodes listen"
    try:
        return f"a host's address is {host}; {expected}" if _ip(host).version != 4 else None
    except OSError as error:
        return f"a host's address is {host}: {error.strerror}; {expected}"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Returns a host's address; Ray may know the host by a name. Raises OSError for a name that nobody knows."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.ip_address(socket.gethostbyname(host))


def _address_of_auto() -> str | None:
    """Returns the address that `auto` means to Ray; None where there is none, which `ray.init` says itself."""
    from ray._private import services

    try:
        return services.canonicalize_bootstrap_address("auto")
    except Exception:  # ConnectionError, ValueError: whatever Ray raises
        return None


def _probe(address: str, shown: str) -> None:
    """Raises ConfigError if nobody listens at `address`, or what listens there does not answer as Ray's head does.

    It asks in a process that can be killed: `ray.init` would wait for ever, and hear no Ctrl-C. What else is wrong (a
    token, a version), `ray.init` says itself.
    """
    host, _, port = address.rpartition(":")
    code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()  # [::1]:6379
        subprocess.run(
            [sys.executable, "-c", code, address], timeout=_PROBE_SECONDS, check=False, capture_output=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        is_silent = isinstance(error, subprocess.TimeoutExpired)
        is_address = port.isdecimal()
        what = f"no answer of Ray's within {_PROBE_SECONDS:g} s" if is_silent else error if is_address else "no address"
        line = f"--cluster {shown}: {what}; expected HOST:PORT where `ray start --head` listens, or auto"
        line += ", and certificates as there, if it has RAY_USE_TLS" if is_silent else ""
        raise ConfigError([line]) from None


@contextlib.contextmanager
def _silent_stderr():
    """Drops what is written to standard error, by C++ too: Ray repeats for seconds that a token is wrong."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _network_facts(ray) -> dict[str, str]:
    """Returns facts of a host's addresses, of all its interfaces, since Reverb listens on all of them.

    If the one that Ray uses is a loopback one, Reverb confuses processes of the same id, and crashes.
    """
    ip = ray.util.get_node_ip_address()
    facts = {_ADDRESS: next(iter(_public([ip, *_interfaces()])), _PRIVATE)}
    facts["the family of its address"] = f"IPv{_ip(ip).version}"
    if _ip(ip).is_loopback:
        facts["at a loopback address, the namespace of process ids"] = os.readlink("/proc/self/ns/pid")
    return facts


def _interfaces() -> list[str]:
    """Returns the addresses of this host."""
    families = (socket.AF_INET, socket.AF_INET6)
    found = [each for interface in psutil.net_if_addrs().values() for each in interface if each.family in families]
    return [each.address.partition("%")[0] for each in found]


def _public(ips: Iterable[str]) -> list[str]:
    """Returns those addresses that the Internet may reach, each once."""
    return [ip for ip in dict.fromkeys(ips) if _ip(ip).is_global]


class Interrupted(ConfigError):
    """It was time to stop before all had found a place."""

    status = EXIT_INTERRUPTED


class NoRoom(ConfigError):
    """The cluster has no room for the nodes that must have a place before the program begins, or is gone."""

    status = EXIT_TRY_AGAIN


class _Host(node_host.NodeHost):
    """The class of the Ray actors."""

    def describe(self, *compared) -> tuple[str, dict[str, str], str]:
        """Returns the host's name, facts, and Ray's id of it: several hosts may have one name."""
        import ray

        host, facts = super().describe(*compared)
        return host, facts | _network_facts(ray), ray.get_runtime_context().get_node_id()

    def reserve(self, names: Sequence[str], ports: tuple[int, int]) -> dict[str, str]:
        import ray

        return super().reserve(names, ray.util.get_node_ip_address(), ports)


class _Hosted:
    """A node, the Ray actor on its host, and what is known of both."""

    def __init__(self, actor, described):
        self.actor, self.described = actor, described  # `described` is ready when the actor has a place
        self.place: tuple[str, dict[str, str], str] | None = None  # the value of `described`: see `_Host.describe`
        self.is_started, self.is_dismissed, self.began, self.answered = False, False, time.monotonic(), 0.0
        self.reserving = None  # a call of `reserve`
        self.addresses: dict[str, str] | None = None  # its answer
        self.cannot_be_at = ""  # where the actor cannot even be made, for lack of this package perhaps
        self.question = None  # a call of `status` without an answer yet
        self.is_lost = False  # the place is of no more use
        self.exit_status: int | None = None
        self.number = 1  # of the start there
        self.status = node_host.Status(
            0, None, False, beats.Node(0.0, False, "starting", 0.0, {}), False, False, b"", 0
        )  # fmt: skip
        self.num_logged = 0  # bytes of what is written there that have come

    @property
    def is_over(self) -> bool:
        return self.exit_status is not None

    def ask(self):
        """Asks the host for the process's status, and for what has not come of its log."""
        return self.actor.status.remote(self.num_logged)

    def again(self) -> "_Hosted":
        """Returns the same place for another process of the node."""
        new = _Hosted(self.actor, self.described)
        new.place, new.number, new.num_logged = self.place, self.number + 1, self.num_logged
        return new


class Nodes:
    """The nodes of a program on a cluster; used by a supervisor like `local.Processes`.

    Args:
      starts: a command for each.
      token: of the run's RPCs.
      should_stop: asked while it waits for room.
    """

    can_start_again, keeps_addresses = True, False  # what starts again may stand on another host

    def __init__(
        self, starts: Sequence[commands.Command], roles: Roles, folder: Path, placement: Placement, token: str,
        should_stop: Callable[[], bool],
    ):  # fmt: skip
        import ray

        self._should_stop, self._health = should_stop, ray_health.Health(ray, should_stop)
        self._require_ray()
        self._ray, self.roles, self._logs, self._placement = ray, roles, folder / "logs", placement
        self._commands, self._token = {command.name: command for command in starts}, token
        self._data = {data: ray.put(data.read_bytes()) for data in {command.data for command in starts}}
        self._launched, self._polled = time.monotonic(), 0.0
        self._memory, self._kept = starts[0].data.parents[1] / "memory.json", 0.0
        self.wants_end = False  # a node has called `lp.stop()`
        self._is_ending = self._is_killed = False
        # Each launch has another token, so a folder with the same token is the launcher's own.
        self._compared = placement.own_words, [folder / "token"] if placement.shares_folder else []
        self._facts = node_host.facts(*self._compared) | _network_facts(ray)
        self._current_folder = ""
        with contextlib.suppress(OSError):  # it was removed
            self._current_folder = os.getcwd()
        self.addresses: dict[str, str] = {}  # "host:port" by key
        self._groups: dict[str, tuple[list[str], Any]] = {}
        self._fit: set[str] = set()  # nodes whose hosts have been compared with this one
        self._lost: dict[str, str] = {}  # nodes that were placed on a dead host, and what Ray said
        self._unfit: dict[str, tuple[str, float]] = {}  # Ray's id of a host that is avoided: why, and until when
        self._due: dict[str, float] = {}
        self._incarnations: dict[str, int | None] = {}  # of each node that was started; None: its launch's
        self._new_incarnation, self._has_begun = lambda name: None, False
        self._hosted: dict[str, _Hosted] = {}
        try:
            self._place_all()
            self._begin()
        except BaseException:
            self.kill()
            raise

    # --- placing and starting

    def _place_all(self) -> None:
        """Places all nodes; first those that few places suit, or else the others might take their room.

        It does not wait for long: an autoscaler brings hosts only for nodes that have been placed and found no room.
        """
        at_launcher = [name for name in self._commands if self._placement.at_launcher(name)]
        in_groups = [name for name in self._commands if self._placement.together(name) and name not in at_launcher]
        others = [name for name in self._commands if name not in {*at_launcher, *in_groups}]
        alone = [name for name in others if self.roles.of(name).returns_alone]  # they may wait
        stages = [each for each in (at_launcher, in_groups, [n for n in others if n not in alone], alone) if each]
        for names in stages:
            self._hosted |= {name: self._place(name) for name in names}
            required = [name for name in names if not self.roles.of(name).returns_alone]  # an evaluator may wait
            deadline = time.monotonic() + _FIRST_PLACED_SECONDS * (names is not stages[-1])
            while time.monotonic() < deadline and not self._should_stop() and not self._are_settled(required):
                time.sleep(0.05)

    def _are_settled(self, names: Sequence[str]) -> bool:
        """Returns whether each has a place or can have none."""
        standing = self._standing()
        return all(name in standing or self._hosted[name].is_over for name in names)

    def _place(self, name: str) -> _Hosted:
        needs = self._placement.needs(name)
        options = dict(num_cpus=needs.cpus, num_gpus=needs.gpus, max_restarts=0, max_task_retries=0)
        options |= {"memory": needs.memory_gb * 1e9} if needs.memory_gb else {}
        if not (self._placement.at_launcher(name) or self._placement.together(name)):
            options["label_selector"] = self._fit_hosts()
        actor = self._ray.remote(_Host).options(**options, scheduling_strategy=self._strategy(name)).remote()
        return _Hosted(actor, actor.describe.remote(*self._compared))

    def _strategy(self, name: str):
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        placement = self._placement
        if placement.at_launcher(name):
            return NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        group = placement.together(name)
        if group is None:
            return "SPREAD" if placement.spreads(name) else "DEFAULT"
        if group not in self._groups:
            members = [each for each in self._commands if placement.together(each) == group]
            bundles = [_bundle(placement.needs(member)) for member in members]
            where = [self._fit_hosts()] * len(bundles) if self._avoided() else None
            reserved = self._ray.util.placement_group(bundles, strategy="STRICT_PACK", bundle_label_selector=where)
            self._groups[group] = members, reserved
        members, reserved = self._groups[group]
        return PlacementGroupSchedulingStrategy(reserved, placement_group_bundle_index=members.index(name))

    def _fit_hosts(self) -> dict[str, str] | None:
        """Returns Ray's label selector for the hosts that are not known to be unfit; None: any."""
        avoided = self._avoided()
        return {_HOST_LABEL: f"!in({','.join(avoided)})"} if avoided else None

    def _avoided(self) -> list[str]:
        return [host for host, (_, until) in self._unfit.items() if time.monotonic() < until]

    def _avoid(self, host: str, words: str) -> None:
        self._unfit[host] = words, time.monotonic() + _AVOIDED_SECONDS

    def _begin(self) -> None:
        """Waits until the required nodes have places and ports, compares their hosts with this one, and starts them."""
        alone = {name for name in self._commands if self.roles.of(name).returns_alone}
        others = self._commands.keys() - alone
        awaited = self._placement.num_awaited
        num_alone = len(alone) if awaited is None else min(awaited, len(alone))
        deadline, patience = time.monotonic() + self._placement.wait_seconds, None
        while True:
            standing = self._fitting(self._standing())
            lost = {name for name, hosted in self._hosted.items() if hosted.is_over}
            if others <= standing and len(standing & alone) >= num_alone:
                patience = patience or time.monotonic() + _ASK_SECONDS
                if not (silent := self._without_ports(standing)):
                    break
                if time.monotonic() > patience:
                    line = f"--cluster: the host of {', '.join(silent[:4])} does not answer"
                    raise NoRoom([f"{line}; expected a host that answers, with free ports"])
            elif time.monotonic() > deadline or lost & others or len(alone - lost) < num_alone:
                self._refuse_hosts()
                raise NoRoom([self._words_on_room(sorted(others - standing), sorted(alone - standing))])
            else:
                patience = None
            if self._should_stop():
                raise Interrupted(["--cluster: interrupted while it waited for room"])
            self._require_ray()
            time.sleep(0.1)
        for name in standing:
            self.addresses |= self._hosted[name].addresses or {}
        for name in self._commands:
            if name in standing:
                self._start(name)
        self._has_begun = True

    def _without_ports(self, standing: set[str]) -> list[str]:
        """Reserves ports on the hosts of those nodes that others call; returns the names of the ones without an answer.

        A node whose host dies meanwhile is lost, and placed again by `_fitting`.
        """
        servers = [name for name in sorted(standing) if self._commands[name].ports]
        waiting = [name for name in servers if self._hosted[name].addresses is None]
        for name in waiting:
            self._hosted[name].reserving = self._hosted[name].reserving or self._reserve(name)
        asked = {self._hosted[name].reserving: name for name in waiting}
        ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0.1) if asked else ([], [])
        for reference in ready:
            hosted = self._hosted[asked[reference]]
            try:
                hosted.addresses = self._ray.get(reference)
            except self._ray.exceptions.ActorUnavailableError:
                hosted.reserving = None
            except self._ray.exceptions.RayActorError as error:
                self._lose(asked[reference], EXIT_TRY_AGAIN, _line(error), lost_host=True)
            except self._ray.exceptions.RayError as error:  # no port is free there
                raise NoRoom([f"--cluster: {_line(error)}; expected a host that answers, with free ports"]) from None
        return [name for name in waiting if self._hosted[name].addresses is None]

    def _require_ray(self) -> None:
        if fault := self._health.ask():
            raise NoRoom([f"--cluster: {fault}; expected a running Ray cluster: start it, and give the command again"])

    def _fitting(self, standing: set[str]) -> set[str]:
        """Compares nodes' hosts with this one, and places again those whose host is unfit or lost; returns the rest.

        A node is lost at once if Ray places it on a host that has died, which Ray learns after up to a minute.

        Raises:
          ConfigError: a host is unfit, and cannot be avoided.
        """
        for name in sorted(standing - self._fit):
            try:
                self._compare(name)
                self._fit.add(name)
            except ConfigError as error:
                if not self._placement.avoids_unfit or self._placement.at_launcher(name):
                    raise
                self._avoid(self._hosted[name].place[2], error.lines[0])
        movable = [name for name in self._commands if not self._placement.at_launcher(name)]
        over = [name for name in movable if self._hosted[name].is_over]
        failed = [name for name in over if self._placement.avoids_unfit and self._hosted[name].cannot_be_at]
        lost = [name for name in over if self._hosted[name].status.node.facts.get("lost_host")]
        for name in failed:
            self._avoid_where_it_failed(name)
        self._lost |= {name: self._hosted[name].status.node.facts["last_words"] for name in lost}
        avoided = self._avoided()
        refused = [name for name in movable if name in standing and self._hosted[name].place[2] in avoided]
        unfit = [*failed, *lost, *refused]
        groups = {self._placement.together(name) for name in unfit} - {None}
        moving = {*unfit, *(name for name in movable if self._placement.together(name) in groups)}
        self._dismiss([self._hosted[name] for name in moving])
        for group in groups:
            self._ray.util.remove_placement_group(self._groups.pop(group)[1])
        for name in moving:
            self._hosted[name] = self._place(name)
        self._fit -= moving
        return standing - moving

    def _avoid_where_it_failed(self, name: str) -> None:
        """Avoids the host that could not make a node, unless another node stands there, or it is this one."""
        hosted, mine = self._hosted[name], self._ray.get_runtime_context().get_node_id()
        used = {each.place[2] for each in self._hosted.values() if each.place and not each.is_over} | {mine}
        found = [node for node in self._ray.nodes() if node["Alive"] and node["NodeID"] not in used]
        for node in found:
            if node["NodeManagerAddress"] == hosted.cannot_be_at:
                self._avoid(node["NodeID"], f"{name} {hosted.status.node.facts['last_words']}")

    def _refuse_hosts(self) -> None:
        """Raises ConfigError if a host cannot make nodes at all."""
        for name, hosted in self._hosted.items():
            if hosted.cannot_be_at:
                words = hosted.status.node.facts["last_words"]
                raise ConfigError([f"{name} {words}; expected the same packages on every host"])

    def _standing(self) -> set[str]:
        """Returns the names of the nodes whose actors have found a place and not been lost since."""
        waiting = {each.described: name for name, each in self._hosted.items() if not each.place and not each.is_over}
        ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0) if waiting else ([], [])
        for reference in ready:
            try:
                self._hosted[waiting[reference]].place = self._ray.get(reference)
            except self._ray.exceptions.ActorUnavailableError:
                continue
            except self._ray.exceptions.RayError as error:
                self._lose_unplaced(waiting[reference], error)
        return {name for name, hosted in self._hosted.items() if hosted.place and not hosted.is_over}

    def _lose_unplaced(self, name: str, error: Exception) -> None:
        """Loses a node whose host cannot make it, can never have room for it, or is gone already."""
        hosted = self._hosted[name]
        if not getattr(error, "actor_init_failed", False):
            lost_host = isinstance(error, self._ray.exceptions.RayActorError)
            return self._lose(name, EXIT_TRY_AGAIN, _line(error), lost_host=lost_host)
        address = re.search(r"\bip=([\w.:]+)", str(error))
        hosted.cannot_be_at = address[1] if address else "a host"
        words = f"on {hosted.cannot_be_at}: {str(error).strip().splitlines()[-1][:200]}"  # the error's own line
        self._lose(name, EXIT_TRY_AGAIN, words, says=[f"{name} {words}"])
        if self._has_begun:
            self._avoid_where_it_failed(name)
            self.start_again(name, _REFUSED_SECONDS)  # no death: it waits for another host

    def _compare(self, name: str, ignored: Sequence[str] = ()) -> None:
        """Raises ConfigError if a host has a public address without consent, or something else is installed there."""
        host, theirs, _ = self._hosted[name].place
        found = node_host.differences(self._facts, theirs, [*self._placement.ignored, *ignored, _ADDRESS])
        lines = [f"{name} on {host}: {line}; expected the same on every host" for line in found[:5]]
        if theirs.get(_ADDRESS, _PRIVATE) != _PRIVATE and not _Consent.may_be_public:
            lines.insert(0, f"{name} on {host}: its address {theirs[_ADDRESS]} is public; {_EXPECTED_ADDRESS}")
        if lines:
            raise ConfigError(lines)

    def _reserve(self, name: str):
        keys = [addresses.key(name, port) for port in self._commands[name].ports]
        return self._hosted[name].actor.reserve.remote(keys, self._placement.ports)

    def _start(self, name: str) -> None:
        hosted, command, now = self._hosted[name], self._commands[name], time.monotonic()
        role = self.roles.of(name)
        self._incarnations[name] = self._new_incarnation(name) if name in self._incarnations else None
        job = node_host.Job(
            name, hosted.number, command.task, self._token, self.addresses, now - self._launched, machine(),
            role.sees_gpu, role.imports if role.returns_alone else (), role.tells, self._incarnations[name],
            str(self._memory), self._current_folder,
        )  # fmt: skip
        hosted.actor.start.remote(job, self._data[command.data])
        hosted.is_started, hosted.began, hosted.answered = True, now, now

    def _words_on_room(self, *groups: Sequence[str]) -> str:
        """Says what is missing for the first of `groups` that needs more than is free, or else the first not empty."""
        free = self._ray.available_resources()

        def wanted_and_free(names: Sequence[str]) -> list[tuple[str, float, float]]:
            needs = [self._placement.needs(name) for name in names]
            cpus, gpus = sum(need.cpus for need in needs), sum(need.gpus for need in needs)
            memory_gb = sum(need.memory_gb for need in needs)
            return [
                ("CPUs", cpus, free.get("CPU", 0)), ("GPUs", gpus, free.get("GPU", 0)),
                ("GB of memory", memory_gb, round(free.get("memory", 0) / 1e9, 1)),
            ]  # fmt: skip

        missing = [names for names in groups if names]
        short = [names for names in missing if any(wanted > there for _, wanted, there in wanted_and_free(names))]
        names = (short or missing)[0]  # what has room may only be slow to start
        is_here = self._placement.at_launcher(names[0])
        where, there = (" on the launcher's host", " on all hosts together") if is_here else ("", "")
        lacks = [
            f"{wanted:g} {what}, of which {num_free:g} are free{there}"
            for what, wanted, num_free in wanted_and_free(names) if wanted
        ]  # fmt: skip
        said = [hosted.status.node.facts["last_words"] for hosted in self._hosted.values() if hosted.is_over]
        said += [words for name, words in self._lost.items() if name in names]
        said += [words for words, _ in self._unfit.values()]
        return (
            f"--cluster: no room for {', '.join(names[:4])}{' …' if len(names) > 4 else ''}{where} within "
            f"{self._placement.wait_seconds:g} s: they need {' and '.join(lacks) or 'a host'}"
            f"{f' ({said[0]})' if said else ''}; expected a larger cluster"
        )

    # --- looking

    def _poll(self) -> None:
        """Asks every host that owes no answer, and takes the answers that are there.

        Raises:
          ending.Unreachable: Ray's head, or the raylet of this host, is gone.
        """
        is_calm = not self._is_ending and not any(
            hosted.is_over or hosted.is_started and not hosted.status.is_begun for hosted in self._hosted.values()
        )
        least = min(len(self._hosted) / _QUESTIONS_PER_SECOND, beats.FROZEN_SECONDS / 3)
        period = max(_CALM_SECONDS if is_calm else _POLL_SECONDS, least)
        if self._is_killed or self._health.fault or time.monotonic() - self._polled < period:
            return
        self._polled = time.monotonic()
        self._ask_ray()
        for name in self._standing():
            if not self._hosted[name].is_started and not self._is_ending:
                self._begin_late(name)
        asked = {}
        for name, hosted in self._hosted.items():
            if hosted.is_started and not hosted.is_over:
                hosted.question = hosted.question or hosted.ask()
                asked[hosted.question] = name
        ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0.05) if asked else ([], [])
        for reference in ready:
            self._take(asked[reference], reference)
        if self._polled - self._kept >= 1.0:
            memory.keep(self._memory, {name: self._hosted[name].status.node.rss_mb for name in asked.values()})
            self._kept = self._polled

    def _ask_ray(self) -> None:
        """Raises `ending.Unreachable` if Ray is gone; before that it lets nodes save whose hosts still run."""
        if fault := self._health.ask():
            left = [hosted for hosted in self._hosted.values() if hosted.is_started and not hosted.is_over]
            for hosted in left:
                hosted.actor.signal.remote(signal.SIGTERM)
            time.sleep(_TELLING_SECONDS if left else 0.0)
            raise ending.Unreachable(fault)

    def _begin_late(self, name: str) -> None:
        """Starts a node that found its place after the program had begun."""
        try:
            self._compare(name, ignored=node_host.EDITED)  # the run goes on as it began
        except ConfigError as error:
            self._avoid(self._hosted[name].place[2], error.lines[0])
            self._lose(name, EXIT_TRY_AGAIN, error.lines[0], says=[error.lines[0]])
            self.start_again(name, _REFUSED_SECONDS)  # no death: it waits for another host
        else:
            self._start(name)

    def _take(self, name: str, reference) -> None:
        hosted = self._hosted[name]
        hosted.question = None
        try:
            status = self._ray.get(reference)
        except self._ray.exceptions.ActorUnavailableError:  # the network may be back soon; the silence is measured
            return
        except self._ray.exceptions.RayActorError:
            return self._lose(name, EXIT_TRY_AGAIN, "its host, or Ray's worker there, is gone", lost_host=True)
        except self._ray.exceptions.RayError as error:  # it could not be started
            return self._lose(name, EXIT_TRY_AGAIN, _line(error))
        if status.number != hosted.number:  # a connection that broke has lost the call
            return self._lose(name, EXIT_TRY_AGAIN, "its host was not told to start it")
        hosted.status, hosted.answered = status, time.monotonic()
        hosted.exit_status = hosted.status.exit_status
        new = status.log[max(0, hosted.num_logged - status.log_at) :]  # two questions may have been on their way
        if new:
            left_out, hosted.num_logged = status.log_at - hosted.num_logged, status.log_at + len(status.log)
            new = b"\n(%d bytes are left out here)\n" % left_out * (left_out > 0) + new
            with contextlib.suppress(OSError):  # a full disk costs the log
                self.log(name).parent.mkdir(parents=True, exist_ok=True)
                with self.log(name).open("ab") as file:
                    file.write(new)
        self.wants_end |= hosted.status.wants_end

    def _lose(self, name: str, status: int, words: str, **facts) -> None:
        hosted = self._hosted[name]
        node = hosted.status.node
        hosted.status = hosted.status._replace(node=node._replace(facts=node.facts | {"last_words": words} | facts))
        hosted.exit_status, hosted.is_lost = status, True

    def log(self, name: str) -> Path:
        return self._logs / name

    def names(self) -> list[str]:
        """Returns the names of all nodes."""
        return list(self._commands)

    def is_called(self, name: str) -> bool:
        """Returns whether a node has an address at which others call it."""
        return bool(self._commands[name].ports)

    def places(self) -> str:
        """Returns which nodes stand on which host, and how many wait for room."""
        standing, by_host = self._standing(), {}
        for name in self._commands:
            if name in standing:
                host, _, number = self._hosted[name].place
                by_host.setdefault((host, number), []).append(name)
        places = "; ".join(f"{host}: {_shortly(names)}" for (host, _), names in by_host.items())
        waiting = len(self._commands) - len(standing)
        hosts = f"{len(by_host)} host{'s' * (len(by_host) > 1)}: {places}"
        return hosts + (f"; {waiting} node{'s wait' if waiting > 1 else ' waits'} for room" if waiting else "")

    def words(self) -> list[str]:
        """Returns lines that say where the nodes stand, and what is open to strangers."""
        lines = [self.places(), *(f"{line}: that host is not used" for line, _ in self._unfit.values())]
        if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
            lines.append("Ray asks for no token: whoever reaches its ports runs code on its hosts (docs/security.md)")
        return lines

    def left(self) -> list[str]:
        """Returns the names of the nodes that were started and have not ended."""
        self._poll()
        return [name for name, hosted in self._hosted.items() if hosted.is_started and not hosted.is_over]

    def nodes(self) -> dict[str, beats.Node]:
        """Returns what is known of every node that was started and has not ended."""
        return {name: self.node(name) for name in self.left()}

    def node(self, name: str) -> beats.Node:
        """Returns what was last known of a node."""
        hosted = self._hosted[name]
        unheard = time.monotonic() - hosted.answered
        node = hosted.status.node
        return node._replace(
            silent_seconds=node.silent_seconds + unheard, is_frozen=node.is_frozen or unheard > beats.FROZEN_SECONDS
        )

    def lived_seconds(self, name: str) -> float:
        """Returns how many seconds ago a node was last started."""
        return time.monotonic() - self._hosted[name].began

    def ended(self) -> dict[str, int]:
        """Returns the exit status of every node that has ended and is not to be started again."""
        self._poll()
        return {
            name: hosted.exit_status for name, hosted in self._hosted.items()
            if hosted.is_over and name not in self._due
        }  # fmt: skip

    def has_heard(self, name: str) -> bool:
        """Returns whether a node gave any sign of life since it was started."""
        return self._hosted[name].status.has_heard

    def has_answered(self, name: str) -> bool:
        """Returns whether a node's process has been seen since it was started."""
        return self._hosted[name].status.is_begun

    # --- ending, and starting again

    def start_again(self, name: str, seconds: float) -> None:
        """Lets `start_due` start an ended node again, `seconds` from now or later."""
        hosted = self._hosted[name]
        # If it died there twice, the second time soon, Ray is asked for a place anew.
        lived_seconds = self.lived_seconds(name) - self.node(name).silent_seconds  # not those that it was frozen
        hosted.is_lost |= hosted.number > 1 and lived_seconds < _SOON_SECONDS
        self._due[name] = time.monotonic() + seconds

    def start_due(self, new_incarnation: Callable[[str], int]) -> None:
        """Starts the nodes that are due, each as an incarnation of its own, where they were or where there is room."""
        self._new_incarnation = new_incarnation
        due = [name for name, at in self._due.items() if time.monotonic() >= at]
        staying = self._staying(due)
        self._dismiss([self._hosted[name] for name in due if name not in staying])  # a lost host costs the wait once
        for name in due:
            if name in staying:
                self._hosted[name] = self._hosted[name].again()
                self._start(name)
            else:
                self._hosted[name] = self._place(name)
            del self._due[name]

    def _staying(self, names: Sequence[str]) -> set[str]:
        """Returns which of these nodes can start again at once where they were; nothing of them is left there."""
        may_stay = {name: self._hosted[name] for name in names if not self._hosted[name].is_lost}
        asked = {hosted.actor.clear.remote(): name for name, hosted in may_stay.items()}
        ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=_END_SECONDS) if asked else ([], [])
        staying = set()
        for reference in ready:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.get(reference)
                staying.add(asked[reference])
        return staying

    def dump_stacks(self, names: Collection[str]) -> None:
        """Makes nodes write the stacks of all their threads into their logs, if their hosts answer."""
        for name in (heard := [name for name in names if self.has_heard(name)]):
            self.signal(name, signal.SIGCONT, signal.SIGUSR2)
        if heard:
            time.sleep(1.0)
        for name in heard:
            hosted = self._hosted[name]
            older, newer = hosted.question, hosted.ask()  # an older answer does not hold the stacks yet
            asked = [question for question in (older, newer) if question is not None]
            ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=_END_SECONDS)
            for question in asked:
                if question in ready and not hosted.is_over:
                    self._take(name, question)
            hosted.question = None if newer in ready else newer

    def signal(self, name: str, *numbers: int) -> None:
        """Sends signals to a node's process, if it runs."""
        if self._hosted[name].is_started:
            self._hosted[name].actor.signal.remote(*numbers)

    def stop(self, should_kill: Callable[[], bool] = lambda: False) -> None:
        """Ends the nodes in order, or all at once on `should_kill`; those that have not been placed are forgotten."""
        self._is_ending = True
        ending.in_turns(self, should_kill)

    def kill(self, name: str | None = None) -> None:
        """Ends every node, or one, at once; one keeps its place, for `start_due` to start it there again."""
        if name is not None:
            self.signal(name, signal.SIGKILL)
            if not self._hosted[name].is_over:
                self._hosted[name].exit_status = -signal.SIGKILL
            return
        self._is_killed = True  # nobody is asked any more
        self._dismiss(list(self._hosted.values()))
        while self._groups and not self._health.fault:
            self._ray.util.remove_placement_group(self._groups.popitem()[1][1])

    def _dismiss(self, chosen: Sequence[_Hosted]) -> None:
        """Ends nodes' processes and frees their places; a process ends with its actor, however that ends."""
        if not self._ray.is_initialized() or self._health.fault:
            return
        ends = [hosted.actor.end.remote() for hosted in chosen if hosted.is_started and not hosted.is_dismissed]
        if ends:
            self._ray.wait(ends, num_returns=len(ends), timeout=_END_SECONDS)
        for hosted in chosen:
            if not hosted.is_dismissed:
                self._ray.kill(hosted.actor)
            hosted.is_dismissed = True
            if hosted.exit_status is None:
                hosted.exit_status = -signal.SIGKILL


def _bundle(needs: Needs) -> dict[str, float]:
    wanted = {"CPU": needs.cpus, "GPU": needs.gpus, "memory": needs.memory_gb * 1e9}
    return {name: amount for name, amount in wanted.items() if amount}


def _shortly(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _line(error: Exception) -> str:
    error = getattr(error, "cause", None) or error  # of a RayTaskError, whose own text is a traceback
    return first_line(error)


def launch(
    program, folder: Path, roles: Roles | None = None, placement: Placement | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Nodes:  # fmt: skip
    """Launches any `lp.Program` on the cluster that this process is connected to; see `connect`.

    Args:
      folder: logs are gathered in `folder/logs`.
      roles: of the program's nodes; None: all are stopped together, and none has anything to save.
      placement: None: anywhere, a CPU for each.
      should_stop: asked while it waits for room.

    Raises:
      NoRoom: nodes that must have a place before the program begins found none in time.
      Interrupted: it was time to stop before that.
      ConfigError: a host has other packages than this one.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    token = folder / "token"
    rpc.use_new_token(token)
    scratch = local.make_scratch(logs)
    starts = commands.of(program, scratch, stopper=stopping.stop, bind=addresses.LookedUp)
    local.link_logs(logs, [command.name for command in starts])
    roles = roles or Roles(Role(label, turn=0, tells=False) for label in program.groups)
    nodes = Nodes(starts, roles, folder, placement or Placement(), token.read_text(), should_stop)
    addresses.write(scratch / "addresses.json", nodes.addresses)
    os.environ[addresses.TABLE_VARIABLE] = str(scratch / "addresses.json")  # for clients in this process
    return nodes


def wait(
    nodes: Nodes, should_stop: Callable[[], bool] = lambda: False, restarts: Restarts | None = None
) -> None:  # fmt: skip
    """Waits until all nodes have returned, one calls `lp.stop()` or it is time to stop; then ends them.

    A node that fails, or whose host is lost, starts again where there is room, unless other nodes call it: it would
    come back without what it held, and perhaps at another address.

    Args:
      restarts: decides on deaths; None: four in a row of a node, sixty in an hour of all.

    Raises:
      RuntimeError: a node failed and does not return; all others are ended then.
    """
    restarts = restarts or Restarts(max_in_a_row=4, max_per_hour=60)
    try:
        while not should_stop() and not nodes.wants_end:
            ended = nodes.ended()
            for name in [name for name, status in ended.items() if status]:
                _bring_back(nodes, name, ended.pop(name), restarts)
            nodes.start_due(lambda name: restarts.count)
            if len(ended) == len(nodes.names()):
                break
            time.sleep(_POLL_SECONDS)
        nodes.stop()
    finally:
        nodes.kill()


def _bring_back(nodes: Nodes, name: str, status: int, restarts: Restarts) -> None:
    lost_host = nodes.node(name).facts.get("lost_host", False)
    verdict = Verdict(None, "and others call it") if nodes.is_called(name) else restarts.decide(
        name, lived_seconds=nodes.lived_seconds(name), now=time.monotonic(), lost_host=lost_host
    )  # fmt: skip
    if verdict.seconds is None:
        reason = f", {verdict.reason}" if verdict.reason else ""
        raise RuntimeError(f"{name} ended with status {status}{reason}; see {nodes.log(name)}")
    nodes.start_again(name, verdict.seconds)
