"""Every notebook runs from top to bottom, and is committed without outputs and without widget state."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert FOLDER / "explore.ipynb" in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_committed_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    assert any(output.output_type == "execute_result" for cell in notebook.cells for output in cell.get("outputs", ()))


def test_the_explorers_kernel_shows_an_estimate_and_never_imports_tensorflow():
    notebook = nbformat.read(FOLDER / "explore.ipynb", as_version=4)
    notebook.cells.append(
        nbformat.v4.new_code_cell(
            "import sys, time\n"
            "deadline = time.monotonic() + 60\n"
            "while panel.bars is None and time.monotonic() < deadline:\n"
            "    time.sleep(0.1)\n"
            "assert sum(sum(t.x) for t in panel.bars.data if t.type == 'bar') == panel.estimate.peak_bytes\n"
            "assert not {'tensorflow', 'keras', 'jax'} & set(sys.modules)\n"
        )
    )
    NotebookClient(notebook, timeout=120).execute()
