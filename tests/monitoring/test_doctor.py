"""The doctor finds nothing wrong here, and says what is wrong, and the remedy, where something is."""

import collections
import subprocess
import sys

import pytest

from impala.monitoring import doctor

WORKS = doctor.Probe("tensorflow==2.15.1", "print('GPUs: 0'); print('2.15.1')")
MEMORY = collections.namedtuple("Memory", ["available", "total"], defaults=[2**60])


@pytest.fixture
def quick(monkeypatch):
    """Leaves one probe, which does without TensorFlow."""
    monkeypatch.setattr(doctor, "_PROBES", {"tensorflow": WORKS})


def by_name():
    return {check.name: check for check in doctor.checks()}


def lines_of(capsys):
    return {line[5:22].strip(): line for line in capsys.readouterr().out.splitlines()}


@pytest.mark.soak
def test_nothing_is_wrong_here(capsys):
    status = doctor.main()
    lines = lines_of(capsys)
    failed = [line for line in lines.values() if line.startswith("fail")]
    assert (status, failed) == (0, [])
    assert "2.15.1" in lines["tensorflow"] and "0.14.0" in lines["reverb"] and "0.5.2" in lines["launchpad"]
    assert "came back" in lines["RPC stand-in"] and "sampled" in lines["Reverb server"]
    assert "pong.bin breakout.bin" in lines["ROMs"]


def test_importing_the_doctor_imports_nothing_that_may_crash():
    script = (
        "import sys; from impala.monitoring import doctor;"
        "print({'numpy', 'tensorflow', 'reverb', 'launchpad', 'ale_py', 'grpc'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    "script, detail",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("raise ImportError('undefined symbol: scc_info')", "ImportError: undefined symbol: scc_info"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
        ("raise SystemExit(3)", "status 3"),
    ],
)
def test_a_broken_probe_fails_with_its_remedy(monkeypatch, capsys, quick, script, detail):
    if "sleep" in script:
        monkeypatch.setattr(doctor, "PROBE_SECONDS", 2)
    monkeypatch.setitem(doctor._PROBES, "reverb", doctor.Probe("dm-reverb==0.14.0", script))
    assert doctor.main() == 1
    line = lines_of(capsys)["reverb"]
    assert line.startswith("fail") and detail in line
    assert f"  fix: {sys.executable} -m pip install" in line and line.endswith(" dm-reverb==0.14.0")


def test_a_check_that_breaks_is_reported_and_the_others_go_on(monkeypatch, capsys, quick):
    def broken():
        raise OSError("no /proc here")

    monkeypatch.setattr(doctor, "_pins", broken)
    assert doctor.main() == 1
    lines = lines_of(capsys)
    assert "OSError: no /proc here" in lines["doctor"] and "rm -rf .venv && make" in lines["doctor"]
    assert lines["disk"]


@pytest.mark.parametrize(
    "package, version, name, remedy",
    [
        ("numpy", "2.0.1", "numpy < 2", "install numpy==1.26.4"),
        ("protobuf", "5.29.0", "protobuf < 5", "install protobuf==4.25.9"),
        ("setuptools", "81.0.0", "setuptools < 81", "install setuptools==80.10.2"),
        ("setuptools", None, "setuptools < 81", "install setuptools==80.10.2"),
        ("tensorflow-cpu", "2.15.1", "TensorFlow, once", "uninstall -y tensorflow-cpu && "),
    ],
)
def test_a_wrong_version_fails(monkeypatch, quick, package, version, name, remedy):
    installed = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda asked: version if asked == package else installed(asked))
    check = by_name()[name]
    assert check.status == "fail" and remedy in check.remedy
    assert [other.name for other in doctor.checks() if other.status == "fail"] == [name]


def show_a_gpu(monkeypatch, folder):
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: a card'\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_what_training_can_do_without_only_warns(monkeypatch, capsys, quick, tmp_path):
    show_a_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor.machine.psutil, "virtual_memory", lambda: MEMORY(available=3 * 2**30))
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: {0})
    assert doctor.main() == 0
    lines = lines_of(capsys)
    assert ".[gpu]" in lines["GPUs"]
    assert all(lines[name].startswith("warn") for name in ("GPUs", "memory", "cores"))
    monkeypatch.setenv("PATH", "/nonexistent")  # no nvidia-smi: CUDA's libraries would be of no use
    check = by_name()["GPUs"]
    assert check.status == "ok" and "training runs on the CPU" in check.detail


def test_memory_is_the_containers_where_it_has_a_limit(monkeypatch, tmp_path, quick):
    (tmp_path / "limit").write_text(f"{6 * 2**30}\n")
    (tmp_path / "used").write_text(f"{4 * 2**30}\n")
    monkeypatch.setattr(doctor.machine, "_LIMITS", [(tmp_path / "limit", tmp_path / "used")])
    monkeypatch.setattr(doctor.machine.psutil, "virtual_memory", lambda: MEMORY(total=64 * 2**30, available=50 * 2**30))
    assert doctor.machine.total_memory() == 6 * 2**30
    check = by_name()["memory"]
    assert (check.status, check.detail) == ("warn", "2.0 GiB available")
    (tmp_path / "limit").write_text("max\n")
    assert doctor.machine.total_memory() == 64 * 2**30 and by_name()["memory"].status == "ok"


def test_remedies_of_a_wheel_need_no_checkout(monkeypatch, quick, tmp_path):
    assert f"cd {doctor._CHECKOUT} && rm -rf .venv && make PYTHON=" in doctor._build_anew(python="/some/python3.10")
    monkeypatch.setattr(doctor, "_CHECKOUT", None)
    show_a_gpu(monkeypatch, tmp_path)
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.12.1")
    checks = by_name()
    assert checks["Python"].remedy.startswith("/path/to/python3.10 -m venv NEW && NEW/bin/pip install impala-")
    assert checks["GPUs"].remedy.endswith("-m pip install 'impala[gpu]'")
    assert not any("make" in check.remedy or "constraints" in check.remedy for check in checks.values())


def test_probes_look_at_the_copy_that_asks(monkeypatch, tmp_path):
    (tmp_path / "impala").mkdir()
    (tmp_path / "impala/__init__.py").write_text("raise ImportError('the other copy')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(doctor._CHECKOUT))
    assert doctor.run_probe("import impala; print(impala.__file__)") == (f"{doctor._CHECKOUT}/impala/__init__.py\n", "")


def test_gpus_are_counted(monkeypatch):
    probe = doctor.Probe("tensorflow==2.15.1", "print('GPUs: 2'); print('2.15.1')")
    monkeypatch.setattr(doctor, "_PROBES", {"tensorflow": probe})
    check = by_name()["GPUs"]
    assert (check.status, check.detail) == ("ok", "TensorFlow sees 2")
