"""The environment `repository`: an episode's tools, its files, and where a row has them."""

import asyncio
import random
import subprocess
import sys
import tarfile
import zipfile

import pytest
from tests.agents.scripted import play, say

from groupwise import ToolCall, testing
from groupwise.environment import Reply
from groupwise.kit.errors import UserError
from groupwise.tool_call import ToolCall as Call

if sys.platform != "linux":
    pytest.skip("a sandbox needs Linux", allow_module_level=True)

from groupwise_agents.repository import Repository
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.tree import edited, tree_of

FILES = {"shop/cart.py": "total = 0\n", "README": "A shop.\n"}
ROW = {"prompt": "Repair it.", "files": FILES}


@pytest.fixture(scope="module")
def environment():
    try:
        made = Repository(Repository.Config(turns=3, seconds=2))
    except UserError as error:
        pytest.skip(str(error))
    yield made
    asyncio.run(made.close())


def test_laws(environment):
    calls = [
        ToolCall("bash", {"command": "cat shop/cart.py >> README; ls; exit 2"}),
        ToolCall("edit", {"path": "shop/cart.py", "old": "0", "new": "1"}),
        ToolCall("bash", {"command": "echo \0"}),
    ]

    def model(messages, chance: random.Random):
        return chance.choice(["done", *calls, [calls[0], calls[1]]])

    testing.check_environment(environment, [ROW, {**ROW, "prompt": "Again."}], model)


def answers(environment, row, *calls):
    """What the tools answered to the calls of one turn each, and what `play` returned."""
    turns = [Reply("", "policy", calls=(Call(*call),)) for call in calls]
    columns, player = play(environment, row, *turns, say("done"))
    return [each["content"] for each in player.contexts[-1] if each["role"] == "tool"], columns


def test_an_episode_finds_edits_runs_and_finishes(environment):
    said, columns = answers(
        environment,
        ROW,
        ("bash", {"command": "grep -rn total ."}),
        ("edit", {"path": "shop/cart.py", "old": "total = 0", "new": "total = 1"}),
    )
    assert said == ["./shop/cart.py:1:total = 0\n", "done"]
    assert columns["edited"] == {"shop/cart.py": "total = 1\n"}
    assert columns["changes"].endswith("-total = 0\n+total = 1")
    assert columns["calls"] == 2


def test_what_a_tool_refuses_is_a_message(environment):
    for call, problem in [
        (("edit", {"path": "shop/cart.py", "old": "x", "new": ""}), "has the old text 0 times"),
        (("edit", {"path": "none", "old": "x", "new": ""}), "none: No such file"),
        (("edit", {"path": "/usr/x", "old": "", "new": ""}), "Read-only"),
        (("edit", {"path": "a\0", "old": "", "new": ""}), "a NUL"),
        (("bash", {"command": "echo \ud800"}), "incomplete character"),
        (("bash", {"command": "exit 3"}), "[status 3]"),
        (("bash", {"command": "yes"}), "printed too much"),
    ]:
        said, columns = answers(environment, ROW, call)
        assert problem in said[0], said
        assert columns["edited"] == {}


def test_two_calls_of_a_turn_are_made_in_their_order(environment):
    calls = tuple(Call("bash", {"command": f"sleep 0.{9 - n}; echo {n} >> n"}) for n in (7, 8))
    columns, _ = play(environment, ROW, Reply("", "policy", calls=calls), say("done"))
    assert columns["edited"] == {"n": "7\n8\n"}


def test_new_removed_and_binary_files(environment):
    command = "rm README; mkdir a; echo hi > a/b; printf '\\377' > shop/cart.py; ln -s a c"
    _, columns = answers(environment, ROW, ("bash", {"command": command}))
    assert columns["edited"] == {"README": None, "a/b": "hi\n"}
    before = tree_of(ROW)
    assert edited(before, columns["edited"]) == {"shop/cart.py": b"total = 0\n", "a/b": b"hi\n"}
    with pytest.raises(ValueError, match="names no file"):
        edited(before, {"../x": ""})


def test_files_that_cannot_be_read_are_those_of_the_row(environment):
    command = "for i in $(seq 99); do truncate -s 60000000 f$i; done"
    _, columns = answers(environment, ROW, ("bash", {"command": command}))
    assert columns["edited"] == {}


def test_a_machine_without_shells_is_named(monkeypatch):
    monkeypatch.setattr(Sandbox, "shell_refusal", "install the package bubblewrap")
    with pytest.raises(
        UserError, match=r"no shell here: install the package bubblewrap; or .* a server"
    ):
        Repository()


def test_where_a_row_has_its_files(tmp_path):
    folder = tmp_path / "one"
    (folder / "shop").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "link").symlink_to("/etc/passwd")
    expected = {name: text.encode() for name, text in FILES.items()}
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as packed:
        for name, text in FILES.items():
            packed.writestr(name, text)
    with tarfile.open(tmp_path / "one.tar.gz", "w:gz") as tar:
        tar.add(folder, ".")
    for source in (FILES, str(folder), *(str(tmp_path / f"one.{x}") for x in ("zip", "tar.gz"))):
        assert tree_of({"files": source}) == expected
    paths = {f".//{name.replace('/', '//./')}": text for name, text in FILES.items()}
    assert tree_of({"files": paths}) == expected
    assert edited(expected, {"./README": None}).keys() == expected.keys() - {"README"}
    (folder / "link").unlink()
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    folder.rename(tmp_path / "we__shop")
    row = {"repo": "we/shop", "base_commit": commit.stdout.strip()}
    assert tree_of(row, str(tmp_path)) == expected
    archives = {x: (tmp_path / f"one.{x}").read_bytes() for x in ("zip", "tar.gz")}
    (tmp_path / "damaged.zip").write_bytes(archives["zip"].replace(b"A shop", b"a shop"))
    (tmp_path / "damaged.tar.gz").write_bytes(archives["tar.gz"][:99])
    (tmp_path / "none.tar").write_bytes(b"no archive")
    with zipfile.ZipFile(tmp_path / "outside.zip", "w") as packed:
        packed.writestr("../a", "")
    for wrong, problem in [
        *(({"files": str(each)}, "cannot be read") for each in tmp_path.glob("damaged.*")),
        ({"files": str(tmp_path / "none.tar")}, "cannot be read"),
        ({"files": str(tmp_path / "outside.zip")}, "names no file in the folder"),
        ({"files": {"a/../../b": ""}}, "names no file in the folder"),
        ({"files": {"/etc/a": ""}}, "names no file in the folder"),
        ({"files": {"a": 3}}, "'a' is no text"),
        (row, "set `checkouts`"),
        ({"docker_image": "r2e/x"}, "the image of a container, r2e/x"),
        ({"files": "none.zip"}, "no folder or archive"),
        ({}, "it has no files"),
    ]:
        with pytest.raises(ValueError, match=problem):
            tree_of(wrong)
