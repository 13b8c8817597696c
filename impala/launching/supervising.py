"""Watches the nodes of a launched program until all is done; starts again what dies, and ends the rest in order."""

import contextlib
import signal
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from impala.launching import beats, ending
from impala.launching.interrupts import Interrupts
from impala.launching.processes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_TRY_AGAIN, EXIT_USAGE, tell
from impala.launching.restarts import Restarts, Verdict
from impala.launching.roles import Roles

_TICK_SECONDS = 0.5
_CAUSE_SECONDS = 20.0  # until Ray knows of a lost host, whose loss its peer noticed at once; 10 were measured
START_SECONDS, STARTS_SECONDS = 5.0, 60.0  # between attempts to start a node while the machine refuses it, and in all
_LOG_BYTES, _LOG_LINES = 1_000_000, 200  # of a node's log that are looked at, and told


class Nodes(Protocol):
    """The nodes of a launched program: `local.Processes`, `threads.Threads` or `ray_cluster.Nodes`."""

    roles: Roles
    can_start_again: bool
    keeps_addresses: bool  # of what is started again, so that others still find it
    wants_end: bool  # a node has called `lp.stop()`

    def names(self) -> list[str]: ...
    def places(self) -> str: ...  # which nodes stand on which host, for the user; "" if all stand on this machine
    def words(self) -> list[str]: ...  # on the launch, for the user
    def left(self) -> list[str]: ...
    def nodes(self) -> dict[str, beats.Node]: ...
    def node(self, name: str) -> beats.Node: ...
    def lived_seconds(self, name: str) -> float: ...  # this and `start_again`: only where `can_start_again`
    def ended(self) -> dict[str, int]: ...
    def log(self, name: str) -> Path | None: ...
    def dump_stacks(self, names: Collection[str]) -> None: ...
    def start_again(self, name: str, seconds: float) -> None: ...  # here and in `stop`: more, where `keeps_addresses`
    def start_due(self, new_incarnation: Callable[[str], int]) -> None: ...
    def stop(self, should_kill: Callable[[], bool] = ...) -> None: ...
    def kill(self, name: str | None = None) -> None: ...


class Outcome(NamedTuple):
    """How a launch came to its end."""

    status: int | None  # the command's; None: the program is to be launched again, from the newest checkpoint


LAUNCH_AGAIN = Outcome(None)


class Supervisor:
    """Watches one launch.

    Args:
      nodes: that were launched.
      interrupts: entered before the launch.
      on_tick: called twice a second.
      say: tells the user something.
      restarts: decides on what died.
      new_incarnation: (name of a node that is started again) → its incarnation.
      liveness_seconds: a node that is silent for longer is taken for dead.
    """

    def __init__(
        self, nodes: Nodes, interrupts: Interrupts, *, on_tick: Callable[[], None], say: Callable[[str], None],
        restarts: Restarts, new_incarnation: Callable[[str], int], liveness_seconds: float = float("inf"),
    ):  # fmt: skip
        self._nodes, self._interrupts, self._on_tick, self._say = nodes, interrupts, on_tick, say
        self._restarts, self._new_incarnation, self._patience = restarts, new_incarnation, liveness_seconds
        self._first, self._verdict = f"{nodes.roles.head}/0", Verdict(None)  # the one on the last death
        self._failing_since: float | None = None  # since when no node can be started
        self._next_start = 0.0
        self.since: float | None = None  # when the checkpoint was written that nodes last started from

    def run(self) -> Outcome:
        """Watches until the learner is done, the user interrupts, or a death ends the launch."""
        try:
            return self._watch()
        except ending.Unreachable as error:
            self._say(f"{error}: the run ends, and can be resumed")
            return Outcome(EXIT_INTERRUPTED if self._interrupts.count > 1 else EXIT_TRY_AGAIN)
        except BaseException:  # e.g. the dashboard cannot write (rich exits): no reason to lose what was learned
            with contextlib.suppress(ending.Unreachable):
                self._stop_nodes()
            raise
        finally:
            self._nodes.kill()

    def _watch(self) -> Outcome:
        outcome = None
        while outcome is None:
            self._on_tick()
            time.sleep(_TICK_SECONDS)
            silent = late(self._nodes.nodes(), self._nodes.roles, self._patience)
            if self._nodes.wants_end and not self._interrupts.count:
                self._say("a node has called lp.stop()")
                self._interrupts.ask()
            if self._interrupts.count:
                outcome = Outcome(self._end())
            elif silent:
                outcome = self._bury_silent(silent)
            elif self._nodes.ended():
                self._let_causes_arrive()
                outcome = self._bury_ended()
            outcome = outcome or self._start_due()
        return outcome

    def _start_due(self) -> Outcome | None:
        now = time.monotonic()
        if now < self._next_start:
            return None
        try:
            self._nodes.start_due(self._new_incarnation)
        except OSError as error:  # no memory, a full disk, or the run's folder is gone
            is_first, self._failing_since = self._failing_since is None, self._failing_since or now
            if isinstance(error, FileNotFoundError) or now - self._failing_since > STARTS_SECONDS:
                self._say(f"no node can be started any more ({error}): the run ends")
                self._stop()
                return Outcome(EXIT_TRY_AGAIN)
            if is_first:
                self._say(f"no node can be started ({error}); it is tried again for {STARTS_SECONDS:.0f} s")
            self._next_start = now + START_SECONDS
        else:
            self._failing_since = None
        return None

    def _stop(self, spared: Collection[str] = ()) -> None:
        self._stop_nodes(spared)
        if self._interrupts.count <= 1:
            self._on_tick()  # what the nodes said last comes before what is said of them

    def _stop_nodes(self, spared: Collection[str] = ()) -> None:
        more = {"spared": spared} if spared else {}  # only nodes that keep their addresses know the argument
        self._nodes.stop(should_kill=lambda: self._interrupts.count > 1, **more)

    def _facts(self) -> Mapping[str, Any]:
        """Returns what the first head knows, in a population that of the first member."""
        return self._nodes.node(self._first).facts

    def _saved(self) -> list[Mapping[str, Any]]:
        """Returns the facts of each node that writes checkpoints: of one, or of one for each member of a population."""
        heads = (self._nodes.node(name).facts for name in self._nodes.roles.heads(self._nodes.names()))
        return [facts for facts in heads if "saved_updates" in facts]

    # --- what becomes of dead nodes; None: the launch goes on

    def _bury_silent(self, names: list[str]) -> Outcome | None:
        """Gives up the first of `names`; if it returns alone, with all others that do: they may have one cause."""
        nodes, roles = self._nodes, self._nodes.roles
        is_alone = roles.of(names[0]).returns_alone
        names = [name for name in names if roles.of(name).returns_alone] if is_alone else names[:1]
        how = {name: _silence(nodes.node(name)) for name in names}
        nodes.dump_stacks(names)
        for name in names:
            self._say(f"{name} {how[name]}; its stacks are in {nodes.log(name) or 'standard error'}")
        if self._interrupts.count:
            return Outcome(self._end())
        seconds: dict[str, float] = {}
        for name in names:
            if (until := self._seconds_to_return(name, EXIT_FAILED)) is None:
                return self._give_up()
            seconds[name] = until
        outcomes = [self._bring_back(name, how[name], seconds[name]) for name in names]
        return outcomes[-1]  # of several none ends the launch

    def _give_up(self) -> Outcome:
        self._say("ending the run")
        self._stop()
        if self._interrupts.count > 1:
            return Outcome(EXIT_INTERRUPTED)
        return Outcome(EXIT_FAILED if self._verdict.is_final else EXIT_TRY_AGAIN)

    def _let_causes_arrive(self) -> None:
        """Waits for the statuses of others, since one failure may cause others.

        On a cluster it waits longer where each learner that ended has lost a peer, and not all have ended.
        """
        nodes, may_stand_elsewhere = self._nodes, self._nodes.can_start_again and not self._nodes.keeps_addresses
        deadline = time.monotonic() + _CAUSE_SECONDS * may_stand_elsewhere
        while True:
            time.sleep(_TICK_SECONDS)
            ended = nodes.ended()
            facts = [nodes.node(name).facts for name in ended if not nodes.roles.of(name).returns_alone]
            is_cause_there = any(not of.get("lost_peer") or of.get("lost_host") for of in facts)
            have_all_ended = {*nodes.roles.heads(nodes.names())} <= {*ended}
            if not facts or is_cause_there or have_all_ended or self._interrupts.count or time.monotonic() > deadline:
                return
            self._on_tick()

    def _bury_ended(self) -> Outcome | None:
        ended, roles = self._nodes.ended(), self._nodes.roles
        failed = self._unasked(ended)
        is_refused = any(_has_refused(self._nodes, name, status) for name, status in failed.items())
        if len(failed) < len(ended) or is_refused or self._interrupts.count:
            return Outcome(self._end())
        if group := {name: status for name, status in failed.items() if not roles.of(name).returns_alone}:
            of = {name: self._nodes.node(name).facts for name in group}  # of these the peers end after it:
            causes = [name for name in group if of[name].get("ends_run") or of[name].get("lost_host")]
            worst = causes[0] if causes else _worst(group, self._first)
            failed = {worst: group[worst]}
        for name, status in failed.items():
            seconds = self._seconds_to_return(name, status)
            if seconds is None:
                return Outcome(self._end())
            if outcome := self._bring_back(name, f"ended with {_shown(status)}", seconds):
                return outcome
        return None

    def _unasked(self, ended: dict[str, int]) -> dict[str, int]:
        """Returns who ended unasked: only a node that has the weights may end, with status 0 when all is done.

        One that says that it is not done was told to end by somebody else, with a SIGTERM of its own; so was one that
        says nothing if the first says so. One that did not say its status was ended by something within it, such as an
        environment that calls C's exit.
        """
        of_first, done = self._facts().get("is_done"), []
        for name in self._nodes.roles.heads(ended):
            facts = self._nodes.node(name).facts
            if ended[name] == 0 and facts.get("status") == 0 and facts.get("is_done", of_first) is not False:
                done.append(name)
        return {name: status for name, status in ended.items() if name not in done}

    def _seconds_to_return(self, name: str, status: int) -> float | None:
        """Returns the seconds until a node that died is restarted; None: never, and the user knows or is told why."""
        nodes, is_alone = self._nodes, self._nodes.roles.of(name).returns_alone
        # A host that joins hours later, and cannot make the node, is no mistake of a run that trains.
        has_run = self._restarts.count or self._facts().get("has_trained")
        is_first_start = nodes.node(name).doing == "starting" and not has_run
        is_mistake = is_first_start and status in (0, EXIT_FAILED, EXIT_USAGE) or nodes.node(name).facts.get("ends_run")
        if not nodes.can_start_again or is_mistake:  # no restart helps
            return None
        self._verdict = self._restarts.decide(
            name, now=time.monotonic(), lost_host=nodes.node(name).facts.get("lost_host", False),
            lived_seconds=nodes.lived_seconds(name) - nodes.node(name).silent_seconds,  # not those that it was frozen
            progress=None if is_alone else sum(facts["saved_updates"] for facts in self._saved()),
        )  # fmt: skip
        if self._verdict.reason:
            self._say(f"{self._verdict.reason}: the run ends")
        return self._verdict.seconds

    def _bring_back(self, name: str, how: str, seconds: float) -> Outcome | None:
        """Starts a node again, or all if it does not return alone, but for tables that outlive their learners."""
        row = dict(node=name, cause=how, lived_seconds=round(self._nodes.lived_seconds(name), 1))
        if self._nodes.roles.of(name).returns_alone:
            self._nodes.kill(name)  # it still runs if it was silent
            self._say(f"{name} {how}{self._why(name)}: it starts again")
            self._nodes.start_again(name, seconds)
            self._keep(row, lost=0)
            return None
        kept = self._kept(name)
        whom = f"all nodes but {', '.join(kept)}" if kept else "all nodes"
        self._say(f"{name} {how}{self._why(name)}: {whom} start again, from the newest checkpoint")
        self._stop(spared=kept)
        if self._nodes.wants_end:  # a later launch would not know
            self._interrupts.ask()
        saved = [facts["saved_updates"] for facts in self._saved()]
        lost = sum(facts.get("frames", facts["saved_frames"]) - facts["saved_frames"] for facts in self._saved())
        updates = ", ".join(f"{of_member:,}" for of_member in saved)
        newest = f"the newest {'checkpoints are' if saved[1:] else 'checkpoint is'} of update {updates}"
        if not any(saved):
            newest = "there is no checkpoint: it begins anew" if saved else "it had not come as far as its checkpoint"
        self._say(f"{lost:,} frames are lost; {newest}")
        self._restarts.has_saved |= any(saved)
        self._keep(row, lost)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._interrupts.count:
                self._stop_nodes()
                return Outcome(0 if any(saved) and self._interrupts.count == 1 else EXIT_INTERRUPTED)
            time.sleep(0.1)
        return self._start_all_but(kept) if kept else LAUNCH_AGAIN

    def _kept(self, name: str) -> list[str]:
        """Returns the tables that go on when all else starts again because of a node; none if one of them has ended."""
        names = [each for each in self._nodes.names() if self._nodes.node(each).facts.get("outlives_learners")]
        return names if self._nodes.keeps_addresses and {*names} <= {*self._nodes.left()} - {name} else []

    def _start_all_but(self, kept: Collection[str]) -> None:
        """Starts all other nodes again, at their addresses; heads first, so that actors are of later incarnations."""
        self.since = self._facts().get("saved_at") or self.since
        heads = self._nodes.roles.heads(self._nodes.names())
        for name in dict.fromkeys([*heads, *self._nodes.names()]):
            if name not in kept:
                self._nodes.start_again(name, 0.0, since=self.since)

    def _why(self, name: str) -> str:
        """Returns a node's last words in brackets, "" if there are none or they have been said."""
        facts = self._nodes.node(name).facts
        words = facts.get("last_words")
        return f" ({words})" if words and words not in facts.get("says", ()) else ""

    def _keep(self, row: dict[str, Any], lost: int) -> None:
        facts = self._facts()
        self._restarts.keep(**row, updates=facts.get("updates", 0), frames=facts.get("frames", 0), lost_frames=lost)

    # --- the end

    def _in_turn(self) -> list[str]:
        """Returns the kinds of nodes in the order in which they are stopped."""
        names, roles = [name.partition("/")[0] for name in self._nodes.names()], self._nodes.roles
        kinds = sorted(dict.fromkeys(names), key=lambda kind: roles.of(kind).turn)
        plural = {kind: f"{kind}s" if names.count(kind) > 1 else kind for kind in kinds}
        return [plural[kind] + (" (writes a checkpoint)" if roles.of(kind).is_head else "") for kind in kinds]

    def _end(self) -> int:
        """Ends all nodes in order; returns the exit status."""
        nodes, interrupts, roles = self._nodes, self._interrupts, self._nodes.roles
        was_interrupted = interrupts.count > 0
        if was_interrupted:
            self._say(f"stopping: {', '.join(self._in_turn())}; Ctrl-C again to end at once")
        ended = {} if was_interrupted else nodes.ended()
        failed = self._unasked(ended)
        # Several learners are done together; the first still has its checkpoint to write.
        is_done = was_interrupted or ended.get(self._first) == 0 and self._first not in failed
        is_done |= not failed and bool(roles.heads(ended))
        if failed and not is_done:
            self._say(f"{_worst(failed, self._first)} failed; stopping the rest")
        self._stop()
        if interrupts.count > 1:
            return EXIT_INTERRUPTED
        ended = nodes.ended()
        heads = {name: ended[name] for name in roles.heads(ended)}
        if not (was_interrupted or is_done):
            status = _report(nodes, failed or ended)
            # What a restarted node lacks (room on the disk), the command had when it began: it may come back.
            is_temporary = self._verdict.is_spent or status == EXIT_USAGE and self._restarts.count
            return EXIT_TRY_AGAIN if is_temporary else status
        # In a population each learner has its own last checkpoint, unless it had nothing to save yet.
        began = {name for name in heads if _has_begun(nodes, name, heads[name])}
        if was_interrupted and not began:
            if self._restarts.has_saved:  # before its nodes were started again
                self._say("interrupted while the nodes started again: the newest checkpoint is as before")
                return 0
            self._say("interrupted before the first update: there is nothing new to save")
            return EXIT_INTERRUPTED
        lost = {name: heads[name] for name in began if heads[name] != 0}
        return _report(nodes, lost or failed or ended) if lost or not heads else 0


def late(nodes: Mapping[str, beats.Node], roles: Roles, seconds: float) -> list[str]:
    """Returns the nodes that have been silent for longer than `beats.patience`, the longest first."""
    limits = {name: beats.patience(doing, seconds) for name, doing in doing_of(nodes, roles).items()}
    silent = {name: node.silent_seconds for name, node in nodes.items() if node.silent_seconds > limits[name]}
    return sorted(silent, key=silent.get, reverse=True)


def _silence(node: beats.Node) -> str:
    what = "process gave no sign of life" if node.is_frozen else "loop made no step, its environment may hang"
    return f"was silent for {node.silent_seconds:.0f} s (its {what})"


def doing_of(nodes: Mapping[str, beats.Node], roles: Roles) -> dict[str, str]:
    """Returns what each node does; while one head saves, all heads count as saving, since its peers wait for it.

    A frozen process saves nothing: one that waits for a slow disk still sends signs of life.
    """
    doing, heads = {name: node.doing for name, node in nodes.items()}, roles.heads(nodes)
    doing |= {name: "running" for name in nodes if doing[name] == "saving" and nodes[name].is_frozen}
    return doing | dict.fromkeys(heads, "saving") if any(doing[name] == "saving" for name in heads) else doing


def _has_begun(nodes: Nodes, name: str, status: int) -> bool:
    """Returns whether a learner had something to save: it made an update, or failed by itself before its first."""
    has_trained = nodes.node(name).facts.get("has_trained")
    return bool(has_trained) or status not in (EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGKILL)


def _has_refused(nodes: Nodes, name: str, status: int) -> bool:
    """Returns whether a node ended because it refuses what the user asked for, and said so."""
    return status == EXIT_USAGE and bool(nodes.node(name).facts.get("last_words"))


def _report(nodes: Nodes, ended: dict[str, int]) -> int:
    """Prints the last words of a node that failed, and returns the run's exit status.

    The first learner's come before those of other nodes; those of nodes that only lost a peer come last.
    """
    failed = {name: status for name, status in ended.items() if status != 0} or ended
    if not failed:
        tell("the nodes did not stop in time; the run's last checkpoint may be missing")
        return EXIT_FAILED
    name = _worst(failed, f"{nodes.roles.head}/0")
    status, log, words = failed[name], nodes.log(name), nodes.node(name).facts.get("last_words")
    if _has_refused(nodes, name, status):
        tell(words)
        return EXIT_USAGE
    if words or log is None:
        tell(f"{name} ended with {_shown(status)}: {words}")
    else:
        end = f"{name} ended with {_shown(status)}; the program was stopped. The end of {log}:"
        tell(f"{end}\n{_end_of_log(log)}")
    # If a learner was killed and its peers noticed, or a peer never came, nothing is wrong with the program.
    peer_noticed = status == -signal.SIGKILL and EXIT_TRY_AGAIN in nodes.ended().values()
    is_temporary = status in (EXIT_TRY_AGAIN, -signal.SIGALRM) or peer_noticed
    return EXIT_TRY_AGAIN if is_temporary else EXIT_FAILED


def _shown(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def _worst(failed: dict[str, int], first: str) -> str:
    return min(failed, key=lambda name: (failed[name] == EXIT_TRY_AGAIN, name != first, name))


def _end_of_log(log: Path) -> str:
    """Returns the last traceback of a node's log, or its last lines; a log may be long, and go on after a traceback."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError as error:
        return f"it cannot be read: {error}"
    starts = [i for i, line in enumerate(lines) if line.startswith("Traceback")]
    first = starts[-1] if starts else max(0, len(lines) - 20)
    return "\n".join(lines[first : first + _LOG_LINES])
