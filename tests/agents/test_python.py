"""The tool `python`: its names stay for an episode, and nothing else does."""

import asyncio
import sys

import pytest

if sys.platform != "linux":
    pytest.skip("a sandbox needs Linux", allow_module_level=True)

from tests.agents.scripted import play, say

from groupwise_agents.python import Interpreter, PythonConfig
from groupwise_agents.tool import Tool, ToolError
from groupwise_agents.tools import Tools


@pytest.fixture(scope="module")
def interpreter():
    opened = Interpreter(PythonConfig(seconds=0.5))
    yield opened
    opened.close()


def run(tool, code):
    return asyncio.run(tool(code=code))


def test_names_stay_and_prints_do_not(interpreter):
    tool = Tool.of(interpreter.begun().python)
    assert run(tool, "import math\nprint('once')\nx = 3\nx") == "once\n3\n"
    assert run(tool, "def f(n): return math.factorial(n) + x\nx += 1") == ""
    assert run(tool, "f(x), 1 / 0") == "ZeroDivisionError: division by zero\n"
    assert run(tool, "f(x)") == "28\n"
    assert run(tool, "y =").startswith("SyntaxError")
    import_random = "import random\nr = random.random()\nr"
    assert run(tool, import_random) == run(tool, "r")
    assert run(Tool.of(interpreter.begun().python), "x") == "NameError: name 'x' is not defined\n"


@pytest.mark.parametrize(
    "code", ["while True: pass", "import os\nos._exit(0)", "raise SystemExit(3)"]
)
def test_a_call_that_does_not_end_leaves_nothing(interpreter, code):
    tool = Tool.of(interpreter.begun().python)
    run(tool, "x = 1")
    if "_exit(0)" in code:
        run(tool, f"x = 2\n{code}")
    else:
        with pytest.raises(ToolError, match="left nothing"):
            run(tool, f"x = 2\n{code}")
        assert run(tool, "x") == "1\n"


def test_calls_of_a_turn_are_in_order_and_episodes_apart():
    environment = Tools(Tools.Config(python=PythonConfig()))
    first = say(python={"code": "x = 41"})
    for _ in range(2):
        _, player = play(
            environment, {"prompt": "?"}, first, say(python={"code": "x += 1\nx"}), say()
        )
        assert player.contexts[-1][-1]["content"] == "42\n"
    asyncio.run(environment.close())
