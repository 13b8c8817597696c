"""The number of a launch is higher than that of every earlier one, whatever became of the file that counts them."""

import json
import logging
import re

import pytest

from impala import config as config_lib
from impala.launching import launches, runs
from tests.faults.disks import full_disk, small_disk


class Run:
    """Launches of a run: each comes to its learner, which opens a file of events."""

    def __init__(self, folder):
        self.folder, self.path, self.numbers = folder, folder / "launches.json", []
        (folder / "tensorboard").mkdir()

    def launch(self):
        self.numbers.append(launches.add(self.path, [self.folder]))
        (self.folder / "tensorboard" / f"events.out.tfevents.{len(self.numbers)}").touch()


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path)
    for _ in range(5):
        run.launch()
    return run


def test_launches_are_counted(run):
    assert run.numbers == [1, 2, 3, 4, 5]
    assert [launch["incarnation"] for launch in json.loads(run.path.read_text())] == run.numbers


def test_launches_of_the_first_versions_are_counted_by_their_entries(run):
    old = [{"time": "2026-01-01", "command": "x", "commit": "y"}] * 7
    run.path.write_text(json.dumps(old))
    run.launch()
    assert run.numbers[-1] == 8 and len(json.loads(run.path.read_text())) == 8


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "not text": lambda data: data.replace(b"commit", b"co\xffmit", 1),
    "null": lambda data: b"null",
    "a list of numbers": lambda data: b"[1, 2]",
    "zeros": lambda data: bytes(len(data)),
    "of endless depth": lambda data: b"[" * 100_000,
    "a number too high": lambda data: re.sub(rb'"incarnation": \d+', b'"incarnation": 9999999', data),
    "a number that is text": lambda data: re.sub(rb'"incarnation": \d+', b'"incarnation": "a"', data),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_count_goes_on_above_every_earlier_one(run, caplog, damage):
    for _ in range(3):  # and whenever it is damaged again
        damaged = DAMAGES[damage](run.path.read_bytes())
        run.path.write_bytes(damaged)
        run.launch()
        assert (run.folder / "launches.json.damaged").read_bytes() == damaged
        for _ in range(2):
            run.launch()
    assert run.numbers == sorted(set(run.numbers)) and run.numbers[-1] < 2**20
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.records) == 3


def test_damages_of_several_kinds_in_turn_stay_above(run):
    for damage in ("truncated", "not text", "empty", "truncated", "zeros", "null"):
        run.path.write_bytes(DAMAGES[damage](run.path.read_bytes()))
        run.launch()
        run.launch()
    assert run.numbers == sorted(set(run.numbers))


def test_a_digit_that_was_lowered_after_a_damage_stays_above(run):
    run.path.write_bytes(b"")
    run.launch()
    entries = json.loads(run.path.read_text())
    entries[-1]["incarnation"] //= 2
    run.path.write_text(json.dumps(entries))
    run.launch()
    assert run.numbers == sorted(set(run.numbers))


def test_a_file_that_is_gone_after_a_damage_stays_above(run):
    run.path.write_bytes(b"")
    run.launch()
    run.path.unlink()
    run.launch()
    assert run.numbers == sorted(set(run.numbers))


def test_a_full_disk_refuses_a_launch_in_a_line():
    config = config_lib.build({}, {"environment.name": "catch"})
    with small_disk(64) as disk:
        (disk / "run").mkdir()
        (disk / "run" / "lock").write_text("process")
        with full_disk(disk), pytest.raises(config_lib.ConfigError, match="No space left on device; expected .* room on its disk"):
            runs.RunFolder(disk / "run", config)
        folder = runs.RunFolder(disk / "run", config)
        with full_disk(disk), pytest.raises(config_lib.ConfigError, match="room on its disk"):
            folder.next_incarnation()
        assert folder.next_incarnation() == 1
        folder.close()


def test_a_disk_that_was_full_for_a_while_takes_no_incarnation_back(tmp_path, monkeypatch):

    folder = runs.RunFolder(tmp_path / "run", config_lib.load("configs/catch.yaml"))
    assert [folder.next_incarnation(), folder.next_incarnation("actor/0")] == [1, 2]
    add = launches.add

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launches, "add", full)
    assert [folder.next_incarnation("actor/0"), folder.next_incarnation("actor/1")] == [3, 4]
    monkeypatch.setattr(launches, "add", add)
    assert folder.next_incarnation("actor/0") == 5, "the file says 3"
    assert folder.next_incarnation() == 6 and json.loads((tmp_path / "run/launches.json").read_text())[-1]["incarnation"] == 6
    monkeypatch.setattr(launches, "add", full)
    assert [folder.next_incarnation("actor/0"), folder.next_incarnation("actor/1")] == [7, 8]
    monkeypatch.setattr(launches, "add", add)
    folder.close()
    folder = runs.RunFolder(tmp_path / "run", config_lib.load("configs/catch.yaml"))
    assert folder.next_incarnation() > 8, "there was room again when the run ended"
    folder.close()
