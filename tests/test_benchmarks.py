"""Scripts of tests/benchmarks run as their first lines say: `python tests/benchmarks/NAME.py`."""

from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "benchmarks").glob("*.py"))
USE_TESTS = [path for path in SCRIPTS if "from tests" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", USE_TESTS, ids=lambda path: path.stem)
def test_a_script_that_imports_tests_makes_them_importable_first(path):
    """Python searches the script's own folder, not the one that it is started in."""
    before, _, _ = path.read_text(encoding="utf-8").partition("from tests")
    assert "sys.path." in before
    assert "parents[2]" in before.partition("sys.path.")[2]
