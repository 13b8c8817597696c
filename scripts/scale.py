#!/usr/bin/env python
"""How far one table, one learner's weights and Ray's placement reach: scripts/scale.py actors, cluster, or hosts.

`actors`: N actors write one recorded unroll of Pong, over and over, into one Reverb queue, as fast as it takes them,
and fetch weights of Pong's size before each, or with --chunks-per-fetch 32 as often as an actor of 32 environments.
One learner's feeder makes batches of what comes, on the same cores, and does nothing with them. The server is the
process of table, weights and feeder. An actor is a thread with clients of its own, several to a process, since a
process for each would need 400 MB: what is measured is the table, the wire and the server of weights, not environments.
With --relays N actors fetch from N relays, processes of their own. Writes docs/results/scale/actors_1.csv, or _32, or
actors_1_relays_2.csv.

`cluster`: N stand-ins for nodes, processes that do nothing, on two Ray hosts of this machine; the seconds until all
run, until the loss of a host is noticed and all that stood there run again elsewhere, and until all are gone. Writes
docs/results/scale/cluster.csv.

`hosts`: N actors of Catch, slowed down to a hundred steps a second so that they leave the two cores idle, on one Ray
host; then a host of as many more joins, and is lost again. What the learner takes in each of the three phases. Writes
docs/results/scale/hosts.csv.
"""

import argparse
import csv
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

RESULTS = Path("docs/results/scale")
MB, SPAWN = 1e6, multiprocessing.get_context("spawn")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["actors", "cluster", "hosts"])
    parser.add_argument("--counts", default="", help="how many, with commas; 1,8,32,100,200,400 or 10,50,100,200 or 2")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of actors")
    parser.add_argument("--chunks-per-fetch", type=int, default=1, help="of an actor's weights")
    parser.add_argument("--relays", type=int, default=0, help="between the server of weights and the actors")
    options = parser.parse_args()
    measure, default = {
        "actors": (actors, "1,8,32,100,200,400"), "cluster": (cluster, "10,50,100,200"), "hosts": (hosts, "2"),
    }[options.what]  # fmt: skip
    rows = []
    for count in (options.counts or default).split(","):
        answer, telling = SPAWN.Pipe(duplex=False)
        more = (options.seconds, options.chunks_per_fetch, options.relays) if measure is actors else ()
        process = SPAWN.Process(target=_tell, args=(telling, measure, int(count), *more))
        process.start()  # one for each: neither Reverb's server nor Ray's is ever quite gone from a process
        telling.close()
        answered = answer.recv()
        rows += answered if isinstance(answered, list) else [answered]
        process.kill()
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = f"actors_{options.chunks_per_fetch}" if measure is actors else options.what
    name += f"_relays_{options.relays}" if options.relays else ""
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def _tell(telling, measure, *what) -> None:
    telling.send(measure(*what))
    time.sleep(60)  # the parent ends it


# --- actors at one table


def actors(count: int, seconds: float, chunks_per_fetch: int, num_relays: int) -> dict:
    """Measures `count` actors for `seconds`, after a start of ten."""
    import reverb

    from impala import agents
    from impala import config as config_lib
    from impala.bench import parts
    from impala.launching.rpc.server import Server
    from impala.learning import weights
    from impala.replay import datasets, tables
    from impala.types import Weights, num_bytes

    config = config_lib.load("configs/pong.yaml")
    spec = parts.make_environment(config, 1).spec
    chunk, batch_size = agents.of(config).make_chunk_spec(config, spec), config.learner.batch_size
    network = agents.of(config).make_network(config, spec)
    arrays = [variable.numpy() for variable in network.trainable_variables]
    table = reverb.Server([tables.queue(chunk, 4 * count + config.queue_size)], port=None)
    newest, sent = [0], [0]
    publisher = weights.Publisher(lambda: Weights(newest[0], [array.copy() for array in arrays]))

    def get_weights(newer_than: int):
        version, answer = publisher.get(newer_than)
        sent[0] += bool(answer)
        return version, answer

    server = Server(thread_pool_size=32)
    server.Bind("get_weights", get_weights)
    server.Start()
    feeder = datasets.Feeder(
        lambda: datasets.chunks(f"localhost:{table.port}", tables.QUEUE, max_in_flight=batch_size),
        batch_size=batch_size,
    )
    stop = SPAWN.Event()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "unroll.npz"
        _record(config, path)
        num_processes = min(count, 2 * (os.cpu_count() or 1))
        shares = [list(range(index, count, num_processes)) for index in range(num_processes)]
        answers = SPAWN.Queue()
        relays = [SPAWN.Process(target=_relay, args=(server.address, stop, answers)) for _ in range(num_relays)]
        for relay in relays:
            relay.start()
        sources = [answers.get(timeout=60) for _ in relays] or [server.address]
        workers = [
            SPAWN.Process(target=_act, args=(str(path), table.port, sources, share, chunks_per_fetch, stop, answers))
            for share in shares
        ]  # fmt: skip
        for worker in workers:
            worker.start()
        began, taken, counting, server = None, 0, time.monotonic() + 300, psutil.Process()
        while began is None or time.monotonic() - began < 10 + seconds:
            batch = feeder.get(timeout_seconds=1.0)
            if batch is None:
                assert time.monotonic() < counting, "no actor writes"
                continue
            began = began or time.monotonic()
            with publisher.updating():
                newest[0] += 1
            if time.monotonic() - began < 10:
                before, sent[0] = sum(server.cpu_times()[:2]), 0
            else:
                taken += batch_size
        memory, cpu_seconds = server.memory_info().rss / MB, sum(server.cpu_times()[:2]) - before
        stop.set()
        waits = np.concatenate([answers.get(timeout=60) for _ in workers])
        feeder.stop()
    return dict(
        actors=count, relays=num_relays, chunks_per_second=round(taken / seconds, 1),
        megabytes_per_second=round(taken / seconds * num_bytes(chunk) / MB, 1),
        updates_per_second=round(taken / batch_size / seconds, 1),
        weights_megabytes=round(sum(array.nbytes for array in arrays) / MB, 2), fetches=len(waits),
        weights_sent_per_second=round(sent[0] / seconds, 1),
        weights_p50_ms=round(1e3 * float(np.median(waits)), 1),
        weights_p99_ms=round(1e3 * float(np.quantile(waits, 0.99)), 1), server_mb=round(memory),
        server_cpus=round(cpu_seconds / seconds, 2), server_cpu_ms_per_chunk=round(1e3 * cpu_seconds / taken, 2),
    )  # fmt: skip


def _record(config, path: Path) -> None:
    from impala.bench import parts

    chunk = parts.random_unroll(config)[0]
    kept = {name: value for name, value in chunk._asdict().items() if not isinstance(value, tuple)}
    np.savez(path, **{name: np.asarray(value) for name, value in kept.items()})


def _relay(address: str, stop, answers) -> None:
    from impala.launching.rpc.client import Client
    from impala.launching.rpc.server import Server
    from impala.learning.relay import Relay

    server = Server(thread_pool_size=32)
    server.Bind("get_weights", Relay(Client(address, call_timeout=60).get_weights).get)
    server.Start()
    answers.put(server.address)
    stop.wait()
    os._exit(0)


def _act(path: str, port: int, sources: list[str], indices: list[int], chunks_per_fetch: int, stop, answers) -> None:
    """Runs actors in threads; answers with the seconds that each fetch of weights took."""
    import reverb

    from impala.acting import chunks
    from impala.launching.rpc.client import Client
    from impala.replay import tables
    from impala.types import Chunk, Origin

    chunk, waits = Chunk(**{name: () for name in Chunk._fields} | dict(np.load(path))), []
    is_over = threading.Event()  # exiting while a thread holds the lock of `stop` would lock out the other processes

    def loop(actor: int):
        fetch, version, number = Client(sources[actor % len(sources)], call_timeout=60), -1, 0
        sink = chunks.TableSink(
            reverb.Client(f"localhost:{port}"), [tables.QUEUE], should_stop=is_over.is_set, max_pending=2
        )
        while not is_over.is_set():
            if number % chunks_per_fetch == 0:
                began = time.perf_counter()
                version, _ = fetch.get_weights(version)
                waits.append(time.perf_counter() - began)
            origin = chunk.origin.copy()  # the feeder drops what it has seen
            origin[Origin._fields.index("actor")], origin[Origin._fields.index("seq")] = actor, number
            sink([chunk._replace(origin=origin)])
            number += 1

    threads = [threading.Thread(target=loop, args=[index], daemon=True) for index in indices]
    for thread in threads:
        thread.start()
    stop.wait()
    is_over.set()
    answers.put(np.array(waits))
    answers.close()
    answers.join_thread()
    os._exit(0)


# --- nodes on a cluster


def cluster(count: int) -> dict:
    """Measures `count` stand-ins on two hosts, one of which is lost."""
    import impala.launching  # noqa: F401, isort: skip
    import launchpad as lp
    import ray
    from ray.cluster_utils import Cluster

    from impala.launching import ray_cluster
    from impala.launching.roles import Role, Roles

    made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=count, include_dashboard=False))
    lost = made.add_node(num_cpus=count // 4)
    program = lp.Program("stand-ins")
    with program.group("actor"):
        for _ in range(count):
            program.add_node(lp.PyNode(time.sleep, 1e6))
    roles = Roles([Role("actor", turn=0, tells=False, returns_alone=True)])
    with tempfile.TemporaryDirectory() as folder:
        ray_cluster.connect(made.address, is_trusted=True)
        began = time.monotonic()
        nodes = ray_cluster.launch(
            program, Path(folder), roles, ray_cluster.Placement(spreads=lambda name: True, wait_seconds=900)
        )
        _until(lambda: len(nodes.left()) == count and all(map(nodes.has_answered, nodes.names())))
        start, began = time.monotonic() - began, time.monotonic()
        workers = [process for process in psutil.process_iter() if "ray::" in process.name()]
        memory, own = (sum(_memory(process, kind) for process in workers) / MB for kind in ("rss", "pss"))
        made.remove_node(lost, allow_graceful=False)
        _until(nodes.ended)
        notice, gone = time.monotonic() - began, set()
        while not gone or len(nodes.left()) < count or not all(map(nodes.has_answered, nodes.names())):
            for name in nodes.ended():
                gone.add(name)
                nodes.start_again(name, 0.0)
            nodes.start_due(lambda name: 2)
            time.sleep(0.05)
            assert time.monotonic() - began < 900
        back, began = time.monotonic() - began, time.monotonic()
        nodes.stop()
        nodes.kill()
        stop = time.monotonic() - began
    ray.shutdown()
    made.shutdown()
    return dict(
        nodes=count, start_seconds=round(start, 1), lost_nodes=len(gone), notice_seconds=round(notice, 1),
        back_seconds=round(back, 1), stop_seconds=round(stop, 1), ray_workers_mb=round(memory),
        ray_workers_pss_mb=round(own),
    )  # fmt: skip


def _until(condition, seconds: float = 900.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never"
        time.sleep(0.05)


def _memory(process, kind: str) -> int:
    """Returns a process's resident bytes; pss: of a page that n processes share, an n-th."""
    try:
        return getattr(process.memory_full_info(), kind)
    except psutil.Error:
        return 0


def hosts(count: int) -> list[dict]:
    """Measures a learner with `count` actors, twice as many on two hosts, and `count` again."""
    from ray.cluster_utils import Cluster

    from impala.monitoring.logs import read_csv

    def newest() -> dict[str, float]:
        *_, row = [dict(updates=0, frames=0, wall_seconds=0), *read_csv(folder / "metrics.csv")]
        return {name: float(row[name]) for name in ("frames", "updates", "wall_seconds")}

    def measured(num_hosts: int, num_actors: int) -> dict:
        time.sleep(20)  # the rows in which that changed
        before = newest()
        time.sleep(60)
        after = newest()
        seconds = after["wall_seconds"] - before["wall_seconds"]
        rates = {
            f"{name}_per_second": round((after[name] - before[name]) / seconds, 1) for name in ("frames", "updates")
        }
        return dict(hosts=num_hosts, actors=num_actors, **rates)

    made = Cluster(initialize_head=True, head_node_args=dict(num_cpus=2 + count, include_dashboard=False))
    with tempfile.TemporaryDirectory() as parent:
        folder, log = Path(parent) / "run", Path(parent) / "log"
        command = [
            sys.executable, "-m", "impala", "train", "catch", "--cluster", made.address, "--run", str(folder),
            "--environment.name", "tests.programs.paced:Catch", "--actor.num-actors", str(2 * count),
            "--actor.num-lanes", "1", "--cluster.min-actors", str(count), "--log-period-seconds", "1",
            "--total-frames", "1000000000", "--target-return", "2",
        ]  # fmt: skip
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        _until(lambda: (folder / "metrics.csv").exists() and newest()["updates"] > 20)
        rows = [measured(1, count)]
        more = made.add_node(num_cpus=count)
        _until(lambda: "waits for room" not in log.read_text().splitlines()[-1] and len(_actors()) == 2 * count)
        rows.append(measured(2, 2 * count))
        made.remove_node(more, allow_graceful=False)
        _until(lambda: len(_actors()) == count)
        rows.append(measured(1, count))
        process.terminate()
        assert process.wait(120) == 0, log.read_text()
    made.shutdown()
    return rows


def _actors() -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.name().startswith("actor/")]


if __name__ == "__main__":
    main()
