"""Writes the manifest of a KubeRay RayJob that runs a program on a Kubernetes cluster."""

import hashlib
import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from impala.launching import ray_health

_HEADER = """\
# A Ray cluster of one head, where the learner stands, and {workers} for actors; it is gone when the run has
# ended. `kubectl apply -f` starts it, where KubeRay 1.5.1 or later is installed; applied again after `kubectl delete
# rayjob -n {namespace} {name}`, the run resumes from its folder on the volume claim {claim}.
# Reverb's and TensorFlow's ports ask nobody who they are: the network policy lets the job's own pods reach them alone.
"""
_RUNS = "/runs"
_CONFIG, _CONFIG_FILE = "/config", "config.yaml"
# Ray kills a job that is stopped after 3 s, and all of a pod that is to end after 30, unless it is told otherwise.
_GRACE_SECONDS, _STOP_SECONDS = 120, 100
_STOPPING = {"RAY_JOB_STOP_WAIT_TIME_S": _STOP_SECONDS, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": _STOP_SECONDS}
_ENVIRONMENT = _STOPPING | ray_health.SOONER
_RAY = "2.60.0"  # of the image, as in constraints.txt; KubeRay refuses `authOptions` without it


class Job(NamedTuple):
    """What is asked of Kubernetes."""

    image: str
    workers: int
    max_workers: int  # above `workers`: Ray's autoscaler adds pods for nodes that wait for room, and ends idle ones
    cpus: int  # of each pod
    memory_gb: int
    gpus: int  # of the head
    claim: str  # the persistent volume claim that holds the runs' folders
    namespace: str


def manifest(arguments: Sequence[str], name: str, job: Job, file: str | None = None) -> str:
    """Returns the YAML of a RayJob, its network policy and, for a configuration of one's own, a config map.

    Args:
      arguments: of `impala train`, without --run and --cluster.
      name: of the run, a folder in the volume.
      file: text of a configuration that the image does not hold; the run is told to read it.
    """
    # A valid Kubernetes name: letters, digits and dashes, short enough for the suffixes that are added.
    label = re.sub(r"[^a-z0-9]+", "-", f"impala-{name}".lower()).strip("-")
    if len(label) > 40 or label != f"impala-{name}":  # another run's name may differ in what is lost alone
        label = f"{label[:33].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    metadata = {"name": label, "namespace": job.namespace}
    named = [] if file is None else ["--config", f"{_CONFIG}/{_CONFIG_FILE}"]
    arguments = [*named, *map(str, arguments), "--cluster", "auto", "--run", f"{_RUNS}/{name}"]
    ray_job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": shlex.join(["impala", "train", *arguments]),
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 3,  # each try is a new cluster, which resumes the run
            "submitterConfig": {"backoffLimit": 20},  # it only follows the job's log; its own end would end a try
            "rayClusterSpec": {
                "rayVersion": _RAY,
                "authOptions": {"mode": "token"},
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": str(job.cpus), "dashboard-host": "0.0.0.0"},
                    "template": _pod(label, job, gpus=job.gpus, has_file=file is not None),
                },
                "workerGroupSpecs": [{
                    "groupName": "actors",
                    "replicas": job.workers, "minReplicas": job.workers, "maxReplicas": job.max_workers,
                    "rayStartParams": {"num-cpus": str(job.cpus)},
                    "template": _pod(label, job, gpus=0),
                }],
            },
        },
    }  # fmt: skip
    if job.max_workers > job.workers:
        ray_job["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    same_job = {"podSelector": {"matchLabels": {"impala-run": metadata["name"]}}}
    operator = {
        "podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}, "namespaceSelector": {},
    }  # fmt: skip
    submitter = {"podSelector": {"matchExpressions": [{"key": "batch.kubernetes.io/job-name", "operator": "Exists"}]}}
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            **same_job,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [same_job]},
                {"from": [operator, submitter], "ports": [{"port": 8265, "protocol": "TCP"}]},
            ],
        },
    }  # fmt: skip
    about = [] if file is None else [_config_map(metadata, file)]
    documents = yaml.dump_all([ray_job, policy, *about], Dumper=_Dumper, sort_keys=False, width=120)
    workers = f"{job.workers} to {job.max_workers}" if job.max_workers > job.workers else f"{job.workers}"
    workers += " worker" if workers == "1" else " workers"
    return _HEADER.format(workers=workers, name=label, namespace=job.namespace, claim=job.claim) + documents


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data) -> bool:
        return True  # what occurs twice is written twice

    def represent_text(self, text: str):
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def _config_map(metadata: dict, file: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_CONFIG_FILE: file}}


def _pod(name: str, job: Job, *, gpus: int, has_file: bool = False) -> dict:
    amounts = {"cpu": str(job.cpus), "memory": f"{job.memory_gb}Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    mounts = [{"name": "runs", "mountPath": _RUNS}, {"name": "shared-memory", "mountPath": "/dev/shm"}]
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": job.claim}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    if has_file:
        mounts.append({"name": "config", "mountPath": _CONFIG})
        volumes.append({"name": "config", "configMap": {"name": name}})
    return {
        "metadata": {"labels": {"impala-run": name}},
        "spec": {
            "terminationGracePeriodSeconds": _GRACE_SECONDS,  # if the run hears of it, it saves
            "containers": [{
                "name": "ray",
                "image": job.image,
                "env": [{"name": variable, "value": str(value)} for variable, value in _ENVIRONMENT.items()],
                "resources": {"requests": amounts, "limits": amounts},
                "volumeMounts": mounts,
            }],
            "volumes": volumes,
        },
    }  # fmt: skip
