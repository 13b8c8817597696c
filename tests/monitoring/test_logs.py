"""CSV files and TensorBoard's events: bounded, resumed, on a full disk, and damaged."""

import logging
import os

import numpy as np
import pytest

from impala.monitoring import evaluations, logs
from tests.faults.disks import full_disk, small_disk

COLUMNS = ("updates", "text")
BIG = "x" * 5_000  # more than a page: of a full disk a row of this takes the rest of one


def test_files_stay_under_their_bound(tmp_path):
    log = logs.CsvLog(tmp_path / "x.csv", ("updates", "text"), last={}, max_bytes=10_000)
    for i in range(5000):
        log.write(dict(updates=i, text="x" * 20))
    assert (tmp_path / "x.csv").stat().st_size <= 10_100
    kept = [int(row["updates"]) for row in logs.read_csv(tmp_path / "x.csv")]
    assert len(kept) > 100 and kept == sorted(kept) and kept[-1] > 4900 and kept[0] == 0


def rows_of(path):
    return [(row["updates"], len(row["text"])) for row in logs.read_csv(path)]


def lines_are_whole(path):
    data = path.read_bytes()
    return data.endswith(b"\r\n") and all(line.count(b",") == 1 for line in data.split(b"\r\n")[:-1])


# --- a full disk ---


def test_a_full_disk_costs_whole_rows_and_not_the_run(caplog):
    with small_disk(64) as disk:
        log = logs.CsvLog(disk / "x.csv", COLUMNS, last={})
        log.write(dict(updates=1, text="first"))
        with full_disk(disk):
            log.write(dict(updates=2, text=BIG))
            log.write(dict(updates=3, text=BIG), dict(updates=3, text="small"))
            assert log.num_failed == 3 and lines_are_whole(disk / "x.csv")
            log.write(dict(updates=4, text="fits into the page"))
        log.write(dict(updates=5, text=BIG))
        log.close()
        assert rows_of(disk / "x.csv") == [("1", 5), ("4", 18), ("5", 5_000)] and log.num_failed == 3
    assert len(caplog.records) == 1 and "rows are lost from now on" in caplog.text


def test_a_log_that_begins_on_a_full_disk_leaves_what_is_there_and_goes_on_when_there_is_room():
    with small_disk(64) as disk:
        (disk / "old.csv").write_bytes(logs.encoded([dict(updates=n, text=BIG) for n in (1, 2, 9)], COLUMNS, with_header=True))
        before = (disk / "old.csv").read_bytes()
        with full_disk(disk):
            old = logs.CsvLog(disk / "old.csv", COLUMNS, last=dict(updates=2))
            new = logs.CsvLog(disk / "new.csv", COLUMNS, last={})
            assert old.num_failed == new.num_failed == 1
            for log in (old, new):
                log.write(dict(updates=3, text="lost"))
            assert (disk / "old.csv").read_bytes() == before and not (disk / "old.tmp").exists()
        for log in (old, new):
            log.write(dict(updates=4, text="there is room"))
            log.close()
            assert log.num_failed == 2
        assert [updates for updates, _ in rows_of(disk / "old.csv")] == ["1", "2", "4"]
        assert rows_of(disk / "new.csv") == [("4", 13)]


def test_a_disk_that_is_full_while_a_file_is_thinned_costs_rows_only():
    with small_disk(64) as disk:
        log = logs.CsvLog(disk / "x.csv", COLUMNS, last={}, max_bytes=20_000)
        for n in range(2):
            log.write(dict(updates=n, text=BIG))
        (disk / "almost all").write_bytes(bytes(64_000 - 24_000))
        with full_disk(disk):  # of its page
            (disk / "almost all").write_bytes(bytes(64_000 - 24_000 - 5_000))
            for n in range(2, 8):
                log.write(dict(updates=n, text=BIG))
            assert log.num_failed > 0 and lines_are_whole(disk / "x.csv") and not (disk / "x.tmp").exists()
        (disk / "almost all").unlink()
        for n in range(8, 30):
            log.write(dict(updates=n, text="again"))
        assert (disk / "x.csv").stat().st_size <= 20_100 and lines_are_whole(disk / "x.csv")
        assert logs.read_csv(disk / "x.csv")[-1]["text"] == "again"


def test_rows_of_a_log_that_is_closed_or_whose_folder_is_gone_are_lost_and_counted(tmp_path):
    log = logs.CsvLog(tmp_path / "x.csv", COLUMNS, last={})
    log.close()
    log.close()
    log.write(dict(updates=1, text=""))
    gone = logs.CsvLog(tmp_path / "not" / "there.csv", COLUMNS, last=dict(updates=5))
    gone.write(dict(updates=1, text=""))
    gone.close()
    assert (log.num_failed, gone.num_failed) == (1, 2)


def test_an_evaluation_that_has_no_room_is_not_written_in_half():
    with small_disk(32) as disk:
        def append(scores):
            evaluations.append(disk, evaluations.row_of("catch", scores, updates=1, frames=2, greedy=False))

        append([1.0])
        with full_disk(disk), pytest.raises(OSError):
            append([1.0] * 2_000)
        append([2.0])
        assert [row["mean"] for row in logs.read_csv(disk / "evaluations.csv")] == ["1.0", "2.0"]


def test_a_full_disk_costs_tensorboards_events_not_the_run():
    with small_disk(64) as disk:
        board = logs.TensorBoard(disk)
        board.write({"frames": 1, "loss": 0.5}, np.array([1.0]))
        assert board.num_failed == 0
        with full_disk(disk):
            for frames in range(2, 200):
                board.write({"frames": frames, "loss": 0.5}, np.random.default_rng(0).normal(size=1000))
            assert board.num_failed >= 1
            board.close()


def test_a_disk_full_from_the_start_costs_tensorboards_events_not_the_run(caplog):
    with small_disk(64) as disk, full_disk(disk):
        board = logs.TensorBoard(disk)
        for frames in (1, 2):
            board.write({"frames": frames, "loss": 0.5}, np.array([1.0]))
        board.close()
        assert board.num_failed == 3 and len(caplog.records) == 1


# --- damaged files ---

GOOD = [dict(updates=n, text=f"row {n}") for n in range(1, 6)]
DAMAGES = {
    "a byte that is no text": (lambda data: data.replace(b"row 2", b"row \xff"), [1, 3, 4, 5]),
    "a NUL": (lambda data: data.replace(b"row 2", b"row \0"), [1, 3, 4, 5]),
    "a lost quotation mark": (lambda data: data.replace(b"row 2", b'"row 2'), [1, 3, 4, 5]),
    "a line without its middle": (lambda data: data.replace(b"row 2\r\n", b""), [1, 4, 5]),
    "a line cut short": (lambda data: data.replace(b"2,row 2", b"2"), [1, 3, 4, 5]),
    "a count that is no number": (lambda data: data.replace(b"2,row 2", b"x,row 2"), [1, 3, 4, 5]),
    "a count that is nan": (lambda data: data.replace(b"2,row 2", b"nan,row 2"), [1, 3, 4, 5]),
    "a page of zeros": (lambda data: data.replace(b"2,row 2\r\n", bytes(4096) + b"\r\n"), [1, 3, 4, 5]),
    "a header that is no text": (lambda data: data.replace(b"updates", b"upd\xfftes"), [1, 2, 3, 4, 5]),
    "a header of other letters": (lambda data: data.replace(b"updates", b"upeates"), [1, 2, 3, 4, 5]),
    "no line that can be read": (lambda data: b"\xff\xfe" * 100 + b"\n" + b"\xff", []),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_keeps_its_readable_rows_and_a_copy(tmp_path, caplog, damage):
    change, left = DAMAGES[damage]
    path = tmp_path / "x.csv"
    damaged = change(logs.encoded(GOOD, COLUMNS, with_header=True))
    path.write_bytes(damaged)
    log = logs.CsvLog(path, COLUMNS, last=dict(updates=4))
    log.write(dict(updates=6, text="new"))
    assert [int(row["updates"]) for row in logs.read_csv(path)] == [n for n in left if n <= 4] + [6]
    assert path.read_bytes().startswith(b"updates,text\r\n") and log.num_failed == 0
    assert (tmp_path / "x.csv.damaged").read_bytes() == damaged
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "x.csv.damaged" in record.message


@pytest.mark.parametrize("end", ["", "5", "5,", "5,ro"])
def test_a_line_that_a_kill_cut_short_is_no_damage(tmp_path, caplog, end):
    path = tmp_path / "x.csv"
    path.write_bytes(logs.encoded(GOOD[:4], COLUMNS, with_header=True) + end.encode())
    logs.CsvLog(path, COLUMNS, last=dict(updates=9))
    assert len(logs.read_csv(path)) == 4 and not caplog.records and os.listdir(tmp_path) == ["x.csv"]


def test_a_log_that_is_no_file_does_not_stop_a_resume(tmp_path, caplog):
    (tmp_path / "x.csv").mkdir()
    log = logs.CsvLog(tmp_path / "x.csv", COLUMNS, last=dict(updates=9))
    log.write(dict(updates=10, text=""))
    log.close()
    assert log.num_failed == 2 and "begun anew" in caplog.text


def test_columns_of_an_older_version_are_brought_up_to_date(tmp_path):
    (tmp_path / "x.csv").write_text("text,gone,updates\na,b,1\n")
    logs.CsvLog(tmp_path / "x.csv", COLUMNS, last=dict(updates=9))
    assert (tmp_path / "x.csv").read_bytes() == b"updates,text\r\n1,a\r\n"
    assert os.listdir(tmp_path) == ["x.csv"]


def test_a_column_that_is_none_is_a_mistake(tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        logs.CsvLog(tmp_path / "x.csv", COLUMNS, last={}).write(dict(nonsense=1))


def test_a_damaged_evaluation_is_left_alone(tmp_path):
    evaluations.append(tmp_path, evaluations.row_of("catch", [1.0], updates=1, frames=2, greedy=False))
    path = tmp_path / "evaluations.csv"
    path.write_bytes(path.read_bytes() + b"\xff\xfe\r\n")
    evaluations.append(tmp_path, evaluations.row_of("catch", [2.0], updates=1, frames=2, greedy=False))
    assert [row["mean"] for row in logs.read_csv(path)] == ["1.0", "2.0"]


def test_what_is_appended_is_whole_and_a_line_that_was_cut_costs_no_other_row(tmp_path):
    path = tmp_path / "x.csv"
    for number in range(3):
        logs.append(path, [dict(a=number, b="x,y")], ("a", "b"))
    path.write_bytes(path.read_bytes()[:-3])
    logs.append(path, [dict(a=3, b="z")], ("a", "b"))
    assert [row["a"] for row in logs.read_csv(path)] == ["0", "1", "3"] and path.read_bytes().startswith(b"a,b\r\n0,")
    with pytest.raises(ValueError):
        logs.append(path, [dict(c=3)], ("a", "b"))


def test_read_csv_leaves_out_a_line_cut_short(tmp_path):
    for cut in ("3", "3,", "3,4"):  # of 45, say
        (tmp_path / "x.csv").write_text("a,b\n1,2\n" + cut)
        assert logs.read_csv(tmp_path / "x.csv") == [{"a": "1", "b": "2"}]
