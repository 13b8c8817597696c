"""`impala compare`: runs a grid on all cores, one warm worker each, and writes the results.

Finished cells are rows of results.csv, each written whole when its cell is done; the same command, started again,
continues where the last run ended, even if it was killed.
"""

import concurrent.futures
import contextlib
import csv
import fcntl
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import process
from pathlib import Path
from typing import Any

from impala import config as config_lib
from impala import provenance
from impala.config import shipped
from impala.lab import cells
from impala.lab.grid import Cell, Grid, GridConfig, cell_of
from impala.monitoring.logs import num_damaged, read_csv

COLUMNS = (
    *Cell._fields, "return", "status", "frames", "updates", "skipped_updates", "wall_seconds", *cells.TELEMETRY,
    "replay_age", "curve", "command", "commit", "versions", "machine", "date", "digest",
)  # fmt: skip
KEYS = (*GridConfig.model_fields, "total_frames")
_PACKAGES = ("impala", "tensorflow", "numpy", "gymnasium", "minatar")
_MOST_FAILURES = 2  # of a cell; then it is left out
_CELLS_PER_POOL = 32  # of each worker; then a new pool: TensorFlow keeps the graphs of finished cells


def written(name: str, value: Any) -> str:
    """Returns a value of a cell's result as results.csv has it."""
    if name == "curve":
        return " ".join(f"{x:.4g}" for x in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Results:
    """The rows of results.csv, by cell; a last line cut short by a kill is dropped and its cell is run again.

    Args:
      path: of the file; it is made if there is none.
      grid: whose cells they are. Rows of other cells stay in the file and are ignored.

    Raises:
      ConfigError: a cell of the grid was trained with other settings than the grid now gives it, a row is damaged, or
        the file is not one of this command's, or cannot be made.
    """

    def __init__(self, path: Path, grid: Grid):
        self._path, self._grid = path, grid
        self._refuse_others()
        self.rows = self._read(path)
        self.returns: dict[Cell, float] = {}
        for row in self.rows:
            cell, value = self._scored(path, row)
            if value is not None:
                self._check(cell, row)
                self.returns[cell] = value
        self._is_begun = False

    def take(self, path: Path) -> None:
        """Adds the grid's rows of another such file, but for cells that are here, or that the grid trains otherwise.

        Raises:
          ConfigError: a row there is damaged, or none can be written here.
        """
        for row in self._read(path):
            cell, value = self._scored(path, row)
            if value is not None and cell not in self.returns and row["digest"] == self._grid.digest(cell):
                self.rows.append(row)
                self.returns[cell] = value
        try:
            self._begin()
        except OSError as error:
            raise config_lib.ConfigError([f"{self._path}: {error.strerror}; expected room for it"]) from None

    def _scored(self, path: Path, row: Mapping[str, str]) -> tuple[Cell, float | None]:
        """Returns a row's cell and what it counts as; None if the grid has no such cell."""
        try:
            cell = cell_of(row)
            return cell, self._grid.score(cell, row) if self._grid.has(cell) else None
        except ValueError as error:
            raise config_lib.ConfigError([
                f"{path}: the row of {row['task']} {row['scheme']} {row['seed']} is damaged: {error}; expected its "
                "line mended, or removed: the cell is run again then"
            ]) from None  # fmt: skip

    def _begin(self) -> None:
        """Writes the rows again, under today's columns and without a last line that was cut short."""
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")  # old versions' columns
            writer.writeheader()
            writer.writerows(self.rows)
        temporary.replace(self._path)
        self._is_begun = True

    def _refuse_others(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as file:
                file.seek(0)
                header = file.readline()
        except OSError as error:
            line = f"--output {self._path.parent}: {error.strerror}; expected a folder that can be made and written"
            raise config_lib.ConfigError([line]) from None
        needed = {*COLUMNS[: COLUMNS.index("wall_seconds") + 1], *COLUMNS[COLUMNS.index("curve") :]} - {"replay_size"}
        if header and not {name.encode() for name in needed} <= set(header.strip().split(b",")):
            raise config_lib.ConfigError([
                f"{self._path}: its first line is not that of a comparison's results; expected another --output"
            ])  # fmt: skip

    def _read(self, path: Path) -> list[dict[str, str]]:
        """Returns the rows; refuses a file with lines that are none, which would be lost when it is written again."""
        rows = read_csv(path)
        if count := num_damaged(path) + sum(not row.get("digest") for row in rows):
            raise config_lib.ConfigError([
                f"{path}: {count} of its lines cannot be read as rows; expected them mended, or removed: "
                "their cells are run again then"
            ])  # fmt: skip
        return rows

    def _check(self, cell: Cell, row: dict[str, str]) -> None:
        if row["digest"] != self._grid.digest(cell):
            raise config_lib.ConfigError([
                f"{self._path}: {cell} was trained with other settings than this command gives it (frames, a task's "
                "file, a variant); expected the same, or another --output"
            ])  # fmt: skip

    def add(self, cell: Cell, result: dict[str, Any], origin: Mapping[str, str]) -> None:
        """Appends a finished cell; `origin` says by which command and code it was trained.

        Raises:
          OSError: the row could not be written; those before it are kept.
        """
        row = {name: written(name, value) for name, value in result.items()} | dict(origin)
        row |= {name: str(value) for name, value in cell._asdict().items()} | {"date": time.strftime("%Y-%m-%d")}
        row["digest"] = self._grid.digest(cell)
        if not self._is_begun:
            self._begin()
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)
        self.returns[cell] = self._grid.score(cell, row)


def _code(grid: Grid) -> str:
    """Returns what tells the code that cells are trained by from what it becomes when somebody edits it."""
    code = provenance.code()
    hashes = [f"{word} {found}" for word, found in grid.own_hashes().items()]
    return " ".join([code, *hashes]) if code != "unknown" else code


def _provenance() -> dict[str, str]:
    versions = " ".join(f"{name}={version}" for name, version in provenance.versions(_PACKAGES).items())
    return dict(commit=provenance.commit(), versions=versions, machine=provenance.machine())


def run(
    grid: Grid, results: Results, *, num_workers: int, command: str, on_cell=lambda cell, result: None
) -> None:  # fmt: skip
    """Runs every cell that is not done; results are added as they come, with the `command` that asked for them.

    A cell that fails is tried once more, in another process; the others go on. If a process dies, the cells that ran
    beside it are run one by one: nobody knows which of them it was.

    Raises:
      RuntimeError: some cells failed, or the code has changed meanwhile; what was finished is kept.
      OSError: a row could not be written.
    """
    context, num_evaluations = multiprocessing.get_context("spawn"), grid.config.num_evaluations
    first, failures, errors = _code(grid), Counter(), {}
    suspects: list[Cell] = []  # a process died while they ran

    def left_out() -> set[Cell]:
        return {cell for cell, count in failures.items() if count >= _MOST_FAILURES}

    def run_in(pool, origin: Mapping[str, str], alone: Sequence[Cell]) -> None:
        """Runs cells, or the one `alone`, until the pool has had its share, one has failed in it, or none is left."""
        running: dict[concurrent.futures.Future, Cell] = {}
        started, has_failed, hashes = 0, False, grid.own_hashes()
        while True:
            is_open = started < (1 if alone else num_workers * _CELLS_PER_POOL) and not has_failed
            free = num_workers - len(running) if is_open else 0
            others = {*running.values(), *left_out(), *suspects}
            for cell in alone[:free] if alone else _pick(grid, results, others, free):
                with contextlib.suppress(process.BrokenProcessPool):  # those that ran in it say so
                    running[pool.submit(cells.run, grid.cell_config(cell), cell.lag, num_evaluations)] = cell
                started += 1
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                cell = running.pop(future)
                if (error := future.exception()) is not None:  # of the cell, or a process is gone
                    has_failed, has_died = True, isinstance(error, process.BrokenProcessPool)
                    failures[cell] += not has_died or bool(alone)
                    errors[cell] = f"{cell}: {type(error).__name__}: {error}"
                    suspects.extend([cell] * (has_died and cell not in left_out()))
                    continue
                if hashes != grid.own_hashes():  # a row would name code that did not train it
                    raise RuntimeError("a part of your own was edited meanwhile; start again to go on with it")
                results.add(cell, result := future.result(), origin)
                on_cell(cell, result)

    while suspects or _pick(grid, results, left_out(), 1):
        now, alone = _code(grid), [suspects.pop() for _ in suspects[:1]]
        if first != now and "unknown" not in (first, now):  # git may not have answered in time
            raise RuntimeError(f"the code was {first} and is {now} now; start again to go on with it")
        workers = 1 if alone else num_workers
        with concurrent.futures.ProcessPoolExecutor(workers, context, cells.prepare_worker) as pool:
            try:
                run_in(pool, {"command": command} | _provenance(), alone)
            except BaseException:  # Ctrl-C, or a row that cannot be written: the workers do not finish their cells
                for worker in (pool._processes or {}).values():
                    worker.terminate()
                raise
    if cells_left := left_out():
        raise RuntimeError("\n".join(errors[cell] for cell in sorted(cells_left)))


def _pick(grid: Grid, results: Results, others: set[Cell], count: int) -> list[Cell]:
    """Returns cells that can be run, are not done and not among `others`."""
    available = (cell for cell in grid.available(results.returns) if cell not in others)
    return [cell for cell, _ in zip(available, range(count))]


@contextlib.contextmanager
def _alone_in(folder: Path):
    """Raises ConfigError if another process writes results into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        line = f"--output {folder}: {error.strerror}; expected a folder that can be made and written"
        raise config_lib.ConfigError([line]) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        line = f"--output {folder}: another command writes results there; expected its end, or another folder"
        raise config_lib.ConfigError([line]) from None
    try:
        yield
    finally:
        os.close(descriptor)


def main(
    path: str, overrides: Mapping[str, Any], folder: Path | None, num_workers: int | None, *, command: str
) -> int:  # fmt: skip
    """The command `impala compare`: the grid in `path` with `overrides` into `folder`."""
    if importlib.util.find_spec("scipy") is None:
        raise config_lib.ConfigError(["impala compare: needs the package scipy; pip install 'impala[lab]'"])
    num_cores = len(os.sched_getaffinity(0))
    if (num_workers := num_workers or num_cores) > num_cores:
        raise config_lib.ConfigError([f"--workers {num_workers}: there are {num_cores} cores; expected no more"])
    grid = Grid(path, overrides)
    recorded = _recorded(grid) if folder is None else None
    if recorded and not overrides:
        with _alone_in(recorded):
            results = Results(recorded / "results.csv", grid)
            if not _pick(grid, results, set(), 1):  # what is recorded is never added to
                return _compare(grid, results, recorded, num_workers, command)
    folder = folder or Path("runs/compare") / grid.path.stem
    with _alone_in(folder):
        results = Results(folder / "results.csv", grid)
        if recorded:
            results.take(recorded / "results.csv")
        return _compare(grid, results, folder, num_workers, command)


def _recorded(grid: Grid) -> Path | None:
    """Returns the folder of a shipped grid's recorded results; a checkout has one, what pip installed has not."""
    checkout = Path(os.path.relpath(shipped.FOLDER.resolve().parent))
    is_shipped = grid.path.resolve().parent == (shipped.FOLDER / "lab").resolve()
    folder = checkout / "docs/results" / grid.path.stem
    return folder if is_shipped and (folder / "results.csv").is_file() else None


def _compare(grid: Grid, results: Results, folder: Path, num_workers: int, command: str) -> int:
    """Trains what is left of a grid, and writes its report; returns the exit status."""
    if not _pick(grid, results, set(), 1):
        print(f"all {len(results.returns)} cells in {folder} were trained before; only the report is written again")
    else:
        num_done = sum(cell in results.returns for cell in grid.cells(results.returns))
        left = grid.num_cells - num_done
        print(f"{left} of {grid.num_cells} cells to train, into {folder}; the same command goes on where it is stopped")
        (folder / "command.txt").write_text(f"{command}\n", encoding="utf-8", errors="surrogateescape")
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores SIGINT otherwise
        signal.signal(number, signal.default_int_handler)
    try:
        with _Progress(grid, results) as on_cell:
            run(grid, results, num_workers=num_workers, command=command, on_cell=on_cell)
        status = 0
    except KeyboardInterrupt:
        print(f"stopped; {len(results.returns)} cells are kept in {folder}, the same command goes on", file=sys.stderr)
        status = 130
    except (RuntimeError, OSError) as error:
        print(f"{error}\n{len(results.returns)} cells are kept in {folder}", file=sys.stderr)
        status = 1
    from impala.lab import report

    for written in report.write(grid, results.rows, folder):
        print(written)
    return status


class _Progress:
    """A progress bar with the time left, or one line for each cell if there is no terminal."""

    def __init__(self, grid: Grid, results: Results):
        from rich import progress

        done = [cell for cell in grid.cells(results.returns) if cell in results.returns]
        self._grid, self._total, self._done = grid, grid.num_cells, len(done)
        self._frames = sum(grid.total_frames(cell.task) for cell in done)
        # The bar counts frames: tasks differ in them, so they estimate the time left better than cells would.
        self._bar = progress.Progress(
            progress.TextColumn("{task.fields[cells]} cells"), progress.BarColumn(),
            progress.TimeRemainingColumn(elapsed_when_finished=True), progress.TextColumn("{task.description}"),
            speed_estimate_period=3600, disable=not sys.stdout.isatty(),
        )  # fmt: skip

    def __enter__(self):
        self._bar.start()
        self._task = self._bar.add_task(
            "", total=self._grid.num_frames, completed=self._frames, cells=f"{self._done}/{self._total}"
        )
        return self._on_cell

    def __exit__(self, *_):
        self._bar.stop()

    def _on_cell(self, cell: Cell, result: dict[str, Any]) -> None:
        came = f"{result['return']:.3g} in {result['wall_seconds']:.0f} s"
        self._done += 1
        if self._bar.disable:
            print(f"{self._done}/{self._total}  {cell}: {came}", flush=True)
        self._bar.update(
            self._task, advance=self._grid.total_frames(cell.task), cells=f"{self._done}/{self._total}",
            description=f"{cell.task} {cell.scheme}: {came}",
        )  # fmt: skip
