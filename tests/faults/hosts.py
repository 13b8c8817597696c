"""Hosts of Ray's in processes of their own, some in a network of their own whose cable can be broken."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=4, include_dashboard=False))
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@contextlib.contextmanager
def head(**environment) -> Iterator[str]:
    """Starts a host of Ray's in a process of its own; yields its address."""
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with subprocess.Popen([sys.executable, "-c", HEAD], env=os.environ | environment, text=True, **pipes) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def add_host_with_another_numpy(cluster, folder: Path):
    """Adds a host of one CPU to a `ray.cluster_utils.Cluster`, whose packages say that numpy is 9.9."""
    (folder / "numpy-9.9.dist-info").mkdir()
    (folder / "numpy-9.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n")
    return cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": str(folder)})


@contextlib.contextmanager
def cable(here: str, there: str) -> Iterator[tuple[str, Callable[[str], None]]]:
    """Makes a network of its own at the address `there`, which a cable joins to `here`; needs root, and iproute2.

    Yields its name, and a function that sets the cable "down", so that no packet passes, or "up" again.
    """
    name = f"impala{os.getpid()}"
    ends = f"{name[-8:]}-0", f"{name[-8:]}-1"
    try:
        for words in (
            f"netns add {name}", f"link add {ends[0]} type veth peer name {ends[1]} netns {name}",
            f"address add {here}/30 dev {ends[0]}", f"link set {ends[0]} up", f"-n {name} link set lo up",
            f"-n {name} address add {there}/30 dev {ends[1]}", f"-n {name} link set {ends[1]} up",
        ):  # fmt: skip
            _run(words)
        yield name, lambda state: _run(f"link set {ends[0]} {state}")
    finally:
        for words in (f"link delete {ends[0]}", f"netns delete {name}"):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run(words)


def _run(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


@contextlib.contextmanager
def ray_host(*arguments, inside=()) -> Iterator[subprocess.Popen]:
    """Starts a host by Ray's own command; yields the process, which is ended with the block.

    `inside`: words before that command, such as those that run it in another network.
    """
    command = [*inside, Path(sys.executable).parent / "ray", "start", "--block", *arguments]
    nowhere = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with subprocess.Popen([*map(str, command)], **nowhere, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def host_without(folder: Path, address: str) -> Iterator[None]:
    """Adds a host of five CPUs to the cluster at `address`, which sees an empty disk at `folder`; needs root."""
    hidden = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', folder)
    before = num_alive(address)
    with ray_host("--address", address, "--num-cpus", 5, inside=hidden):
        deadline = time.monotonic() + 60
        while num_alive(address) <= before:
            assert time.monotonic() < deadline, "the host has joined"
            time.sleep(0.5)
        yield


def num_alive(address: str) -> int:
    """Returns how many hosts the cluster at `address` has now.

    Hosts of one machine should come one by one: two that start at once may choose the same name for their socket.
    """
    code = "import sys; from ray._raylet import GcsClient; print(*(n.state for n in GcsClient(sys.argv[1]).get_all_node_info().values()))"
    states = subprocess.run([sys.executable, "-c", code, address], capture_output=True, text=True, check=True, timeout=60).stdout
    return states.split().count("0")


# Ray's own, for its tests; by the name that its launcher knows, a file is read that the wheel lacks.
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


@contextlib.contextmanager
def growing_cluster(address: str, folder: Path, *, max_hosts: int) -> Iterator[None]:
    """Starts a head of two CPUs at `address`, whose autoscaler adds hosts of one CPU, as processes of this machine."""
    host, _, port = address.rpartition(":")
    head = {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0}
    worker = {"resources": {"CPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": max_hosts}
    same_machine = dict.fromkeys(("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check"), True)
    provider = {"type": "external", "module": _PROVIDER, "gcs_address": address, **same_machine}
    settings = {
        "cluster_name": "fake_multinode", "provider": provider, "max_workers": max_hosts,
        "available_node_types": {"ray.head.default": head, "ray.worker": worker}, "idle_timeout_minutes": 1,
        "head_node_type": "ray.head.default", "upscaling_speed": 1.0, "auth": {}, "docker": {}, "file_mounts": {},
        **{f"{which}_commands": [] for which in (
            "initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray",
        )},
        **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
    }  # fmt: skip
    (folder / "autoscaler.json").write_text(json.dumps(settings))
    command = [
        Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2", f"--port={port}",
        f"--node-ip-address={host}", "--include-dashboard=false", f"--autoscaling-config={folder}/autoscaler.json",
    ]  # fmt: skip
    environment = os.environ | {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    nowhere = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with subprocess.Popen([*map(str, command)], env=environment, **nowhere, start_new_session=True) as process:
        try:
            yield
        finally:
            everything = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            _, alive = psutil.wait_procs(everything, timeout=10)
            for each in alive:
                each.kill()
