"""The notebooks of examples/notebooks: stored without outputs, and run with one step."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.ipynb"))]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_outputs_are_stripped(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.parametrize("path", NOTEBOOKS)
@pytest.mark.slow
def test_a_notebook_runs_and_plots_curves(path, tmp_path):
    """Takes about ten seconds, in a kernel that imports everything."""
    notebook = nbformat.read(path, as_version=4)
    (settings,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    settings.source += f"\nSTEPS, PROMPTS, PICTURES, OUTPUT = 1, 2, 1, {str(tmp_path / 'run')!r}"
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any(" -> " in output.get("text", "") for output in outputs)
    assert (tmp_path / "run" / "report.html").exists()
