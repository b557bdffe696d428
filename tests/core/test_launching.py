"""A failure in a launched process fails the test that launched it."""

import pytest
from tests.core.launching import launch

FAILING = """
import os, sys
print("rank", os.environ["RANK"])
if os.environ["RANK"] == "1":
    sys.exit("it is odd")
"""
REPORTING = """
import json, os, sys
if os.environ["RANK"] == "0":
    open(sys.argv[2], "w").write(json.dumps([os.environ["WORLD_SIZE"], __name__, os.getpid()]))
"""


def test_the_error_has_exit_codes_and_output_of_each_process(tmp_path):
    with pytest.raises(AssertionError, match=r"exit codes \[0, 1\]\nrank 0\n\nrank 1\nit is odd"):
        launch(FAILING, tmp_path, 2)


def test_each_launch_starts_new_processes(tmp_path):
    (count, name, one), (*_, other) = (launch(REPORTING, tmp_path, 2) for _ in range(2))
    assert (count, name) == ("2", "__main__")
    assert one != other
