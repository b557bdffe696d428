"""Tasks in Harbor's format: those that need no image are prompts, and their tests give rewards."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.agents.scripted import play, say

from groupwise.kit.errors import UserError

if sys.platform != "linux":
    pytest.skip("a sandbox needs Linux", allow_module_level=True)

from groupwise_agents.harbor import HarborTasks
from groupwise_agents.repository import Repository
from groupwise_code.repository_tests import RepositoryTests
from groupwise_sandbox.harbor import task_of

DOCKER = "FROM python:3.12\n# the files\nWORKDIR /app\nCOPY shop \\\n  notes.txt ./\nCMD bash\n"
TEST = (
    "grep -q 2 /app/cart.py && cat /tests/data/expected | diff - /app/notes.txt\n"
    "echo $((1 - $?)) > /logs/verifier/reward.txt\n"
)


def task(folder: Path, name: str = "one", docker: str = DOCKER, test: str = TEST) -> Path:
    contents = {
        "task.toml": "",
        "instruction.md": "Make it two.\n",
        "environment/Dockerfile": docker,
        "environment/shop/cart.py": "total = 1\n",
        "environment/notes.txt": "a note\n",
        "tests/test.sh": test,
        "tests/data/expected": "a note\n",
    }
    for path, text in contents.items():
        place = folder / name / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder / name


def test_what_can_be_played_is_a_prompt_and_the_rest_is_named(tmp_path):
    task(tmp_path)
    task(tmp_path, "two", DOCKER + "RUN apt-get install nmap\n")
    tasks = HarborTasks(HarborTasks.Config(folder=str(tmp_path)))
    assert [*tasks] == [{"prompt": "Make it two.\n", "task": str(tmp_path / "one")}]
    assert "1 of 2 tasks are left out" in tasks.notes[0]
    assert "'RUN apt-get install nmap'" in tasks.notes[0]
    assert task_of(tmp_path / "one").files == {"cart.py": b"total = 1\n", "notes.txt": b"a note\n"}
    for docker, problem in [
        ("FROM x\nWORKDIR /usr/src\n", "the machine's own"),
        ("FROM x\nCOPY shop /app\n", "has to be built"),
        ("FROM x\nWORKDIR /app\nCOPY shop ../else\n", "has to be built"),
        ("FROM x\nWORKDIR /app\nCOPY ../../two /app/\n", "not beside it"),
        ("FROM x\nWORKDIR /app\nCOPY --from=y shop /app\n", "has to be built"),
    ]:
        with pytest.raises(ValueError, match=problem):
            task_of(task(tmp_path, "three", docker))
    with pytest.raises(UserError, match="no task"):
        HarborTasks(HarborTasks.Config(folder=str(tmp_path / "one")))


def test_an_episode_and_its_reward(tmp_path):
    try:
        environment = Repository()
    except UserError as error:
        pytest.skip(str(error))
    config = RepositoryTests.Config(guarantee="together")
    row = {"prompt": "?", "task": str(task(tmp_path))}

    def paid(row, *commands):
        turns = [say(bash={"command": each}) for each in commands]
        columns, _ = play(environment, row, *turns, say("done"))
        return reward(["?"], ["done"], edited=[columns["edited"]], task=[row["task"]])

    try:
        reward = RepositoryTests(config)
    except UserError as error:
        pytest.skip(str(error))
    assert paid(row, "sed -i s/1/2/ /app/cart.py") == [1.0]
    assert paid(row, "ls /app /tests /logs") == [0.0]
    assert paid(row, "sed -i s/1/2/ cart.py; echo 1 > notes.txt") == [0.0]
    by_name = task(
        tmp_path, "json", test='echo \'{"a": 1, "b": 0.5}\' > /logs/verifier/reward.json'
    )
    assert paid({**row, "task": str(by_name)}) == [0.0]
    with pytest.raises(ValueError, match="may forge"):
        RepositoryTests().check_row(row)
    reward.close()
    asyncio.run(environment.close())
