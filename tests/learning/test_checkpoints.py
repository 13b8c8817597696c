"""Checkpoints: bit for bit, whole or not at all, and what becomes of damaged ones."""

import errno
import functools
import json
import os
import random
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from impala import cli, networks
from impala.learning import checkpoints, optimizers, soundness
from impala.types import ArraySpec, Discrete, EnvironmentSpec
from tests import warm
from tests.programs.running import ROOT

SPEC = EnvironmentSpec("x", ArraySpec((6,), np.float32), actions=Discrete(3))


class Trained:
    """A network with its optimizer; `train` moves weights and slots."""

    def __init__(self, seed=0, hidden_sizes=(8, 8), optimizer="rmsprop"):
        self.network = networks.make(SPEC, torso="mlp", hidden_sizes=hidden_sizes, seed=seed)
        self.optimizer = optimizers.make(optimizer, self.network.trainable_variables, epsilon=0.1, rmsprop_momentum=0.9)
        self.optimizer.learning_rate = 1e-2

    def train(self, num_steps=1, seed=0):
        random = np.random.default_rng(seed)
        for _ in range(num_steps):
            self.optimizer.apply_gradients(
                [
                    (tf.constant(random.normal(size=v.shape).astype(np.float32)), v)
                    for v in self.network.trainable_variables
                ]
            )
        return self

    def state(self):
        """Bytes of weights, slots and counters."""
        return [v.numpy().tobytes() for v in (*self.network.trainable_variables, *self.optimizer.variables())]

    def checkpoints(self, folder, **kwargs):
        return checkpoints.Checkpoints(folder, network=self.network, optimizer=self.optimizer, **kwargs)


def saved(folder, updates=(10, 20, 30), **kwargs):
    """Saves after each number of updates; returns (Trained, its state at each of them)."""
    trained, states = Trained(), {}
    writer = trained.checkpoints(folder, **kwargs)
    for update in updates:
        trained.train(seed=update)
        states[update] = trained.state()
        writer.save(update, dict(frames=100 * update))
    return trained, states


@functools.cache
def _saved(updates):
    """Returns a folder where `saved` was called, and the states."""
    folder = tempfile.TemporaryDirectory()
    return folder, saved(Path(folder.name), updates)[1]


def copied(folder, updates=(10, 20, 30)):
    """Leaves in `folder` what `saved` does, without saving it again; returns the states."""
    made, states = _saved(updates)
    shutil.copytree(made.name, folder, dirs_exist_ok=True)
    return states


def restored(folder, **kwargs):
    """Restores into a fresh network; returns (state.json, weights and slots, what was reported)."""
    fresh, reports = Trained(seed=9), []
    state = fresh.checkpoints(folder).restore(reports.append, **kwargs)
    return state, fresh.state(), reports


# --- sound ones ---


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_weights_slots_and_state_come_back_bit_for_bit(tmp_path, optimizer):
    trained, fresh = Trained(optimizer=optimizer).train(3), Trained(seed=5, optimizer=optimizer)
    path = trained.checkpoints(tmp_path).save(1234, dict(frames=5678, note="ä", nested={"x": [1, 2.5]}))
    assert path == tmp_path / "0000001234"
    assert fresh.state() != trained.state()
    state = fresh.checkpoints(tmp_path).restore()
    assert fresh.state() == trained.state()
    assert (state["updates"], state["frames"], state["note"], state["nested"]) == (1234, 5678, "ä", {"x": [1, 2.5]})


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_training_goes_on_as_if_it_had_never_stopped(tmp_path, optimizer):
    trained = Trained(optimizer=optimizer).train(3)
    trained.checkpoints(tmp_path).save(3, {})
    fresh = Trained(seed=5, optimizer=optimizer)
    fresh.checkpoints(tmp_path).restore()
    assert fresh.train(4, seed=1).state() == trained.train(4, seed=1).state()


def test_the_newest_is_restored(tmp_path):
    states = copied(tmp_path)
    state, tensors, reports = restored(tmp_path)
    assert state["updates"] == 30 and tensors == states[30] and reports == []


def test_the_newest_has_most_updates_whatever_was_written_last(tmp_path):
    copied(tmp_path, updates=(9, 100, 20))
    assert restored(tmp_path)[0]["updates"] == 100


def test_an_empty_folder_is_a_new_run(tmp_path):
    assert restored(tmp_path / "not" / "there")[0] is None
    assert checkpoints.read_state(tmp_path) is None


def test_a_second_save_of_one_update_replaces_the_first(tmp_path):
    trained, _ = saved(tmp_path, updates=(10,))
    trained.train()
    trained.checkpoints(tmp_path).save(10, dict(frames=7))
    state, tensors, _ = restored(tmp_path)
    assert state["frames"] == 7 and tensors == trained.state()


@pytest.mark.parametrize("num_kept", [1, 2, 3, 4, 5, 9])
def test_only_the_newest_stay(tmp_path, num_kept):
    saved(tmp_path, updates=(1, 2, 3, 11, 12), num_kept=num_kept)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{n:010d}" for n in (1, 2, 3, 11, 12)][-num_kept:]


def test_what_a_kill_left_behind_is_passed_over_and_swept(tmp_path):
    trained, states = saved(tmp_path, updates=(10, 20))
    half = tmp_path / "0000000030.tmp"
    half.mkdir()
    (half / "tensors.index").write_bytes(b"half")
    state, tensors, reports = restored(tmp_path)
    assert state["updates"] == 20 and tensors == states[20] and reports == []
    trained.checkpoints(tmp_path).save(40, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000010", "0000000020", "0000000040"]


def test_a_replacement_that_a_kill_cut_short_loses_nothing(tmp_path):
    states = copied(tmp_path, updates=(10,))
    (tmp_path / "0000000010").rename(tmp_path / "0000000010.replaced")  # moved aside, and then the kill
    assert restored(tmp_path)[1] == states[10]
    assert [path.name for path in tmp_path.iterdir()] == ["0000000010"]


def test_the_state_is_that_of_a_whole_checkpoint(tmp_path):
    copied(tmp_path, updates=(10,))
    for name, frames in (("0000000020.tmp", 2), ("0000000030.damaged", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text(f'{{"frames": {frames}}}')
    assert checkpoints.read_state(tmp_path)["frames"] == 1000


def test_the_state_is_read_without_the_tensors(tmp_path):
    copied(tmp_path)
    (tmp_path / "0000000030" / "state.json").write_text("{")
    assert checkpoints.read_state(tmp_path)["frames"] == 2000


# --- damaged ones ---


def _truncate(path, size=None):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 if size is None else size])


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _edit(path, is_old=False, **changes):
    """Changes the state as a damaged disk or a careless hand would; the first versions wrote no digest."""
    state = json.loads((path / "state.json").read_text())
    if is_old:
        del state["state_sha256"]
    (path / "state.json").write_text(json.dumps(state | changes))


DAMAGES = {
    "data truncated": lambda path: _truncate(path / "tensors.data-00000-of-00001"),
    "data empty": lambda path: _truncate(path / "tensors.data-00000-of-00001", 0),
    "data gone": lambda path: (path / "tensors.data-00000-of-00001").unlink(),
    "a bit of the data flipped": lambda path: _flip(path / "tensors.data-00000-of-00001"),
    "index truncated": lambda path: _truncate(path / "tensors.index"),
    "index empty": lambda path: _truncate(path / "tensors.index", 0),
    "index gone": lambda path: (path / "tensors.index").unlink(),
    "a bit of the index flipped": lambda path: _flip(path / "tensors.index"),
    "tensors of another one": lambda path: [
        shutil.copy(p, path) for p in (path.parent / "0000000010").glob("tensors*")
    ],
    "state gone": lambda path: (path / "state.json").unlink(),
    "state truncated": lambda path: _truncate(path / "state.json"),
    "state empty": lambda path: _truncate(path / "state.json", 0),
    "state not text": lambda path: (path / "state.json").write_bytes(b"\xff\x00\xfe"),
    "state is null": lambda path: (path / "state.json").write_text("null"),
    "state is a list": lambda path: (path / "state.json").write_text("[]"),
    "state without digests": lambda path: (path / "state.json").write_text('{"updates": 30}'),
    "digests are a number": lambda path: (path / "state.json").write_text('{"updates": 30, "sha256": 3}'),
    "frames changed": lambda path: _edit(path, frames=2999),
    "something else of the state changed": lambda path: _edit(path, network=[[1]]),
    "the digest changed": lambda path: _edit(path, state_sha256="0" * 64),
    "the digest is no text": lambda path: _edit(path, state_sha256=None),
    "frames below 0": lambda path: _edit(path, is_old=True, frames=-5),
    "frames are text": lambda path: _edit(path, is_old=True, frames="abc"),
    "frames are true": lambda path: _edit(path, is_old=True, frames=True),
    "frames are null": lambda path: _edit(path, is_old=True, frames=None),
    "frames are NaN": lambda path: _edit(path, is_old=True, frames=float("nan")),
    "frames are 10^400": lambda path: _edit(path, is_old=True, frames=10**400),
    "episodes below 0": lambda path: _edit(path, is_old=True, episodes=-1),
    "wall_seconds are infinite": lambda path: _edit(path, is_old=True, wall_seconds=float("inf")),
    "1e999 wall_seconds": lambda path: (path / "state.json").write_text(
        json.dumps(json.loads((path / "state.json").read_text()) | {"state_sha256": 0}).replace('"state_sha256": 0', '"wall_seconds": 1e999')
    ),
    "a number that is none, in a list": lambda path: _edit(path, is_old=True, scores=[1.0, float("nan")]),
    "updates of another one": lambda path: _edit(path, is_old=True, updates=20),
    "updates missing": lambda path: (path / "state.json").write_text(
        json.dumps({"sha256": json.loads((path / "state.json").read_text())["sha256"]})
    ),
    "no tensors named": lambda path: _edit(path, is_old=True, sha256={}),
    "a state of endless depth": lambda path: (path / "state.json").write_text("[" * 100_000),
    "everything gone": lambda path: [file.unlink() for file in path.iterdir()],
    "a file in its place": lambda path: (shutil.rmtree(path), path.write_bytes(b"")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_falls_back_to_the_one_before(tmp_path, damage):
    states = copied(tmp_path)
    DAMAGES[damage](tmp_path / "0000000030")
    state, tensors, reports = restored(tmp_path)
    assert state["updates"] == 20 and state["frames"] == 2000
    assert tensors == states[20]
    assert len(reports) == 1 and "0000000030" in reports[0] and "damaged" in reports[0] and "\n" not in reports[0]
    assert (tmp_path / "0000000030.damaged").exists() and not (tmp_path / "0000000030").exists()


def test_two_damaged_ones_fall_back_twice(tmp_path):
    states = copied(tmp_path)
    _flip(tmp_path / "0000000030" / "tensors.data-00000-of-00001")
    _truncate(tmp_path / "0000000020" / "state.json")
    state, tensors, reports = restored(tmp_path)
    assert state["updates"] == 10 and tensors == states[10] and len(reports) == 2


@pytest.mark.parametrize("read_only", [False, True])
def test_it_remembers_what_it_took_and_what_it_passed_over(tmp_path, read_only):
    copied(tmp_path)
    _flip(tmp_path / "0000000030" / "tensors.data-00000-of-00001")
    _edit(tmp_path / "0000000020", frames=7)
    kept = Trained().checkpoints(tmp_path)
    assert kept.restored is None
    kept.restore(lambda line: None, read_only=read_only)
    assert kept.restored == checkpoints.Restored("0000000010", 10, 1000, [
        ("0000000030", "tensors.data-00000-of-00001 does not match its SHA-256"),
        ("0000000020", "state.json does not match its SHA-256"),
    ])  # fmt: skip
    kept.restore(lambda line: None, read_only=read_only)
    assert len(kept.restored.passed_over) == 2 * read_only, "those that were renamed are not met again"


@pytest.mark.parametrize("num_kept", [1, 3])
def test_a_reader_takes_the_newer_one_if_the_writer_prunes_what_it_is_about_to_read(tmp_path, monkeypatch, num_kept):
    trained, states = saved(tmp_path, num_kept=num_kept)
    survey = soundness.survey

    def survey_and_save_meanwhile(directory):
        found = survey(directory)
        if found[0].name == "0000000030":
            for update in range(31, 31 + num_kept):
                trained.checkpoints(tmp_path, num_kept=num_kept).save(update, dict(frames=100 * update))
        return found

    monkeypatch.setattr(soundness, "survey", survey_and_save_meanwhile)
    state, tensors, reports = restored(tmp_path, read_only=True)
    assert state["updates"] == 30 + num_kept and tensors == states[30] and not reports
    shutil.rmtree(tmp_path / f"{30 + num_kept:010d}")
    monkeypatch.setattr(soundness, "survey", lambda directory: (directory / "0000000099", dict(state), []))
    with pytest.raises(tf.errors.OpError):
        restored(tmp_path, read_only=True)


def test_a_new_run_remembers_nothing(tmp_path):
    kept = Trained().checkpoints(tmp_path)
    assert kept.restore() is None and kept.restored is None


def test_a_state_of_the_first_versions_has_no_digest_and_is_sound(tmp_path):
    states = copied(tmp_path)
    _edit(tmp_path / "0000000030", is_old=True)
    state, tensors, reports = restored(tmp_path)
    assert state["frames"] == 3000 and tensors == states[30] and reports == []


def test_the_state_read_without_tensors_is_a_sound_one(tmp_path):
    copied(tmp_path)
    _edit(tmp_path / "0000000030", frames=3001)
    assert checkpoints.read_state(tmp_path)["frames"] == 2000


def test_a_number_that_is_none_is_refused_before_anything_is_lost(tmp_path):
    trained, _ = saved(tmp_path, updates=(10,))
    before = snapshot(tmp_path)
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            trained.checkpoints(tmp_path).save(20, dict(scores=[1.0, number]))
    assert snapshot(tmp_path) == before


def test_what_was_set_aside_before_is_replaced_whatever_it_is(tmp_path):
    trained, states = saved(tmp_path, updates=(10, 20))
    for damage in ("a file in its place", "state empty", "a file in its place"):
        trained.checkpoints(tmp_path).save(30, {})
        DAMAGES[damage](tmp_path / "0000000030")
        assert restored(tmp_path)[1] == states[20]


def test_when_none_is_sound_training_does_not_start_afresh_in_silence(tmp_path):
    copied(tmp_path, updates=(10, 20))
    for update in (10, 20):
        _flip(tmp_path / f"{update:010d}" / "tensors.index")
    for _ in range(2):  # nor the next time, when the damaged ones have other names
        with pytest.raises(checkpoints.NoSoundCheckpoint, match="0000000010.*0000000020.*--restart"):
            restored(tmp_path)


def test_reading_only_renames_nothing(tmp_path):
    states = copied(tmp_path)
    _truncate(tmp_path / "0000000030" / "state.json")
    before = sorted(tmp_path.rglob("*"))
    for _ in range(2):
        state, tensors, _ = restored(tmp_path, read_only=True)
        assert state["updates"] == 20 and tensors == states[20]
    assert sorted(tmp_path.rglob("*")) == before


def test_one_number_of_updates_may_be_damaged_twice(tmp_path):
    """A resumed run reaches the same update again."""
    trained, states = saved(tmp_path, updates=(10, 20))
    for _ in range(2):
        trained.checkpoints(tmp_path).save(30, {})
        _flip(tmp_path / "0000000030" / "tensors.index")
        state, tensors, _ = restored(tmp_path)
        assert state["updates"] == 20 and tensors == states[20]


# --- writing fails ---


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_full_disk_leaves_the_older_ones_untouched(tmp_path):
    """The kernel refuses to let any file grow past 600 bytes: TensorFlow's own writer fails."""
    trained, states = saved(tmp_path, updates=(10, 20))
    before = snapshot(tmp_path)
    trained.train()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        with pytest.raises((OSError, tf.errors.OpError)):
            trained.checkpoints(tmp_path).save(30, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert restored(tmp_path)[1] == states[20]
    trained.checkpoints(tmp_path).save(30, {})  # there is room again
    assert restored(tmp_path)[1] == trained.state()


SAVES_FOR_EVER = """
import itertools, sys
from pathlib import Path
from tests.learning.test_checkpoints import Trained
folder = Path(sys.argv[1])
trained = Trained()
writer = trained.checkpoints(folder)
state = writer.restore(lambda line: None)
for update in itertools.count(state["updates"] + 1 if state else 1):
    trained.train(seed=update)
    writer.save(update, {})
    print(update, flush=True)
"""


@pytest.mark.parametrize("num_kills", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_at_any_instant_it_loses_no_checkpoint_that_was_written(tmp_path, num_kills):
    chance, said = random.Random(0), 0
    for _ in range(num_kills):
        pipe = subprocess.PIPE
        with warm.Popen(["-c", SAVES_FOR_EVER, str(tmp_path)], cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
            first = process.stdout.readline()  # it restored what the one before left, and saves
            time.sleep(chance.uniform(0.0, 0.2))
            process.kill()
            said = int([first, *process.stdout][-1])
        state, _, reports = restored(tmp_path)
        assert state["updates"] >= said > 0 and reports == []


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir", "write_text"])
def test_an_error_at_any_stage_leaves_the_older_ones_untouched(tmp_path, monkeypatch, call):
    trained, states = saved(tmp_path, updates=(10, 20))
    before = snapshot(tmp_path)
    trained.train()
    writer = trained.checkpoints(tmp_path, num_kept=1)

    def fail(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else checkpoints.Path, call, fail)
        with pytest.raises(OSError, match="No space left"):
            writer.save(30, {})
    assert snapshot(tmp_path) == before
    assert restored(tmp_path)[1] == states[20]


def test_an_older_one_is_pruned_only_after_the_new_one_is_whole(tmp_path, monkeypatch):
    trained, _ = saved(tmp_path, updates=(10,))
    seen = []

    def rename(path, target):
        seen.append(sorted(p.name for p in tmp_path.iterdir()))
        os.rename(path, target)

    monkeypatch.setattr(checkpoints.Path, "rename", rename)
    trained.checkpoints(tmp_path, num_kept=1).save(20, {})
    assert seen == [["0000000010", "0000000020.tmp"]]
    assert [path.name for path in tmp_path.iterdir()] == ["0000000020"]


def test_a_state_that_json_cannot_hold_is_refused_before_anything_is_lost(tmp_path):
    trained, _ = saved(tmp_path, updates=(10,))
    before = snapshot(tmp_path)
    with pytest.raises(TypeError):
        trained.checkpoints(tmp_path).save(20, dict(frames=np.int64(3)))
    assert snapshot(tmp_path) == before


# --- other networks ---


@pytest.mark.parametrize("hidden_sizes", [(8, 9), (8, 8, 8), (8,)], ids=["wider", "deeper", "shallower"])
def test_a_network_of_another_shape_is_refused(tmp_path, hidden_sizes):
    copied(tmp_path, updates=(10,))
    before = snapshot(tmp_path)
    other = Trained(hidden_sizes=hidden_sizes)
    with pytest.raises(checkpoints.OtherNetwork, match=r"another network: parameter \d: saved"):
        other.checkpoints(tmp_path).restore(lambda line: None)
    assert snapshot(tmp_path) == before  # sound for the network that wrote it, so it stays as it is


def test_another_optimizer_is_refused(tmp_path):
    copied(tmp_path, updates=(10,))
    slots = r"network/\S+/bias/\.OPTIMIZER_SLOT/optimizer/"
    with pytest.raises(checkpoints.OtherNetwork, match=f"holds other objects than this program's: it lacks {slots}m, {slots}v, ") as caught:
        Trained(optimizer="adam").checkpoints(tmp_path).restore()
    assert str(caught.value).count(", ") == 4, "the first five"
    assert [path.name for path in tmp_path.iterdir()] == ["0000000010"], "it is sound, and stays as it is"


def test_a_format_of_a_later_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 2)
    saved(tmp_path, updates=(10,))
    monkeypatch.undo()
    with pytest.raises(checkpoints.OtherNetwork, match="is of format 2, and this version reads format 1: go on with"):
        Trained().checkpoints(tmp_path).restore()
    assert [path.name for path in tmp_path.iterdir()] == ["0000000010"], "it is sound, and stays as it is"


def test_what_fails_while_a_sound_one_is_read_is_no_damage(tmp_path, monkeypatch):
    """The device is full, say: the checkpoint is not to blame and keeps its name."""
    import tensorflow as tf

    copied(tmp_path, updates=(10,))
    trained = Trained()

    def read(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    kept = trained.checkpoints(tmp_path)
    monkeypatch.setattr(kept._checkpoint, "read", read)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        kept.restore()
    assert [path.name for path in tmp_path.iterdir()] == ["0000000010"]


def test_the_newest_is_never_pruned_though_older_ones_have_larger_numbers(tmp_path):
    copied(tmp_path, updates=(100, 200, 300))
    written = Trained().checkpoints(tmp_path).save(50, {})
    assert written.is_dir()


def test_a_checkpoint_is_its_tensors_and_one_readable_file(tmp_path):
    copied(tmp_path, updates=(10,))
    names = sorted(path.name for path in (tmp_path / "0000000010").iterdir())
    assert names == ["state.json", "tensors.data-00000-of-00001", "tensors.index"]
    state = json.loads((tmp_path / "0000000010" / "state.json").read_text())
    assert sorted(state["sha256"]) == names[1:] and state["updates"] == 10


def test_a_target_network_comes_back_beside_the_one_that_learns(tmp_path):
    """The target is never renewed here: it stays the network that training began with."""

    def make(seed):
        trained = Trained()
        trained.network = networks.WithTarget(*(networks.make(SPEC, torso="mlp", hidden_sizes=(8,), seed=seed) for _ in "ab"))
        trained.optimizer = optimizers.make("rmsprop", trained.network.trainable_variables, epsilon=0.1)
        trained.optimizer.learning_rate = 1e-2
        return trained

    trained, fresh = make(1).train(5), make(2)
    trained.checkpoints(tmp_path).save(5, {})
    fresh.checkpoints(tmp_path).restore()
    online, target = ([v.numpy() for v in part.trainable_variables] for part in (fresh.network._online, fresh.network._target))
    start = [v.numpy() for v in make(1).network.trainable_variables]
    for learned, kept, first, theirs in zip(online, target, start, trained.network.trainable_variables, strict=True):
        np.testing.assert_array_equal(learned, theirs)
        np.testing.assert_array_equal(kept, first)
    assert max(np.abs(a - b).max() for a, b in zip(online, target)) > 1e-3


# --- back to an older one


def test_a_run_that_is_rolled_back_goes_on_from_one_that_is_old_enough(tmp_path):
    _, states = saved(tmp_path, updates=(10, 20, 25, 30), num_kept=4)
    newest, older = soundness.roll_back(tmp_path, 8)
    assert (newest.name, older.name) == ("0000000030", "0000000020")
    state, ours, _ = restored(tmp_path)
    assert state["updates"] == 20 and ours == states[20]
    assert sorted(path.name for path in tmp_path.glob("*.rolled_back")) == ["0000000025.rolled_back", "0000000030.rolled_back"]
    trained = Trained(seed=9)
    writer = trained.checkpoints(tmp_path)
    writer.restore()
    writer.save(30, {})  # the same number again, and again back
    assert soundness.roll_back(tmp_path, 1)[1].name == "0000000020"


@pytest.mark.parametrize("updates, is_kept", [(10, True), (20, False)])
def test_an_evaluators_best_of_a_future_that_is_undone_is_set_aside(tmp_path, updates, is_kept):
    copied(tmp_path / "checkpoints", updates=(10, 20))
    copied(tmp_path / "best", updates=(updates,))
    soundness.roll_back(tmp_path / "checkpoints", 1)
    assert ((tmp_path / "best").exists(), (tmp_path / "best.rolled_back").exists()) == (is_kept, not is_kept)


def test_all_members_of_a_population_are_rolled_back_or_none(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("")
    for name, updates in (("member_0", (10, 20)), ("member_1", (20,)), ("member_0_backup", (20,))):
        copied(tmp_path / name / "checkpoints", updates=updates)
    assert cli.main(["rollback", str(tmp_path), "--updates", "5"]) == 2
    assert "member_1: has one checkpoint" in capsys.readouterr().err
    assert len(soundness.paths(tmp_path / "member_0/checkpoints")) == 2
    copied(tmp_path / "member_1/checkpoints", updates=(10, 30))
    assert cli.main(["rollback", str(tmp_path), "--updates", "5"]) == 0
    newest = [soundness.paths(tmp_path / name / "checkpoints")[-1].name for name in ("member_0", "member_1", "member_0_backup")]
    assert newest == ["0000000010", "0000000020", "0000000020"], "a folder of the user's own stays as it is"


def test_a_damaged_one_is_no_place_to_go_back_to(tmp_path):
    copied(tmp_path)
    (tmp_path / "0000000020" / "state.json").write_text("{")
    assert soundness.roll_back(tmp_path, 5)[1].name == "0000000010"
    assert [path.name for path in soundness.paths(tmp_path)] == ["0000000010"]


@pytest.mark.parametrize("updates, num_back, words", [
    ((), 1, "holds no sound checkpoint"), ((10,), 1, "has one checkpoint"),
    ((10, 20, 30), 21, "its checkpoints are 10, 20 updates before the newest"),
])  # fmt: skip
def test_where_there_is_none_so_old_nothing_is_touched(tmp_path, updates, num_back, words):
    copied(tmp_path, updates=updates)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(LookupError, match=words):
        soundness.roll_back(tmp_path, num_back)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
