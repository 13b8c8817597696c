"""What `impala cluster` writes: the batch script read by bash, the manifest against KubeRay's and Kubernetes' published fields."""

import contextlib
import functools
import operator
import os
import re
import shlex
import signal
import subprocess

import jsonschema
import pytest
import yaml

from impala import cli
from impala.launching import kubernetes, slurm
from tests.programs.running import ROOT, refused, wait_for

_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_POSITIVE = _COUNT | {"minimum": 1}
_WORDS = {"type": "object", "additionalProperties": _TEXT}
_QUANTITIES = {
    "type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?([KMGTPE]i|[numkMGTPE])?$"},
}  # fmt: skip


def _fields(*required, **fields):
    """Returns the JSON schema of an object that has no other fields."""
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def _list(schema):
    return {"type": "array", "items": schema}


# Of Kubernetes' core/v1 and networking.k8s.io/v1 what pods and policies may have here, and KubeRay's ray.io/v1. The latter
# was compared field by field, on 2026-11-27, with the published CRDs ray.io_rayjobs.yaml (opendatahub-io/kuberay, bffcc518) and
# ray.io_raycronjobs.yaml (ray-project/kuberay, 12cb11e4), and with what the operator itself refuses (`validation.go`).
_CONTAINER = _fields(
    "name", name=_TEXT, image=_TEXT, imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    env=_list(_fields("name", name=_TEXT, value=_TEXT)),
    resources=_fields(requests=_QUANTITIES, limits=_QUANTITIES),
    volumeMounts=_list(_fields("name", "mountPath", name=_TEXT, mountPath=_TEXT, subPath=_TEXT, readOnly=_FLAG)),
)  # fmt: skip
_POD = _fields(
    "spec",
    metadata=_fields(labels=_WORDS, annotations=_WORDS),
    spec=_fields(
        "containers", terminationGracePeriodSeconds=_COUNT, containers=_list(_CONTAINER) | {"minItems": 1}, nodeSelector=_WORDS,
        volumes=_list(_fields(
            "name", name=_TEXT, persistentVolumeClaim=_fields("claimName", claimName=_TEXT, readOnly=_FLAG),
            emptyDir=_fields(medium={"enum": ["", "Memory"]}, sizeLimit=_TEXT), configMap=_fields(name=_TEXT, optional=_FLAG),
        )),
    ),
)  # fmt: skip
_RESOURCES = _fields(requests=_QUANTITIES, limits=_QUANTITIES)
_GROUP = dict(
    resources=_WORDS, labels=_WORDS, template=_POD,
    rayStartParams=_WORDS | {"propertyNames": {"not": {"const": "labels"}}},  # the operator refuses it
)  # fmt: skip
_CLUSTER = _fields(
    "headGroupSpec", suspend=_FLAG, managedBy=_TEXT, enableInTreeAutoscaling=_FLAG, headServiceAnnotations=_WORDS,
    rayVersion=_TEXT | {"pattern": r"^\d+\.\d+\.\d+"}, authOptions=_fields(mode={"enum": ["disabled", "token"]}),
    autoscalerOptions=_fields(
        version={"enum": ["v1", "v2"]}, idleTimeoutSeconds=_COUNT, image=_TEXT, imagePullPolicy=_TEXT,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]}, resources=_RESOURCES,
    ),
    headGroupSpec=_fields("template", serviceType=_TEXT, enableIngress=_FLAG, **_GROUP),
    workerGroupSpecs=_list(_fields(
        "groupName", "minReplicas", "maxReplicas", "template", groupName=_TEXT, replicas=_COUNT, minReplicas=_COUNT,
        maxReplicas=_COUNT, numOfHosts=_POSITIVE, idleTimeoutSeconds=_COUNT, **_GROUP,
    )),
) | {"dependentRequired": {"authOptions": ["rayVersion"]}}  # fmt: skip
_MODES = ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]  # the operator's constants; a string in the CRD
_JOB = _fields(
    "entrypoint", "rayClusterSpec", activeDeadlineSeconds=_POSITIVE, backoffLimit=_COUNT, jobId=_TEXT, metadata=_WORDS,
    ttlSecondsAfterFinished=_COUNT, shutdownAfterJobFinishes=_FLAG, submissionMode={"enum": _MODES}, suspend=_FLAG,
    submitterConfig=_fields(backoffLimit=_COUNT), submitterPodTemplate=_POD, entrypoint=_TEXT | {"minLength": 1},
    entrypointNumCpus={"type": "number"}, entrypointNumGpus={"type": "number"}, entrypointResources=_TEXT,
    runtimeEnvYAML=_TEXT, clusterSelector=_WORDS, rayClusterSpec=_CLUSTER,
    managedBy={"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
) | {
    "if": {"properties": {"ttlSecondsAfterFinished": {"minimum": 1}}, "required": ["ttlSecondsAfterFinished"]},
    "then": {"properties": {"shutdownAfterJobFinishes": {"const": True}}, "required": ["shutdownAfterJobFinishes"]},
}  # fmt: skip
_CHOICE = _fields(matchLabels=_WORDS, matchExpressions=_list(_fields(
    "key", "operator", key=_TEXT, operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
)))  # fmt: skip
_POLICY = _fields(
    "podSelector", podSelector=_CHOICE, policyTypes=_list({"enum": ["Ingress", "Egress"]}),
    ingress=_list(_fields(
        **{"from": _list(_fields(podSelector=_CHOICE, namespaceSelector=_CHOICE))},
        ports=_list(_fields(port={"type": "integer", "minimum": 1, "maximum": 65_535}, protocol={"enum": ["TCP", "UDP", "SCTP"]})),
    )),
)  # fmt: skip
_NAME = {"type": "string", "pattern": r"^[a-z]([a-z0-9-]{0,45}[a-z0-9])?$"}  # the operator adds to that of a job
SCHEMAS = {
    kind: _fields(
        "apiVersion", "kind", "metadata", "spec", apiVersion={"const": version}, kind={"const": kind},
        metadata=_fields("name", name=_NAME, namespace=_NAME, labels=_WORDS), spec=spec,
    )
    for kind, version, spec in (("RayJob", "ray.io/v1", _JOB), ("NetworkPolicy", "networking.k8s.io/v1", _POLICY))
}  # fmt: skip
_KEYS = _WORDS | {"propertyNames": {"pattern": r"^[-._a-zA-Z0-9]+$"}}
CONFIG_MAP = _fields(
    "apiVersion", "kind", "metadata", apiVersion={"const": "v1"}, kind={"const": "ConfigMap"},
    metadata=SCHEMAS["RayJob"]["properties"]["metadata"], data=_KEYS, immutable=_FLAG,
)
JOB = kubernetes.Job("registry/impala:1", workers=3, max_workers=3, cpus=8, memory_gb=16, gpus=1, claim="impala-runs", namespace="default")
PIPES = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
SOONER = {f"RAY_health_check_{name}": value for name, value in (
    ("period_ms", "2000"), ("timeout_ms", "4000"), ("failure_threshold", "4"),
)}  # fmt: skip
SLURM = slurm.Job(nodes=4, cpus=16, gpus=2, time="12:00:00", options=["--partition=long"])


def documents(*arguments, job=JOB):
    return {each["kind"]: each for each in yaml.safe_load_all(kubernetes.manifest(arguments, "pong", job))}


def faults(document):
    """Returns what of a document is not as published."""
    schema = (SCHEMAS | {"ConfigMap": CONFIG_MAP})[document["kind"]]
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_all_that_it_makes_is_in_the_namespace():
    text = kubernetes.manifest(["pong"], "pong", JOB._replace(namespace="teams-rl"), file="{}")
    assert [each["metadata"]["namespace"] for each in yaml.safe_load_all(text)] == 3 * ["teams-rl"]
    assert "rayjob -n teams-rl impala-pong" in text


@pytest.mark.parametrize("job", [JOB, JOB._replace(max_workers=9), JOB._replace(gpus=0)])
def test_the_manifest_is_as_published(job):
    written = documents("pong", job=job)
    assert set(written) == set(SCHEMAS)
    for document in written.values():
        assert faults(document) == []


@pytest.mark.parametrize("path, value, words", [
    (["spec", "entrypont"], "x", "$.spec: Additional properties are not allowed ('entrypont'"),
    (["spec", "submissionMode"], "K8SJobMode", "$.spec.submissionMode: 'K8SJobMode' is not one of"),
    (["spec", "rayClusterSpec", "authOptions", "mode"], "tokn", "authOptions.mode: 'tokn' is not one of"),
    (["spec", "rayClusterSpec", "headGroupSpec"], {}, "headGroupSpec: 'template' is a required property"),
    (["spec", "rayClusterSpec", "rayVersion"], "latest", "rayVersion: 'latest' does not match"),
    (["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "labels"], "a=b", "'labels' should not be valid under"),
    (["spec", "shutdownAfterJobFinishes"], False, "shutdownAfterJobFinishes: True was expected"),
    (["spec", "backoffLimit"], 2**31, "2147483648 is greater than the maximum"),
    (["spec", "rayClusterSpec", "workerGroupSpecs", 0, "template", "spec", "containers"], [], "containers: [] should be non-empty"),
    (["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"], 8, "8 is not of type 'string'"),
    (["metadata", "name"], "Pong", "$.metadata.name: 'Pong' does not match"),
])  # fmt: skip
def test_a_manifest_that_is_not_as_published_is_found(path, value, words):
    job = documents("pong")["RayJob"]
    *above, last = path
    functools.reduce(operator.getitem, above, job)[last] = value
    assert words in faults(job)[0]


def test_a_token_without_rays_version_is_found():
    job = documents("pong")["RayJob"]
    del job["spec"]["rayClusterSpec"]["rayVersion"]
    assert faults(job) == ["$.spec.rayClusterSpec: 'rayVersion' is a dependency of 'authOptions'"]


def test_an_autoscaler_adds_pods_up_to_the_most_nodes(capsys):
    command = ["cluster", "kubernetes", "catch", "--image", "x", "--nodes", "3", "--actor.num-actors", "70"]
    assert cli.main([*command, "--max-nodes", "10"]) == 0
    text = capsys.readouterr().out
    job, _ = yaml.safe_load_all(text)
    cluster = job["spec"]["rayClusterSpec"]
    (worker,) = cluster["workerGroupSpecs"]
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (2, 2, 9)
    assert cluster["enableInTreeAutoscaling"] is True and "and 2 to 9 workers for actors" in text
    assert " --cluster.wait-seconds 1800 " in job["spec"]["entrypoint"], "a pod takes its time"
    assert cli.main([*command, "--max-nodes", "10", "--cluster.wait-seconds", "7"]) == 0
    assert "1800" not in capsys.readouterr().out


def test_the_manifest_asks_for_what_was_said():
    written = documents("pong", "--environment.name", "[atari:pong, atari:breakout]")
    spec = written["RayJob"]["spec"]
    assert spec["entrypoint"] == (
        "impala train pong --environment.name '[atari:pong, atari:breakout]' --cluster auto --run /runs/pong"
    )
    cluster = spec["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
    assert cluster["authOptions"] == {"mode": "token"} and spec["shutdownAfterJobFinishes"] is True
    (worker,), head = cluster["workerGroupSpecs"], cluster["headGroupSpec"]
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (3, 3, 3)
    (of_head,), (of_worker,) = (group["template"]["spec"]["containers"] for group in (head, worker))
    wanted = {"RAY_JOB_STOP_WAIT_TIME_S": "100", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "100"} | SOONER
    assert of_head["env"] == of_worker["env"] == [{"name": name, "value": value} for name, value in wanted.items()]
    assert head["template"]["spec"]["terminationGracePeriodSeconds"] > 100
    assert of_head["resources"]["limits"] == {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}
    assert of_worker["resources"]["limits"] == {"cpu": "8", "memory": "16Gi"}
    assert {mount["mountPath"] for mount in of_head["volumeMounts"]} == {"/runs", "/dev/shm"}


def test_a_configuration_of_ones_own_goes_along_as_a_config_map(tmp_path, capsys):
    """The job reads it where the head's pod mounts it; what it holds is what `--config` was given."""
    text = "# mine: ü\nprogram: dqn\nenvironment: {name: catch}\nnetwork: {torso: mlp}\n"
    (tmp_path / "my.yaml").write_text(text)
    command = ["cluster", "kubernetes", "--config", tmp_path / "my.yaml", "--image", "x", "--replay.min-size", "100"]
    assert cli.main([*map(str, command)]) == 0
    job, policy, config_map = yaml.safe_load_all(capsys.readouterr().out)
    assert faults(job) == faults(policy) == faults(config_map) == []
    words = shlex.split(job["spec"]["entrypoint"])
    assert words == [*"impala train --config /config/config.yaml --replay.min-size 100 --cluster auto --run /runs/my".split()]
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mounted = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    (volume,) = [volume for volume in pod["volumes"] if "configMap" in volume]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"] == job["metadata"]["name"]
    (name,) = config_map["data"]
    assert f"{mounted[volume['name']]}/{name}" == words[3] and config_map["data"][name] == text


def test_a_runs_name_becomes_one_of_kubernetes():
    def name_of(run):
        job, _ = yaml.safe_load_all(kubernetes.manifest(["seed_pong"], run, JOB))
        assert f"--run {shlex.quote(f'/runs/{run}')}" in job["spec"]["entrypoint"]
        return job["metadata"]["name"]

    assert name_of("seed-pong-2") == "impala-seed-pong-2"
    runs = ["Seed_pong.2", "seed_pong-2", "seed-pong_2", "é", "ö", "-a", "a-"]
    names = {name_of(run) for run in runs}
    assert len(names) == len(runs) and all(re.fullmatch(r"impala(-[a-z0-9]+)+", name) for name in names), names


def test_long_names_stay_different_and_end_as_kubernetes_wants_it():
    names = set()
    for seed in (1, 2):
        text = kubernetes.manifest(["pong"], f"breakout_deep_resnet_vtrace_lr_3_seed_{seed}", JOB)
        names.add(next(yaml.safe_load_all(text))["metadata"]["name"])
    assert len(names) == 2 and all(len(name) <= 40 and name[-1].isalnum() for name in names), names


def test_the_jobs_pods_reach_each_other_and_others_reach_the_jobs_port_at_most():
    written = documents("pong")
    policy, cluster = written["NetworkPolicy"]["spec"], written["RayJob"]["spec"]["rayClusterSpec"]
    label = policy["podSelector"]["matchLabels"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert label.items() <= group["template"]["metadata"]["labels"].items()
    own, others = policy["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": label}}]} and policy["policyTypes"] == ["Ingress"]
    assert [port["port"] for port in others["ports"]] == [8265]


def test_the_script_is_bash_and_asks_for_what_was_said(tmp_path):
    text = slurm.script(["pong", "--loss.correction", "none"], tmp_path / "a run", SLURM, tmp_path / "bin")
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False, capture_output=True).stderr == ""
    directives = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    expected = ["--nodes=4", "--cpus-per-task=16", "--gpus-per-node=2", "--partition=long", "--time=12:00:00", "--requeue"]
    assert set(expected) < set(directives)
    assert {'--job-name="impala-a run"', f'--output="{tmp_path}/a run.slurm.log"', "--signal=B:USR1@120"} < set(directives)
    assert f"train pong --loss.correction none --cluster \"$address\" --run '{tmp_path}/a run' &" in text
    assert "RAY_AUTH_MODE=token" in text and "scontrol requeue" in text


RAY = '[ $1 = status ] || env | grep ^RAY_health > health; echo "$@" >> rays; [ $1 = status ] || exec sleep 60'


def job_of(tmp_path, impala, restarts=0, addresses="fd00::7 127.0.0.2 10.0.0.1 10.1.0.1", ray=RAY, patience=300):
    """Starts the script itself, with programs around it that say what they were asked to do."""
    commands = tmp_path / "some commands"
    commands.mkdir(exist_ok=True)
    for name, text in {
        "ray": ray, "impala": impala, "scontrol": 'echo "$@" >> asked; echo host',
        "hostname": f"[ $1 = -I ] && echo '{addresses}' || echo 127.0.1.1", "srun": "sleep 60",
    }.items():  # fmt: skip
        (commands / name).write_text(f"#!/bin/bash\ncd {tmp_path}\n{text}\n")
        (commands / name).chmod(0o755)
    text = slurm.script(["pong"], tmp_path / "run", SLURM, commands)
    for words in ("-ge %d ]", "answered in %d s;"):
        assert text.count(words % 300) == 1
        text = text.replace(words % 300, words % patience)
    (tmp_path / "job").write_text(text)
    environment = os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "host", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2",
        "SLURM_RESTART_COUNT": str(restarts),
    }  # fmt: skip
    return subprocess.Popen(["bash", tmp_path / "job"], env=environment, **PIPES, text=True, start_new_session=True)


def end(job):
    with contextlib.suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(job.pid, signal.SIGKILL)


@pytest.mark.parametrize("number, is_queued", [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_the_job_comes_back_when_its_time_is_over_and_not_after_scancel(tmp_path, number, is_queued):
    job = job_of(tmp_path, "trap 'echo saved; exit 0' TERM; touch trains; sleep 60 & wait")
    try:
        wait_for(lambda: (tmp_path / "trains").exists(), 30, "it trains")
        job.send_signal(number)
        assert job.wait(30) == 0
        asked = (tmp_path / "asked").read_text()
        assert ("requeue 7" in asked) == is_queued, asked
    finally:
        end(job)


@pytest.mark.parametrize("number, is_queued", [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_job_that_is_told_to_end_while_ray_starts_does_so_and_comes_back_only_for_its_time(tmp_path, number, is_queued):
    job = job_of(tmp_path, "touch trains", ray='echo "$@" >> rays; [ $1 = status ] && exit 1; exec sleep 60')
    try:
        wait_for(lambda: (tmp_path / "rays").exists() and "status" in (tmp_path / "rays").read_text(), 30, "it waits for Ray")
        job.send_signal(number)
        assert job.wait(30) == 130
        assert ("requeue 7" in (tmp_path / "asked").read_text()) == is_queued
        assert not (tmp_path / "trains").exists()
    finally:
        end(job)


def test_a_ray_that_never_answers_ends_the_job_which_comes_back(tmp_path):
    job = job_of(tmp_path, "touch trains", ray="[ $1 = status ] && exit 1; exec sleep 60", patience=2)
    try:
        said = job.communicate(timeout=30)[1]
        assert job.returncode == 75 and "host: Ray at 10.0.0.1:6386 has not answered in 2 s" in said, said
        assert "requeue 7" in (tmp_path / "asked").read_text() and not (tmp_path / "trains").exists()
    finally:
        end(job)


def test_a_job_whose_ray_ends_at_once_ends_with_1(tmp_path):
    job = job_of(tmp_path, "touch trains", ray="exit 1")
    try:
        assert job.wait(30) == 1
        assert "requeue" not in (tmp_path / "asked").read_text() and not (tmp_path / "trains").exists()
    finally:
        end(job)


def test_the_head_listens_where_other_hosts_reach_it_whatever_its_own_name_stands_for(tmp_path):
    job = job_of(tmp_path, "until grep -q head rays; do sleep 0.1; done")
    try:
        job.wait(30)
    finally:
        end(job)
    assert "start --head --node-ip-address=10.0.0.1 --port=6386 " in (tmp_path / "rays").read_text()
    assert dict(line.split("=") for line in (tmp_path / "health").read_text().split()) == SOONER
    (tmp_path / "rays").unlink()
    job = job_of(tmp_path, "exit 0", addresses="fd00::7 ")
    assert job.communicate(timeout=30)[1] == (
        "host: has no IPv4 address but 127.*; expected one that other hosts reach\n"
    )
    assert job.returncode == 1 and not (tmp_path / "rays").exists()


def test_a_job_that_could_be_tried_again_comes_back_five_times_in_a_row_and_time_limits_do_not_count(tmp_path):
    def is_queued_after(impala, restarts):
        (tmp_path / "asked").unlink(missing_ok=True)
        job = job_of(tmp_path, impala, restarts)
        try:
            job.wait(30)
        finally:
            end(job)
        return "requeue 7" in (tmp_path / "asked").read_text()

    its_time_is_over = "trap 'exit %d' TERM; sleep 0.5; kill -USR1 $PPID; sleep 60 & wait"
    for status in (130, 75, 0):  # 75: its hosts were ended, too
        assert not is_queued_after((its_time_is_over % status).replace("USR1", "TERM"), 0), "scancel"
    assert [is_queued_after("exit 75", restarts) for restarts in range(4)] == 4 * [True]
    assert is_queued_after(its_time_is_over % 130, 4), "there was no update yet"
    assert not is_queued_after(its_time_is_over % 1, 4)
    too_slow = "trap 'sleep 1; exit 0' TERM; sleep 0.5; kill -USR1 $PPID; sleep 0.5; kill -TERM $PPID; sleep 60 & wait"
    assert is_queued_after(too_slow, 4), "Slurm sends SIGTERM at the limit itself; the checkpoint was being written"
    assert is_queued_after(its_time_is_over % 0, 4), "its time was over"
    assert [is_queued_after("exit 75", restarts) for restarts in range(5, 11)] == 5 * [True] + [False]
    assert is_queued_after("exit 75", 0), "submitted anew"
    tries = [is_queued_after(its_time_is_over % 130, restarts) for restarts in range(1, 6)]
    assert tries == 4 * [True] + [False], "it would never come to an update"
    assert not is_queued_after("exit 1", 1)
    assert is_queued_after("kill -USR1 $PPID; sleep 60", 0), "its process does not yet hear the signal"


@pytest.mark.parametrize("arguments, words", [
    (["slurm"], "impala cluster slurm: nothing named; expected one shipped configuration"),
    (["slurm", "pogn"], "did you mean pong"),
    (["slurm", "pong", "--loss.correction", "vtrase"], "did you mean vtrace?"),
    (["slurm", "pong", "--node", "3"], "--node: unknown; did you mean --nodes?"),
    (["slurm", "pong", "--nodes", "0"], "--nodes: got '0'; a whole number, 1 or more, is needed"),
    (["slurm", "pong", "--gpus", "-1"], "--gpus: got '-1'; a whole number"),
    (["slurm", "pong", "--output", "/no/such/script"], "--output /no/such/script: No such file or directory; expected a file"),
    (["slurm", "catch", "--config", "configs/catch.yaml"], "cluster slurm: catch and configs/catch.yaml named; expected one"),
    (["slurm", "catch", "--environment.name", "CartPole-v99"], "environment.name: 'CartPole-v99'"),
    (["slurm", "catch", "--time", "soon"], "--time: got 'soon'; expected HH:MM:SS"),
    (["slurm", "catch", "--option", "partition=long"], "--option: got 'partition=long'; expected one of sbatch"),
    (["kubernetes", "catch", "--image", "a b"], "--image: got 'a b'; expected the name of an image"),
    (["kubernetes", "catch", "--image", "x", "--claim", "My Runs"], "--claim: got 'My Runs'; expected a volume claim's name"),
    (["kubernetes", "catch", "--image", "x", "--namespace", "a.b"], "--namespace: got 'a.b'; expected up to 63 small letters"),
    (["slurm", "pong", "--actor.num-actors", "17"], "--nodes 2 --cpus 8: have 16 CPUs, and a run needs 19 there for 1 × learner, 1 × table, 17 × actor;"),
    (["slurm", "pong", "--nodes", "4", "--cpus", "1"], "--cpus 1: the first host has 1 CPUs, and a run needs 2 there for 1 × learner, 1 × table;"),
    (["slurm", "population", "--nodes", "4", "--cpus", "6"], "--cpus 6: the first host has 6 CPUs, and a run needs 8 there for 4 × learner, 4"),
    (["slurm", "population", "--nodes", "2", "--cpus", "8", "--gpus", "2"], "--gpus 2: the first learners of 4 members stand on"),
    (["kubernetes", "gorila_pong", "--image", "x", "--cpus", "1", "--nodes", "2", "--server.num-shards", "2"], "have 2 CPUs, and a run needs 5 "),
    (["kubernetes", "pong", "--image", "x", "--time", "1:00:00"], "--time: not with kubernetes; expected none"),
    (["kubernetes", "pong", "--image", "x", "--option", "=--a"], "--option: not with kubernetes; expected none"),
    (["slurm", "pong", "--memory-gb", "64"], "--memory-gb: not with slurm; expected none, or --option=--mem=64G"),
    (["slurm", "pong", "--image", "x"], "--image: not with slurm; expected none"),
    (["kubernetes", "pong"], "--image: not given; expected the name of an image with this project"),
    (["kubernetes", "pong", "--image", "x", "--nodes", "5", "--max-nodes", "4"], "--max-nodes 4: expected --nodes, 5, or more,"),
    (["slurm", "pong", "--max-nodes", "4"], "--max-nodes 4: expected --nodes, 2, or more, with kubernetes"),
    (["kubernetes", "pong", "--image", "x", "--submit"], "--submit: not with kubernetes"),
    (["kubernetes", "--config", "configs/pogn.yaml", "--image", "x"], "configs/pogn.yaml: No such file"),
    (["kubernetes", "pong", "--image", "x", "--run", "."], "--run .: has no name of its own; expected a folder like"),
    (["slurm", "catch", "--run", "runs/.."], "--run runs/..: has no name of its own; expected a folder like"),
    (["slurm", "catch", "--run", 'a"b'], "--run 'a\"b': sbatch would not read its path as it is; expected a name of letters"),
    (["slurm", "catch", "--run", "a\nb"], "--run 'a\\nb': sbatch would not read its path as it is"),
    (["slurm", "catch", "--run", "50%/a"], "--run '50%/a': sbatch would not read its path as it is"),
    (["slurm", "catch", "--submit", "--run", "/proc/x/y"], "--run /proc/x/y: No such file or directory; expected a folder that"),
    (["slurm", "catch", "--submit", "--run", "Makefile/y"], "--run Makefile/y: Not a directory; expected a folder that"),
    (["slurm", "pong", "--gpus", "1", "--learner.num-learners", "4"], "--gpus 1: 4 learners have 2 GPUs; expected one for each,"),
    (["kubernetes", "pong", "--image", "x", "--gpus", "1", "--learner.num-learners", "2"], "--gpus 1: 2 learners have 1 GPUs;"),
    (["nomad", "pong"], "invalid choice: 'nomad'"),
])  # fmt: skip
def test_mistakes_are_one_line_before_anything_waits_in_a_queue(arguments, words, capsys):
    (line,) = refused(capsys, "cluster", *arguments)
    assert words in line


@pytest.mark.parametrize("arguments, given", [
    (["--gpus", "1"], True),
    (["--gpus", "2", "--learner.num-learners", "2"], True),
    ([], False),
    (["--gpus", "1", "--cluster.learner-gpus", "0.5"], False),
    (["--gpus", "1", "--cluster.learner-gpus", "0"], False),
])  # fmt: skip
@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_with_gpus_each_learner_gets_one_of_its_own_unless_that_key_is_set(capsys, where, arguments, given):
    image = ["--image", "x"] if where == "kubernetes" else []
    assert cli.main(["cluster", where, "catch", *image, *arguments]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "impala train catch" in line]
    assert ("--cluster.learner-gpus 1 --cluster" in line) == given, line


def test_a_program_whose_learners_are_parameter_servers_gets_no_gpus(capsys):
    assert cli.main(["cluster", "slurm", "a3c_catch", "--gpus", "1"]) == 0
    assert "learner-gpus" not in capsys.readouterr().out


def test_a_run_has_the_folder_that_train_would_give_it(capsys):
    assert cli.main(["cluster", "kubernetes", "lab/catch", "--image", "x"]) == 0
    assert "--run /runs/lab_catch" in capsys.readouterr().out
    assert cli.main(["cluster", "slurm", "lab/catch"]) == 0
    assert f"--run {ROOT}/runs/lab_catch &" in capsys.readouterr().out
