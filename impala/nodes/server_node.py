"""What runs inside the processes of a parameter server: a shard each; the first has the `Head` of the run."""

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np

from impala import agents
from impala.agents import shared
from impala.config import Config
from impala.nodes import exchanging, population, working
from impala.nodes.head import Head
from impala.nodes.run import Run
from impala.nodes.saving import save_after_failure
from impala.types import EnvironmentSpec

_LOOK_SECONDS = 0.1
_CATCH_UP_SECONDS = 5.0  # how long a shard waits for what another one has received
_LAST_SECONDS = 8.0  # for a shard's answer once the run is to end


class ShardNode:
    """Holds some of the parameters and applies workers' gradients of them.

    Args:
      index: of the shard.
    """

    RPCS = (
        "address", "begin", "join", "push", "read", "copy", "pause", "catch_up", "resume", "replace", "vary", "target",
        "end",
    )  # fmt: skip

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int):
        from impala.launching import processes, roles

        number = run.member * (config.server.num_shards - 1) + index - 1
        self.stop = processes.prepare(*((roles.SHARD, number) if index else (roles.SERVER, run.member)))
        from impala.launching import shared_memory

        processes.set_tensorflow_threads(config.learner.num_tensorflow_threads)
        self._config, self._spec, self._run = config, spec, run
        self._begun = threading.Event()
        self.network = agents.of(config).make_network(config, spec, on_cpu=True)
        self._parameters = list(self.network.trainable_variables)
        self.statistics, self._facts = shared.make_statistics(config, spec), {}  # facts by worker
        names = exchanging.parameters_of(self._parameters)
        facts = exchanging.Facts(exchanging.configuration_of(config), names, [], [])
        shapes = [tuple(v.shape) for v in self._parameters]
        self._mine, self._shards = facts, exchanging.shards_of(config, shapes, facts, self.statistics.size)
        self._shard, self._factors = self._shards[index], dict.fromkeys(population.evolving(config), 1.0)
        self._schedules = agents.of(config).make_schedules(config)
        self._address = shared_memory.new_address()
        shared_memory.Server(self._address, self.push)

    # --- RPCs ---

    def begin(self, *state: Any) -> None:
        """Takes the `server.State` that this shard begins with, once."""
        from impala.learning import server

        if self._begun.is_set():  # a repeated call, whose answer was lost
            return
        config = self._config
        self.server = server.ParameterServer(
            server.State(*state), lambda variables: shared.make_optimizer(config, variables),
            self._scheduled, rules=working.rules_of(config), merge=self.statistics.merge, should_stop=self.stop.is_set
        )  # fmt: skip
        self.server.is_done = lambda: self.server.frames >= config.total_frames
        self._begun.set()

    def end(self) -> None:
        """Lets no update happen any more."""
        with self.server.held():  # an update under way is counted
            self.server.is_done = lambda: True

    def replace(self, number: int, *state: Any) -> None:
        """Takes over the `server.State` of another member of a population, for the `number`th time."""
        from impala.learning import server

        if number > self.server.num_replaced:  # else a repeated call, whose answer was lost
            self.server.replace(server.State(*state))

    def vary(self, factors: dict[str, float]) -> None:
        """Takes the factors of hyper-parameters that evolve in a population."""
        self._factors = {name: factors[name] for name in self._factors}  # in the order of an answer's settings

    def address(self) -> str:
        """Returns the address of `push` in shared memory."""
        return self._address

    def join(self, worker: int, facts: tuple) -> tuple[int, int, list, np.ndarray, np.ndarray]:
        """Lets a worker in; returns version, frames, parameters, statistics and settings of this shard.

        Raises:
          remote.Refused: the worker's network or configuration is another one.
        """
        from impala.acting.remote import Refused

        theirs = exchanging.Facts(*facts)
        theirs = theirs._replace(parameters=[(name, tuple(shape)) for name, shape in theirs.parameters])
        if said := exchanging.difference(self._mine, theirs):
            raise Refused(f"worker {worker} has {said}, as the server has")
        self._facts[worker] = theirs
        return *self.read(), self._settings()

    def push(self, name: tuple[int, int], number: int, *arrays: Any) -> tuple:
        """Takes a gradient of a worker, `name` being its index and life; returns the parts of an `exchanging.Answer`.

        Raises:
          remote.Refused: the worker has not joined, or the arrays are not those that were agreed on.
        """
        from impala.learning.server import Push

        arrays = arrays[0] if len(arrays) == 1 else arrays  # through shared memory they come as one list
        worker, life = name
        facts = self._check(worker, arrays)
        (version, num_frames, flags), increments, metrics, columns, *gradients = arrays
        push = Push(
            worker, life, number, int(version), gradients, int(num_frames), bool(flags & exchanging.FINITE),
            bool(flags & exchanging.OUTLIER), np.array(increments), bool(flags & exchanging.FILLER),
        )  # fmt: skip
        with self.server.held():
            verdict = self.server.push(
                push, lambda update: self._accepted(update, push.num_frames, facts, metrics, columns)
            )
            now, frames, parameters, statistics = self.server.read()
            settings = self._settings()
        return np.array([verdict, now, frames], np.int64), settings, statistics, *parameters

    def read(self) -> tuple[int, int, list, np.ndarray]:
        """Returns version, frames, parameters and statistics of this shard, once it has begun."""
        self._wait_until_it_has_begun()
        return self.server.read()

    def target(self) -> tuple[int, list]:
        """Returns the number and the parameters of θ⁻ of this shard."""
        return self.server.target()

    def copy(self) -> tuple:
        """Returns a `server.State` of this shard."""
        return tuple(self.server.copy())

    def pause(self) -> list[tuple[int, int, int]]:
        """See `server.ParameterServer`, as for the next two."""
        self._wait_until_it_has_begun()
        return self.server.pause()

    def catch_up(self, newest: Sequence[Sequence[int]]) -> bool:
        return self.server.catch_up(newest, _CATCH_UP_SECONDS)

    def resume(self) -> None:
        self.server.resume()

    def _wait_until_it_has_begun(self) -> None:
        from impala.acting.remote import Refused

        while not self._begun.wait(_LOOK_SECONDS):
            if self.stop.is_set():
                raise Refused("the server ends")

    def _scheduled(self, frames: int) -> dict[str, float]:
        return population.scaled(self._schedules(frames), self._factors)

    def _settings(self) -> np.ndarray:
        server = self.server
        return np.array([server.target_number, server.num_replaced, *self._factors.values()], np.float64)

    def _check(self, worker: int, arrays: Sequence[np.ndarray]) -> exchanging.Facts:
        from impala.acting.remote import Refused

        if worker not in self._facts:
            raise Refused(f"worker {worker} has not joined; expected `join` first")
        facts = self._facts[worker]
        shard = self._shard._replace(
            num_metrics=len(facts.metrics), num_columns=len(facts.columns), width=facts.width
        )
        expected = [(tuple(shape), np.dtype(dtype)) for shape, dtype in shard.fields()[0]]
        if [(array.shape, array.dtype) for array in arrays] != expected:
            shown = ", ".join(f"{array.dtype}{list(array.shape)}" for array in arrays)
            raise Refused(f"worker {worker}: arrays {shown}; expected those of its shard")
        return facts

    def _accepted(self, update: int, num_frames: int, facts: exchanging.Facts, metrics, columns) -> None:
        """Called with every gradient that was applied; the first shard keeps its metrics."""

    # --- the loop ---

    def run(self) -> None:
        from impala.launching import processes

        processes.begin(self.stop)
        while not self.stop.is_set():
            self.stop.wait(_LOOK_SECONDS)
        processes.finish()


class ServerNode(ShardNode):
    """The first shard: also restores and saves the whole, counts, reports, and ends the run.

    Args:
      others: RPC clients of the other shards.
    """

    RPCS = (*ShardNode.RPCS, "get_weights", "frames", "report", "evaluated", "status")

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, *, others: Sequence = ()):
        super().__init__(config, spec, run, 0)
        import tensorflow as tf

        self._others, self._logged, self._one_moment = others, time.monotonic(), threading.Lock()
        self._num_refused = 0  # stale gradients, when staleness was last told
        self._lost: dict[int, tuple[int, int]] = {}  # by worker: a gradient that some shards waited for in vain
        num_optimizers = working.rules_of(config).num_optimizers
        self._optimizers = [shared.make_optimizer(config, self._parameters) for _ in range(num_optimizers)]
        self._target = list(getattr(self.network, "target_variables", ()))
        # `get_weights` takes moments from another network, since `network` may be in the midst of being saved.
        self._told = agents.of(config).make_network(config, spec, on_cpu=True) if self.statistics.size else self.network
        self._saved_statistics = tf.Variable(self.statistics.initial())
        self._trackables = dict(network=self.network, optimizer=self._optimizers[0])
        self._trackables |= {f"optimizer_{worker}": self._optimizers[worker] for worker in range(1, num_optimizers)}
        if self.statistics.size:
            self._trackables["statistics"] = self._saved_statistics
        self.head = Head(
            config, spec, run, self.stop, num_updates=self._num_updates, hold=self._hold, trackables=self._trackables
        )
        self.vary(self.head.factors)  # before a worker can join
        self.begin(*self._part(0))
        self.server.is_done = self.head.is_done

    def _num_updates(self) -> int:
        return self.server.version

    def _part(self, index: int) -> tuple:
        """Returns a shard's part of what was restored last, a `server.State`."""
        from impala.learning import server

        mine = [self._parameters[tensor] for tensor in self._shards[index].tensors]
        version, frames = (int(self.head.state.get(name, 0)) for name in ("updates", "frames"))
        slots = server.slots_of(mine, self._optimizers)
        theirs = [self._target[tensor] for tensor in self._shards[index].tensors] if self._target else []
        statistics, iterations = self._saved_statistics.numpy(), server.iterations_of(self._optimizers)
        return version, frames, [v.numpy() for v in mine], slots, statistics, [v.numpy() for v in theirs], iterations

    # --- RPCs ---

    def get_weights(self, newer_than: int) -> tuple[int, list]:
        """Returns (version, all parameters and statistics), or (version, []) when `newer_than` is up to date."""
        from impala.networks.running import variables_of

        if self.server.version <= newer_than:
            return self.server.version, []
        with self._moment():
            parts = [self.server.read(), *self._answers([other.futures.read() for other in self._others])]
        arrays: list = [None] * len(self._parameters)
        for shard, (_, _, parameters, _) in zip(self._shards, parts):
            for tensor, array in zip(shard.tensors, parameters):
                arrays[tensor] = array
        shared.use_statistics(self._config, self._told, self.statistics, parts[0][-1])
        others = [variable.numpy() for variable in variables_of(self._told)[len(arrays) :]]
        return parts[0][0], arrays + others

    def frames(self) -> int:
        """Returns the emulator frames trained on so far."""
        return self.head.monitor.frames

    def report(self, actor: int, number: int, shares: dict[str, float], episodes: list) -> None:
        """See `Head`."""
        self.head.report(actor, number, shares, episodes)

    def evaluated(self, mean: float, num_updates: int) -> None:
        """See `Head`."""
        self.head.evaluated(mean, num_updates)

    def status(self) -> dict[str, Any]:
        """See `Head`."""
        return self.head.status()

    def _accepted(self, update: int, num_frames: int, facts: exchanging.Facts, metrics, columns) -> None:
        if self._config.replays_alone:  # frames are those played, not those trained on
            self.head.monitor.add_steps(num_frames // self._spec.frames_per_step)
        self.head.monitor.add_update(
            update, dict(zip(facts.metrics, metrics.tolist())), dict(zip(facts.columns, columns.copy()))
        )

    @contextlib.contextmanager
    def _moment(self):
        """Within the block all shards have applied the same gradients, and apply no others.

        A worker sends its gradient to all shards at once. Those that have not yet received what another has wait for
        it for some seconds, once: a gradient whose worker died while it was sent may never reach them.
        """
        if not self._others:
            with self.server.held():
                yield
            return
        with self._one_moment:
            try:
                shards = [self.pause(), *self._answers([other.futures.pause() for other in self._others])]
                newest: dict[int, tuple[int, int]] = {}
                for worker, *key in itertools.chain(*shards):
                    newest[worker] = max(newest.get(worker, (-1, -1)), tuple(key))
                expected = [(worker, *key) for worker, key in newest.items() if self._lost.get(worker) != key]
                pending = [other.futures.catch_up(expected) for other in self._others]
                if not all([self.catch_up(expected), *self._answers(pending)]):
                    logging.warning("a gradient has reached only some of the shards: its worker died, or is very slow")
                    common = set.intersection(*({(worker, *key) for worker, *key in shard} for shard in shards))
                    self._lost |= {worker: key for worker, key in newest.items() if (worker, *key) not in common}
                yield
            finally:
                self.resume()
                pending = [other.futures.resume() for other in self._others]
            self._answers(pending)

    def _answers(self, pending: Sequence[futures.Future]) -> list:
        """Returns what the other shards answer.

        Raises:
          TimeoutError: the run was told to end, and one does not answer: it has died.
        """
        deadline = None
        while futures.wait(pending, _LOOK_SECONDS).not_done:
            if self.stop.is_set():
                deadline = deadline or time.monotonic() + _LAST_SECONDS
                if time.monotonic() > deadline:
                    raise TimeoutError(f"a shard has not answered for {_LAST_SECONDS:.0f} s")
        return [one.result() for one in pending]

    @contextlib.contextmanager
    def _hold(self):
        """Copies all shards into the network and the optimizer that checkpoints are made of, at one moment.

        Gradients wait for the copy, not for the disk.
        """
        from impala.learning import server

        with self._moment():
            pending = [other.futures.copy() for other in self._others]
            states = [self.server.copy(), *(server.State(*state) for state in self._answers(pending))]
            for shard, state in reversed(list(zip(self._shards, states))):  # the first's count of iterations is kept
                server.restore(state, [self._parameters[tensor] for tensor in shard.tensors], self._optimizers)
                for tensor, array in zip(shard.tensors, state.target):
                    self._target[tensor].assign(array)
            self._saved_statistics.assign(states[0].statistics)
            shared.use_statistics(self._config, self.network, self.statistics, states[0].statistics)
            yield

    # --- the loop ---

    def run(self) -> None:
        from impala.launching import processes
        from impala.launching.rpc.status import StatusNotOk

        self.head.begin()
        processes.begin(self.stop)
        self.stop.doing = "starting"  # until the first gradient
        jobs = self.head.jobs(self._log, self._copy)
        try:
            self._vary_all()  # before workers can join: they wait until all shards have begun
            self._answers([other.futures.begin(*self._part(i)) for i, other in enumerate(self._others, start=1)])
            while not (self.stop.is_set() or self.head.is_done()):
                self.stop.wait(_LOOK_SECONDS)
                if self.head.has_trained:
                    self.stop.doing = "running" if self.stop.doing == "starting" else self.stop.doing
                    self.head.note_progress()
                for job in jobs:
                    job.maybe_run()
                if self._factors != self.head.factors:  # it has evolved
                    self._vary_all()
            with self._moment():
                self._answers([other.futures.end() for other in self._others])
                self.end()
            self.stop.doing = "saving"
            status, words = self.head.end(0, "", self._log)
        except (TimeoutError, StatusNotOk) as error:  # another shard was lost: there is no whole to save
            logging.exception("a shard is lost")
            status, words = processes.EXIT_TRY_AGAIN, f"the parameter server failed: {error}"
        except BaseException:
            save_after_failure(self.head)
            raise
        processes.finish(status, words)

    def _vary_all(self) -> None:
        self._answers([other.futures.vary(self.head.factors) for other in self._others])
        self.vary(self.head.factors)

    def _copy(self, folder) -> dict[str, Any]:
        """Takes over all but the counts of another member's checkpoints; returns the state that goes with them."""
        from impala.learning import checkpoints

        # If this fails, no shard has changed: the next checkpoint copies what they hold over what was restored.
        state = checkpoints.Checkpoints(folder, **self._trackables).restore(report=logging.warning, read_only=True)
        if state is None:
            raise RuntimeError(f"{folder}: holds no checkpoint")
        with self._moment():  # nobody reads some shards' new parameters and others' old ones
            number = self.server.num_replaced + 1
            parts = [self._part(index) for index in range(len(self._shards))]
            self._answers([other.futures.replace(number, *part) for other, part in zip(self._others, parts[1:])])
            self.replace(number, *parts[0])
        return state

    def _explores(self) -> dict[str, float]:
        """Returns how much workers explore, which depends on the run's frames; {} for an agent that does not replay."""
        if not self._config.replays_alone:
            return {}
        agent = agents.of(self._config)
        return {agent.EXPLORATION: agent.make_exploration(self._config, self._spec)(self.frames())}

    def _staleness(self) -> dict[str, Any]:
        """Returns how stale the gradients were that were accepted since the last call."""
        from impala.learning.server import Verdict

        num_refused, self._num_refused = self._num_refused, self.server.counts[Verdict.STALE]
        if not (counts := self.server.take_staleness()):
            return {}
        mean = sum(updates * count for updates, count in counts.items()) / sum(counts.values())
        histogram = " ".join(f"{updates}:{counts[updates]}" for updates in sorted(counts))
        expected = 0 if self._config.server.barrier else self._config.actor.num_actors - 1
        if expected and self._num_refused > num_refused:
            expected = None  # W − 1 is the mean of all gradients, refused ones included
        return dict(
            staleness_mean=mean, staleness_expected=expected, staleness_max=max(counts), staleness_histogram=histogram
        )

    def _log(self) -> None:
        from impala.learning.server import Verdict

        counts, busy, now = self.server.counts, self.server.busy_fraction(), time.monotonic()
        self.head.monitor.add_wait((1.0 - busy) * (now - self._logged))
        self._logged = now
        verdicts = [verdict for verdict in Verdict if verdict is not Verdict.ENDED]
        columns = {f"{verdict.name.lower()}_gradients": counts[verdict] for verdict in verdicts}
        scheduled = self._scheduled(self.frames())
        penalty = dict(penalty=self.statistics.beta(self.server.statistics)) if self.statistics.has_penalty else {}
        copies = dict(server_busy_fraction=busy, target_copies=self.server.num_target_copies)
        columns |= penalty | self._explores() | copies | self._staleness()
        self.head.log(scheduled=scheduled, fill=None, columns=columns)
