"""The notebooks run from their first cell to their last, with a small budget."""

import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"


@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=[pytest.mark.soak] * (not path.stem.startswith("1_")))
    for path in sorted(FOLDER.glob("*.ipynb"))
])  # fmt: skip
def test_runs(path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setitem(os.environ, "IMPALA_NOTEBOOK_UPDATES", "2")
    monkeypatch.setitem(os.environ, "IMPALA_NOTEBOOK_FRAMES", "10000")
    monkeypatch.setitem(os.environ, "IMPALA_NOTEBOOK_CHUNKS", "64")
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    pictures = [o for c in notebook.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures, "a notebook without a picture"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_is_kept_with_its_outputs(path):
    import nbformat

    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert any("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)
