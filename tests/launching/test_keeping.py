"""What a replay table holds outlives its server: Reverb's own checkpointer, on real files and a real full disk."""

import numpy as np
import portpicker
import pytest

from impala.launching.keeping import Keeper
from tests.faults.disks import full_disk, small_disk

reverb = pytest.importorskip("reverb")


def make_tables():
    return [reverb.Table("replay", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1))]


def keeper(folder, settings="a"):
    return Keeper(folder, seconds=60, settings=settings)


def serve(folder, settings="a"):
    server, words = keeper(folder, settings).serve(make_tables, portpicker.pick_unused_port())
    return server, server.localhost_client(), words


def filled(folder, numbers, settings="a"):
    """Keeps `numbers` in a copy at `folder`; the server is gone after that."""
    server, client, _ = serve(folder, settings)
    for number in numbers:
        client.insert(np.int64(number), {"replay": 1.0})
    assert keeper(folder, settings).save(server) == ""
    server.stop()


def held(client):
    size = client.server_info(timeout=10)["replay"].current_size
    return sorted(int(next(client.sample("replay", 1))[0].data[0]) for _ in range(size)) if size else []


def test_a_server_begins_with_what_was_copied_last(tmp_path):
    filled(tmp_path / "kept", [1, 2, 3])
    server, client, words = serve(tmp_path / "kept")
    assert client.server_info(timeout=10)["replay"].current_size == 3 and words == []
    client.insert(np.int64(4), {"replay": 1.0})
    assert keeper(tmp_path / "kept").save(server) == ""
    assert len(list((tmp_path / "kept").glob("*/*"))) == 1, "the older copy is gone"
    server.stop()
    server, client, _ = serve(tmp_path / "kept")
    assert client.server_info(timeout=10)["replay"].current_size == 4
    server.stop()


@pytest.mark.parametrize("spoil, said", [
    (lambda copy: (copy / "items.tfrecord").write_bytes(b"nothing of Reverb's"), "cannot be read"),
    (lambda copy: (copy / "chunks.tfrecord").write_bytes((copy / "chunks.tfrecord").read_bytes()[:-9]), "cannot be read"),
    (lambda copy: (copy / "tables.tfrecord").unlink(), "it lacks a file"),
    (lambda copy: (copy / "DONE").unlink(), "it lacks a file"),
])  # fmt: skip
def test_a_damaged_copy_is_not_used_and_said(tmp_path, spoil, said):
    filled(tmp_path / "kept", [1, 2, 3])
    (copy,) = (tmp_path / "kept").glob("*/*")
    spoil(copy)
    server, client, words = serve(tmp_path / "kept")
    assert client.server_info(timeout=10)["replay"].current_size == 0
    assert len(words) == 1 and said in words[0]
    assert (tmp_path / "kept.damaged").exists() == (said == "cannot be read")
    client.insert(np.int64(7), {"replay": 1.0})
    assert keeper(tmp_path / "kept").save(server) == "", "it goes on keeping"
    server.stop()


def test_a_copy_of_other_settings_is_removed_and_said(tmp_path):
    filled(tmp_path / "kept", [1, 2, 3])
    server, client, words = serve(tmp_path / "kept", settings="b")
    assert client.server_info(timeout=10)["replay"].current_size == 0
    assert words == ["a copy of the replay table was removed: it was made with other settings"]
    server.stop()


def test_what_lies_beside_the_copies_is_left_alone(tmp_path):
    filled(tmp_path / "kept", [1])
    others = [tmp_path / "kept/notes/today.txt", tmp_path / "kept/0123456789abc/file", tmp_path / "kept/file", tmp_path / "file"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    server, _, words = serve(tmp_path / "kept", settings="b")
    assert keeper(tmp_path / "kept", settings="b").save(server) == "" and len(words) == 1
    server.stop()
    assert [path.read_text() for path in others] == 4 * ["mine"]


def test_a_full_disk_costs_a_copy_and_leaves_the_older_one():
    with small_disk(400) as disk:
        filled(disk / "kept", [1, 2, 3])
        server, client, _ = serve(disk / "kept")
        client.insert(np.random.default_rng(0).integers(0, 255, 200_000, np.uint8), {"replay": 1.0})
        with full_disk(disk):
            assert "No space left" in keeper(disk / "kept").save(server)
        (copy,) = (disk / "kept").glob("*/*")
        assert (copy / "DONE").exists()
        server.stop()
        server, client, words = serve(disk / "kept")
        assert client.server_info(timeout=10)["replay"].current_size == 3 and words == []
        server.stop()
