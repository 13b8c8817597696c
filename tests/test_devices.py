"""GPUs and the processor's bfloat16: what is found, and which configurations need them."""

import ctypes.util
import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from impala import agents, devices, training
from impala import config as config_lib
from impala.agents import shared
from impala.nodes import checking

PROCESSORS = {
    "avx512_bf16": "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n",
    "amx_bf16": "flags : amx_tile amx_bf16\n",
    "neither": "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16_of_another_name\n",
    "no flags": "CPU implementer : 0x41\n",
}


@pytest.fixture
def processor(monkeypatch, tmp_path):
    """Returns a function that makes this a machine with one of PROCESSORS."""

    def pretend(name: str) -> None:
        (tmp_path / "cpuinfo").write_text(PROCESSORS[name])
        monkeypatch.setattr(devices, "_CPUINFO", tmp_path / "cpuinfo")
        devices.processor_has_bfloat16.cache_clear()

    yield pretend
    devices.processor_has_bfloat16.cache_clear()


@pytest.mark.parametrize("visible, found, expected", [
    (None, True, 2), ("0", True, 1), ("", True, 0), ("-1", True, 0), ("0,1,2", True, 2), (None, False, 0),
])  # fmt: skip
def test_learners_are_counted_against_gpus_where_gpus_are_used(monkeypatch, visible, found, expected):
    """Two device files; a machine without CUDA's libraries learns on its CPU, however many it has."""
    monkeypatch.setattr(devices.Path, "glob", lambda path, pattern: iter(["/dev/nvidia0", "/dev/nvidia1"]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: "libcudart.so" if found else None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.num_gpus() == expected
    config = config_lib.load("configs/catch.yaml", {"learner.num_learners": 4})
    if expected:
        with pytest.raises(config_lib.ConfigError, match=f"num_learners=4: this machine shows {expected} GPUs"):
            training._check_devices(config, threads=False)
    else:
        training._check_devices(config, threads=False)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processors_bfloat16_is_read_from_its_flags(processor, name):
    processor(name)
    assert devices.processor_has_bfloat16() == name.endswith("_bf16")


@pytest.mark.parametrize("config, num_gpus, name, is_taken", [
    ("catch", 0, "neither", False), ("catch", 0, "avx512_bf16", True), ("catch", 1, "neither", True),
    ("a3c_catch", 1, "neither", False), ("a3c_catch", 0, "amx_bf16", True),
])  # fmt: skip
def test_bfloat16_is_refused_where_what_learns_does_not_have_it(
    monkeypatch, processor, config, num_gpus, name, is_taken
):
    """A parameter server's workers learn on processors, whatever GPU is there."""
    processor(name)
    monkeypatch.setattr(devices, "num_gpus", lambda: num_gpus)
    config = config_lib.load(f"configs/{config}.yaml", {"network.bfloat16": True})
    if is_taken:
        training._check_devices(config, threads=False)
    else:
        with pytest.raises(config_lib.ConfigError, match="network.bfloat16: got True; expected false, since no GPU learns here"):
            training._check_devices(config, threads=False)


@pytest.mark.parametrize("agent", ["catch", "dqn_catch", "r2d2_catch", "dppo_catch"])
@pytest.mark.parametrize("name, num_gpus, on_cpu, expected", [
    ("neither", 1, True, False), ("neither", 1, False, True), ("neither", 0, False, False), ("amx_bf16", 0, True, True),
])  # fmt: skip
def test_networks_compute_in_bfloat16_where_the_machine_does(
    monkeypatch, processor, agent, name, num_gpus, on_cpu, expected
):
    """Whether anything was rounded tells it; parameters are the same, and in float32."""
    processor(name)
    monkeypatch.setattr(devices, "num_gpus", lambda: num_gpus)
    outputs = []
    for bfloat16 in (True, False):
        config = config_lib.load(f"configs/{agent}.yaml", {"network.bfloat16": bfloat16})
        spec = checking.check(config)
        network = agents.of(config).make_network(config, spec, on_cpu=on_cpu)
        observation = (2 + np.random.default_rng(1).random((1, 2, *spec.observation.shape))).astype(spec.observation.dtype)
        inputs = [observation, np.zeros((1, 2), bool)]
        if network.core_state_shape:
            inputs += [np.zeros((1, 2), np.int32), *(np.zeros(s, np.float32) for s in ((1, 2), (2, *network.core_state_shape)))]
        outputs.append(network.numbers(network(*map(tf.constant, inputs)))[0].numpy())
        assert {variable.dtype for variable in network.trainable_variables} == {tf.float32}
    narrow, wide = outputs
    assert (narrow != wide).any() == expected
    np.testing.assert_allclose(narrow, wide, atol=0.05 * np.abs(wide).max())


def test_no_gpu_is_looked_for_where_bfloat16_is_off(monkeypatch):
    """Looking takes a process of its own, and the lab makes thousands of networks."""
    monkeypatch.setattr(devices, "num_gpus", lambda: pytest.fail("it looked for a GPU"))
    assert not shared.uses_bfloat16(config_lib.load("configs/catch.yaml"), on_cpu=False)


def test_learner_jit_compile_is_refused_where_workers_learn_without_a_gpu(monkeypatch):
    monkeypatch.setattr(devices, "num_gpus", lambda: 1)
    training._check_devices(config_lib.load("configs/catch.yaml", {"learner.jit_compile": True}), threads=False)
    config = config_lib.load("configs/a3c_catch.yaml", {"learner.jit_compile": True})
    with pytest.raises(config_lib.ConfigError, match="learner.jit_compile: got True; expected false, since no GPU"):
        training._check_devices(config, threads=False)
