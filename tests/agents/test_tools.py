"""Functions as tools: their schemas, the calls of a model, and what it reads of what went wrong."""

import asyncio
import enum
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from groupwise import ToolCall
from groupwise.environment import EpisodeEnded
from groupwise.kit.errors import UserError
from groupwise_agents.ordered import OrderedToolbox
from groupwise_agents.servers import Server, ServerConfig
from groupwise_agents.tool import Tool, Unavailable
from groupwise_agents.toolbox import Toolbox


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


def add(left: int, right: int = 1) -> int:
    """Add two numbers.

    Args:
        left: one number
        right: the other
    """
    return left + right


async def length(number: float, unit: Unit) -> dict[str, str]:
    """A length in words.

    Args:
        number: how many
        unit: of what
    """
    await asyncio.sleep(0)
    return {"length": f"{number} {unit.name.lower()}"}


def fail() -> None:
    """Fail."""
    raise KeyError("no such thing")


def leave() -> None:
    """Leave."""
    sys.exit(3)


def finish() -> None:
    """Finish the episode."""
    raise EpisodeEnded("done")


def nothing() -> None:
    """Nothing."""


def bare(number: int) -> int:
    """Has no description of its argument."""
    return number


def untyped(number):
    """Has no type hint.

    Args:
        number: of something
    """


def undocumented(number: int) -> int:
    return number


def positional(number: int, /) -> int:
    """Takes its argument by position.

    Args:
        number: of something
    """
    return number


def answers(toolbox, *calls):
    return asyncio.run(toolbox.answers(calls))


def contents(toolbox, *calls):
    return [message["content"] for message in answers(toolbox, *calls).messages]


def test_the_schema_of_a_function():
    (schema,) = Toolbox([add]).schemas
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "add"
    assert schema["function"]["description"] == "Add two numbers."
    parameters = schema["function"]["parameters"]
    assert parameters["properties"]["left"] == {"type": "integer", "description": "one number"}
    assert parameters["required"] == ["left"]


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ([undocumented], "tool 'undocumented': .* no docstring"),
        ([untyped], "tool 'untyped': .* missing a type hint"),
        ([bare], "tool 'bare': .* no description for the argument 'number'"),
        ([positional], "tool 'positional': models give arguments by name"),
        ([partial(add, 1)], "a tool is a function"),
        (["add"], "a tool is a function"),
        ([add, length, add], "two tools are named 'add'"),
    ],
)
def test_functions_that_are_no_tools(tools, problem):
    with pytest.raises(UserError, match=problem):
        Toolbox(tools)


def test_answers_are_messages_in_the_order_of_the_calls():
    toolbox = Toolbox([add, length, nothing])
    found = answers(
        toolbox,
        ToolCall("length", {"number": 2, "unit": "ft"}, id="a"),
        ToolCall("add", {"left": "40", "right": 2}),
        ToolCall("nothing"),
    )
    assert found.messages == [
        {
            "role": "tool",
            "name": "length",
            "tool_call_id": "a",
            "content": '{"length": "2.0 foot"}',
        },
        {"role": "tool", "name": "add", "content": "42"},
        {"role": "tool", "name": "nothing", "content": ""},
    ]
    assert (found.errors, found.is_final) == (0, False)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall("", fault="the call names no function"), "error: the call names no function"),
        (
            ToolCall("subtract"),
            "error: there is no tool 'subtract'; the tools are add, fail, leave",
        ),
        (ToolCall("add"), "error: add: missing a required argument: 'left'"),
        (
            ToolCall("add", {"left": 1, "up": 2}),
            "error: add: got an unexpected keyword argument 'up'",
        ),
        (ToolCall("add", {"self": 1}), "error: add: missing a required argument: 'left'"),
        (ToolCall("add", {"left": "one"}), "error: add: left: Input should be a valid integer"),
        (ToolCall("fail"), "error: KeyError: 'no such thing'"),
        (ToolCall("leave"), "error: RuntimeError: SystemExit: 3"),
    ],
)
def test_a_call_without_an_answer_is_a_message(call, text):
    found = answers(Toolbox([add, fail, leave]), ToolCall("add", {"left": 1}), call)
    first, second = found.messages
    assert first["content"] == "2"
    assert second["content"].startswith(text)
    assert found.errors == 1


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("text", ["ls \x00", "ls \ud83d"])
@pytest.mark.parametrize("kind", ["function", "program", "server"])
def test_what_no_program_takes_is_an_error_of_the_tool(kind, text):
    async def run(command: str) -> str:
        """Run a command.

        Args:
            command: of a shell
        """
        process = await asyncio.create_subprocess_exec("sh", "-c", command)
        return str(await process.wait())

    server = Server(ServerConfig(command=f"{sys.executable} -m tests.agents.mcp_server"))
    tools = {"function": [add], "program": [run], "server": server.tools()}[kind]
    argument = {"function": "left", "program": "command", "server": "name"}[kind]
    name = {"function": "add", "program": "run", "server": "variable"}[kind]

    async def call():
        toolbox = Toolbox(tools)
        found = await toolbox.answers([ToolCall(name, {argument: text})])
        again = await toolbox.answers([ToolCall(name, {argument: "1"})])
        await server.close()
        return found, again

    found, again = asyncio.run(call())
    assert found.errors == 1
    assert found.messages[0]["content"].startswith("error: an argument has")
    assert found.messages[0]["content"].encode()
    assert again.messages  # the server is there for other episodes


def test_a_tool_may_end_the_episode_or_fail_it():
    found = answers(Toolbox([add, finish]), ToolCall("finish"), ToolCall("add", {"left": 1}))
    assert found.is_final
    assert [message["content"] for message in found.messages] == ["done", "2"]
    assert found.errors == 0

    async def gone():
        raise Unavailable("the server is gone")

    with pytest.raises(Unavailable):
        answers(Toolbox([Tool(name="gone", schema={}, function=gone)]), ToolCall("gone"))


def test_calls_of_a_turn_run_together():
    both = threading.Barrier(2)

    def meet() -> str:
        """Wait for another call."""
        both.wait(timeout=60)
        return "met"

    assert contents(Toolbox([meet]), ToolCall("meet"), ToolCall("meet")) == ["met", "met"]


@pytest.mark.parametrize("is_async", [False, True])
def test_calls_of_tools_with_a_state_are_made_one_after_the_other(is_async):
    notes, running = [], threading.Lock()

    def write(note: str, wait: float = 0.0) -> int:
        """Write."""
        assert running.acquire(blocking=False)
        time.sleep(wait)
        notes.append(note)
        running.release()
        return len(notes)

    async def later(note: str, wait: float = 0.0) -> int:
        assert running.acquire(blocking=False)
        await asyncio.sleep(wait)
        notes.append(note)
        running.release()
        return len(notes)

    tool = Tool(name="write", schema={}, function=later if is_async else write)
    waits = [("slow", 0.02), ("quick", 0.0), ("last", 0.01)]
    calls = [ToolCall("write", {"note": note, "wait": wait}) for note, wait in waits]
    toolbox = OrderedToolbox([tool, finish])
    assert contents(toolbox, *calls) == ["1", "2", "3"]
    assert notes == [note for note, _ in waits]
    final = answers(toolbox, calls[0], ToolCall("finish"), calls[1])
    assert final.is_final
    assert notes[3:] == ["slow"]  # none after the one that ended the episode


@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_that_hangs_is_abandoned(is_async, capsys):
    stopped = threading.Event()

    def hang() -> None:
        stopped.wait()

    async def ignore() -> None:
        while not stopped.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                stopped.set()

    name = f"hangs_{is_async}"
    tool = Tool(name=name, schema={}, function=ignore if is_async else hang)
    toolbox = Toolbox([tool, add], deadline=0.05)
    found = answers(toolbox, ToolCall(name), ToolCall("add", {"left": 1}), ToolCall(name))
    stopped.set()
    late = f"error: {name} did not answer within 0.05 s"
    assert [message["content"] for message in found.messages] == [late, "2", late]
    assert found.errors == 2
    assert capsys.readouterr().err.count(f"warning: tool '{name}' did not answer") == 1


def test_a_tool_that_hangs_does_not_hold_up_the_exit():
    program = """
import asyncio, threading
from groupwise.tool_call import ToolCall
from groupwise_agents.tool import Tool
from groupwise_agents.toolbox import Toolbox
tool = Tool(name="hang", schema={}, function=threading.Event().wait)
print(asyncio.run(Toolbox([tool], deadline=0.01).answers([ToolCall("hang")])).errors)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "1\n"
