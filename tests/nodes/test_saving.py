"""A checkpoint that cannot be written costs that checkpoint; what the launcher is told of it."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from impala.launching import beats
from impala.nodes import saving


@pytest.fixture
def saver(tmp_path, monkeypatch):
    """Returns a saver whose checkpoints raise what is in the list, one after the other, and the node's pulse."""
    import threading

    monkeypatch.delenv(beats.ADDRESS_VARIABLE, raising=False)
    failures, pulse = [], beats.Pulse("learner/0", threading.Event())

    def save(num_updates, state):
        assert pulse.doing == "saving"
        if failures and (error := failures.pop(0)):
            raise error

    checkpoints = SimpleNamespace(save=save, directory=tmp_path / "checkpoints")
    return saving.Saver(checkpoints, {}, 1_000_000, pulse, patience=100.0), pulse, failures


def test_a_disk_that_is_full_costs_a_checkpoint_and_is_told_until_one_is_written(saver, monkeypatch):
    """TensorFlow says OutOfRangeError where a file may not grow, the system ENOSPC."""
    saver, pulse, failures = saver
    now = [100.0]
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert saver.save(5, dict(frames=500)) is None and pulse.facts["saved_updates"] == 5
    full = tf.errors.OutOfRangeError(None, None, "/run/7/tensors.data; File too large")
    failures += [full, OSError(28, "No space left on device")]
    for said in ("File too large", "No space left on device"):
        now[0] += 5.0
        assert saver.save(7, dict(frames=700)) == 5.0, "seconds until the next try"
        assert pulse.facts["save_error"] == said and pulse.doing == "starting"
    assert pulse.facts["failing_seconds"] == 5.0 and pulse.facts["saved_updates"] == 5
    assert saver.save(9, dict(frames=900)) is None
    assert {pulse.facts[name] for name in ("save_error", "failing_seconds")} == {"", 0.0}
    assert (pulse.facts["saved_updates"], pulse.facts["saved_frames"], pulse.facts["saved_at"]) == (9, 900, now[0])


def test_a_run_whose_checkpoints_fail_for_too_long_is_told_to_end(saver, monkeypatch):
    saver, pulse, failures = saver
    now = [0.0]
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for now[0], fails in ((0.0, True), (60.0, False), (70.0, True), (170.0, True)):
        failures += [OSError(28, "No space left on device")] * fails
        saver.save(5, dict(frames=500))
        assert not pulse.is_set() and "unsaved_seconds" not in saver.last_words(), "100 s since the last one written"
    now[0], limit = 170.1, "no checkpoint could be written for 100 s, unsaved_seconds"
    failures += [OSError(28, "No space left on device")]
    saver.save(5, dict(frames=500))
    assert pulse.is_set() and pulse.facts["ends_run"]
    assert saver.last_words() == f"{limit}; the last checkpoint could not be written: No space left on device"
    saver.save(6, dict(frames=600))  # as the run ends
    assert saver.last_words() == limit


def test_another_error_is_not_taken_for_a_disk_s(saver):
    saver, pulse, failures = saver
    failures += [ValueError("a checkpoint holds no NaN")]
    with pytest.raises(ValueError, match="no NaN"):
        saver.save(5, dict(frames=500))
    assert pulse.doing == "starting" and pulse.facts["saved_updates"] == 0
