"""What ordinary programs do works in the sandbox."""

import sys

import pytest

from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox

ORDINARY = {
    "dates": "from datetime import datetime\nprint(datetime.strptime('2020', '%Y').year)",
    "encodings": "print('é'.encode('cp1252').decode('mac_roman').encode('utf-16')[:0].decode())",
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "print(sum(ThreadPoolExecutor(2).map(abs, [1, -2])))"
    ),
    "trees": "import xml.etree.ElementTree as tree\nprint(tree.fromstring('<a/>').tag)",
    "doubles": "from unittest.mock import Mock\nprint(Mock(return_value=1)())",
    "deep recursion": (
        "import sys, threading\n"
        "sys.setrecursionlimit(10**6)\n"
        "threading.stack_size(64 << 20)\n"
        "def deep(n): return 0 if n == 0 else 1 + deep(n - 1)\n"
        "thread = threading.Thread(target=lambda: print(deep(50_000)))\n"
        "thread.start(); thread.join()"
    ),
    "lines": "import fileinput\nfor line in fileinput.input(): print(line)",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_program_runs(sandbox: Sandbox, name: str) -> None:
    finished = sandbox.run(ORDINARY[name], "a line\n")
    assert (finished.ended, finished.status) == ("exit", 0), finished
    assert finished.stdout


def test_a_program_is_as_lucky_each_time(sandbox: Sandbox) -> None:
    code = "import random\nprint(random.random(), random.sample(range(1000), 3))"
    assert sandbox.run(code).stdout == sandbox.run(code).stdout != b""
    with Sandbox() as other:
        assert other.run(code).stdout == sandbox.run(code).stdout


def test_modules_are_those_of_the_runs_own_path(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "of_a_folder.py").write_text("answer = 42\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    with Sandbox(limits=Limits(seconds=5), modules=["of_a_folder"]) as sandbox:
        assert sandbox.run("import of_a_folder\nprint(of_a_folder.answer)").stdout == b"42\n"


def test_files_of_a_program_are_in_its_memory_alone(sandbox: Sandbox) -> None:
    code = "import sys\nprint(open(sys.argv[1]).readline(), open('a', 'rb').read())"
    finished = sandbox.run(code, arguments=["a"], files={"a": "1\r\n2"})
    assert finished.stdout == b"1\n b'1\\r\\n2'\n"
    assert sandbox.run("open('a')").status == 1
    assert sandbox.run("open('a', 'w')", files={"a": ""}).status == 1
