"""What runs inside the process of a worker: it acts, differentiates and sends gradients to a parameter server."""

from impala.config import Config
from impala.nodes import exchanging, workers
from impala.nodes.bundling import TableReplay
from impala.nodes.feeding import Place
from impala.nodes.reporter import Reporter
from impala.nodes.requesting import request_to
from impala.nodes.run import Run
from impala.nodes.side_jobs import Recorder
from impala.types import EnvironmentSpec

_MOST_UPDATES = 2**62
_ENDED_SECONDS = 1.0  # between two gradients once there are no more updates, until the node is told to stop


class WorkerNode:
    """Runs a worker of `nodes.working` until it is told to stop, and reports to the first shard.

    Args:
      servers: RPC clients of the server's shards.
      table: `reverb.Client` of the replay that all workers share, if there is one.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec, run: Run, index: int, *, servers, table=None):
        from impala.launching import processes, roles

        self._stop = processes.prepare(roles.ACTOR, run.member * config.actor.num_actors + index)
        processes.set_tensorflow_threads(config.actor.num_tensorflow_threads)
        self._config, self._spec, self._index, self._servers = config, spec, index, servers
        self._incarnation = processes.incarnation(run.incarnation)
        # Steps in a shared table may have been played with newer parameters than this worker has seen.
        place = Place(config, spec, run, index, self._stop, "/cpu:0", lambda: _MOST_UPDATES)
        replay = None if table is None else TableReplay(place, table)
        self._worker = workers.make(config, spec, index, self._incarnation, replay=replay)
        self._record_skipped = Recorder(run.folder / f"not_finite/{index}", 3)  # to look at what was wrong with them

    def _connect(self) -> exchanging.Exchange:
        """Joins the server; returns the connection to it."""
        from impala.acting import remote

        worker = self._worker
        shapes = [tuple(variable.shape) for variable in worker.variables]
        self._shards = exchanging.shards_of(self._config, shapes, worker.facts, len(worker.increments()))
        versions, life = self._join(), remote.new_life(self._incarnation)
        requests = [self._request(server, shard, life) for server, shard in zip(self._servers, self._shards)]
        exchange = exchanging.Exchange(
            requests, self._shards, versions, frames_per_step=self._spec.frames_per_step,
            should_stop=self._stop.is_set,
        )  # fmt: skip
        if self._config.server.barrier:
            exchange.agree(self._join)
        return exchange

    def _join(self) -> list[int]:
        """Takes over the server's parameters; returns their version in each shard."""
        from impala.acting import remote

        worker, arrays, states = self._worker, [None] * len(self._worker.variables), []
        for server, shard in zip(self._servers, self._shards, strict=True):
            pending = remote.over_rpc(server.futures.join)(self._index, tuple(worker.facts))
            states.append(self._let_in(pending))
            for tensor, array in zip(shard.tensors, states[-1][2], strict=True):
                arrays[tensor] = array
        version, frames, _, statistics, settings = states[0]
        worker.heed(settings)
        worker.assign(version, frames, arrays, statistics)
        if worker.wants_target:
            self._fetch_target()
        return [version for version, *_ in states]

    def _let_in(self, pending):
        """Returns a shard's answer to `join`; a worker that it refuses ends the run with the reason."""
        from impala.acting import remote
        from impala.launching import processes
        from impala.launching.rpc.status import StatusNotOk

        try:
            return remote.result_of(pending, self._stop.is_set)
        except StatusNotOk as error:  # its last line is of the exception
            _, refused, reason = str(error).strip().rpartition(f"{remote.Refused.__name__}: ")
            if refused and not self._stop.is_set():
                processes.refuse(reason)
            raise

    def _fetch_target(self) -> None:
        """Takes over the server's θ⁻."""
        from impala.acting import remote

        arrays, numbers = [None] * len(self._worker.variables), []
        for shard, pending in zip(self._shards, [remote.over_rpc(s.futures.target)() for s in self._servers]):
            number, of_shard = remote.result_of(pending, self._stop.is_set)
            numbers.append(number)
            for tensor, array in zip(shard.tensors, of_shard, strict=True):
                arrays[tensor] = array
        self._worker.assign_target(min(numbers), arrays)  # where a shard is behind, it is asked again

    def _request(self, server, shard: exchanging.Shard, life: int):
        """Returns the configured way to push; see `requesting.request_to`."""
        return request_to(
            server, "push", (self._index, life), shard.fields, transport=self._config.server.transport,
            should_stop=self._stop.is_set,
        )  # fmt: skip

    def run(self) -> None:
        from impala.acting import remote
        from impala.launching import processes
        from impala.learning.learners import NonFiniteUpdates
        from impala.timing import TimeAccount

        ending = ()
        try:
            exchange = self._connect()
            processes.begin(self._stop)
            self._work(exchange, TimeAccount())
        except remote.Stopped:
            pass
        except NonFiniteUpdates as error:
            self._stop.note(ends_run=True)
            ending = processes.EXIT_FAILED, str(error)
        finally:
            self._worker.close()
        processes.finish(*ending)

    def _work(self, exchange: exchanging.Exchange, account) -> None:
        from impala.acting import actors
        from impala.learning.server import Verdict

        worker, report = self._worker, Reporter(self._servers[0], self._index, self._incarnation)
        self._stop.doing = "starting"  # until the first gradient
        while not self._stop.is_set():
            if (batch := worker.batch()) is None:
                report.add(worker.act())
            else:
                if worker.is_dated:
                    exchange.versions = self._join()
                gradient = worker.differentiate(batch)
                if not gradient.is_finite:
                    self._record_skipped(batch)
                with account.part("blocked"):
                    answer = exchange(
                        gradient, worker.num_transitions(gradient), worker.increments(), worker.is_outlier(gradient)
                    )
                worker.answered(answer.verdict)
                worker.heed(answer.settings)
                worker.assign(answer.version, answer.frames, answer.arrays, answer.statistics)
                if worker.wants_target:
                    self._fetch_target()
                self._stop.doing = "running"
                if answer.verdict == Verdict.ENDED:
                    self._stop.wait(_ENDED_SECONDS)
            if report.is_due():
                blocked = dict(blocked=account.fraction("blocked"))  # not a part of writing chunks, as elsewhere
                report.send(actors.total_fractions(worker.lanes, 0.0) | blocked)
