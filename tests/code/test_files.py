"""Tests that use files: they have a folder, and the program sees of it what they name."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.code.test_code_tests import CHEATS, value

from groupwise_code.problem import FormatError
from groupwise_code.reward import CodeTests
from groupwise_sandbox.folder import Ways

RIGHT = """
def add(path, other):
    total = sum(int(line) for each in (path, other) for line in open(each))
    with open("total.txt", "w") as file:
        file.write(str(total))
    return total
"""
WRONG = RIGHT.replace("sum(", "1 + sum(")
ROWS = {
    "tmp_path": "from solution import add\n\ndef test_add(tmp_path):\n"
    "    (tmp_path / 'a').write_text('1\\n2\\n')\n    (tmp_path / 'b').write_text('3')\n"
    "    assert add(str(tmp_path / 'a'), tmp_path / 'b') == 6\n",
    "tempfile": "import os, tempfile\n\ndef test_add():\n"
    "    with tempfile.NamedTemporaryFile('w', delete=False) as file:\n        file.write('3')\n"
    "    try:\n        assert add(file.name, file.name) == 6\n"
    "    finally:\n        os.remove(file.name)\n",
    "what is written": "import os, unittest\n\nclass Tests(unittest.TestCase):\n"
    "    def setUp(self):\n        with open('a', 'w') as file:\n            file.write('3')\n"
    "    def tearDown(self):\n        os.remove('a')\n"
    "    def test_add(self):\n        add('a', 'a')\n"
    "        with open('total.txt') as file:\n            self.assertEqual(file.read(), '6')\n",
}


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeTests]:
    made = CodeTests(CodeTests.Config(timeout=1, memory=128))
    if (refusal := made._machine._sandbox.folder_refusal) is not None:
        pytest.skip(refusal)
    yield made
    made.close()


@pytest.mark.parametrize("name", ROWS)
def test_a_right_program_is_paid_and_a_wrong_one_not(reward: CodeTests, name: str) -> None:
    assert value(reward, RIGHT, {"test": ROWS[name]}) == 1.0
    assert value(reward, WRONG, {"test": ROWS[name]}) == 0.0


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_earns_nothing(reward: CodeTests, name: str) -> None:
    assert value(reward, CHEATS[name], {"test": ROWS["tmp_path"]}) == 0.0


def test_where_there_is_no_way_such_rows_are_refused_by_name() -> None:
    reward = CodeTests()
    sandbox = reward._machine._sandbox
    sandbox._ways = Ways(sandbox._probed, [])
    row: dict[str, Any] = {"test": ROWS["tempfile"]}
    with pytest.raises(FormatError, match="the tests use files: no process can be held"):
        reward.check_row(row)
    reward.check_row({"test": "import os\ndef test_add():\n    assert add(os.sep, '') == 3"})
    reward.close()
