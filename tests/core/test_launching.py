"""What fails in a launched process is seen by the test that launched it."""

import pytest
from tests.core.launching import launch

ODD = """
import os, sys
print("rank", os.environ["RANK"])
if os.environ["RANK"] == "1":
    sys.exit("it is odd")
"""
PLACE = """
import json, os, sys
if os.environ["RANK"] == "0":
    open(sys.argv[2], "w").write(json.dumps([os.environ["WORLD_SIZE"], __name__, os.getpid()]))
"""


def test_a_process_that_fails_is_told_with_what_it_wrote(tmp_path):
    with pytest.raises(AssertionError, match=r"exit codes \[0, 1\]\nrank 0\n\nrank 1\nit is odd"):
        launch(ODD, tmp_path, 2)


def test_each_launch_has_processes_of_its_own(tmp_path):
    (count, name, one), (*_, other) = (launch(PLACE, tmp_path, 2) for _ in range(2))
    assert (count, name) == ("2", "__main__")
    assert one != other
