"""A process with a folder finds nothing else; files cross between tests and a program."""

import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sandbox.attack_table import in_a_folder, won
from tests.sandbox.killing import ends_with_its_run
from tests.sandbox.payloads import WITH_A_FOLDER

from groupwise_sandbox import folder, landlock
from groupwise_sandbox.folder import WAYS, Folder, Way, Ways
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.sandbox import Sandbox, Suite

MIB = 1 << 20
BARE = (
    "read through a symlink",
    "write through a symlink",
    "make a file through a symlink",
    "list through a symlink",
    "link a file from outside",
    "link its file to outside",
    "move a file in",
    "move a file out",
    "write beside its folder",
    "read from a folder that it has changed to",
    "execute a file",
    "map its file",
    "make a pipe",
    "look into another process",
)
"""Payloads that may be tried on the machine itself."""


@pytest.fixture(scope="module", params=WAYS)
def held(request: pytest.FixtureRequest) -> Iterator[tuple[Way, Sandbox]]:
    limits = Limits(seconds=2, memory=256 * MIB)
    with Sandbox(limits=limits, parallel=2) as sandbox:
        sandbox._ways = Ways(sandbox._probed, [request.param])
        if (refusal := sandbox.folder_refusal) is not None:
            pytest.skip(refusal)
        yield request.param, sandbox


def reason(held: tuple[Way, Sandbox], code: str, tests: str, space: int = MIB) -> str | None:
    """Why tests of a function `f` fail, or None."""
    return held[1].test(code, Suite(code=tests, stubs=["f"], space=space)).reasons[0]


@pytest.mark.slow
def test_no_payload_wins(held: tuple[Way, Sandbox]) -> None:
    way, sandbox = held
    assert in_a_folder(sandbox, way) == []


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary folders are made, here and in runs that are begun."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@pytest.mark.parametrize("name", ["write through a symlink", "move a file out", "nest folders"])
def test_a_payload_wins_nothing_and_leaves_nothing(
    held: tuple[Way, Sandbox], name: str, temporary: Path
) -> None:
    _, sandbox = held
    ordinary = "open('a', 'w').write('42')\nprint(open('a').read())"
    ran = won(
        lambda code: sandbox.run(code, space=MIB),
        lambda: sandbox.run(ordinary, space=MIB),
        {name: WITH_A_FOLDER[name]},
    )
    assert ran == []
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("name", BARE)
def test_a_payload_wins_on_a_bare_interpreter(name: str, open_folder: Path, tmp_path: Path) -> None:
    """One with a mistake in it would win nothing anywhere."""
    code = WITH_A_FOLDER[name].replace("FOLDER", str(open_folder))
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert b"WON" in ran.stdout, ran.stderr


CROSSING = {
    "a path is read": """
def f(path): return open(path).read()
---
open("a", "w").write("text")
assert f("a") == "text"
""",
    "a temporary file is read": """
def f(path): return open(path).read()
---
import tempfile
with tempfile.NamedTemporaryFile("w", delete=False) as file:
    file.write("text")
assert f(file.name) == "text"
""",
    "an object of pathlib goes and comes": """
def f(path):
    path.write_text("text")
    return path
---
from pathlib import Path
path = Path("a").absolute()
assert f(path) == path and path.read_text() == "text"
""",
    "a change of as many bytes in the same moment": """
def f(path):
    text = open(path).read()
    open(path, "w").write(text.upper())
---
open("a", "w").write("text")
f("a")
assert open("a").read() == "TEXT"
""",
    "a folder is listed, and one file of it removed": """
import os
def f(folder):
    names = sorted(os.listdir(folder))
    os.remove(os.path.join(folder, "x"))
    return names
---
import os, tempfile
folder = tempfile.mkdtemp()
for name in "xy":
    open(os.path.join(folder, name), "w").close()
assert f(folder) == ["x", "y"] and os.listdir(folder) == ["y"]
""",
    "a tree is removed": """
import shutil
def f(folder): shutil.rmtree(folder)
---
import os
os.makedirs("a/b/c")
open("a/b/d", "w").close()
f("a")
assert os.listdir(".") == []
""",
    "a new file in a folder of the tests": """
def f(path):
    with open(path, "w") as file: file.write("text")
    import os
    return os.listdir(os.path.dirname(path))
---
import os, tempfile
folder = os.path.join(tempfile.mkdtemp(), "a")
os.mkdir(folder)
open(os.path.join(folder, "expected"), "w").write("other")
path = os.path.join(folder, "b")
assert f(path) == ["b"]
assert open(path).read() == "text" and sorted(os.listdir(folder)) == ["b", "expected"]
""",
    "a new file that nobody named": """
def f(): open("made", "w").write("text")
---
f()
assert open("made").read() == "text"
""",
    "copies, with their modes and times": """
import shutil
def f(old, new): shutil.copy2(old, new)
---
import shutil
open("a", "w").write("text")
f("a", "b")
shutil.copy("b", "c")
assert open("c").read() == "text"
""",
    "a database": """
import sqlite3
def f(path):
    with sqlite3.connect(path) as base:
        base.execute("create table t (x)")
        base.execute("insert into t values (3)")
---
import sqlite3
f("base")
assert sqlite3.connect("base").execute("select x from t").fetchall() == [(3,)]
""",
}
"""A program, and tests that it passes."""


@pytest.mark.parametrize("name", CROSSING)
def test_files_cross(held: tuple[Way, Sandbox], name: str) -> None:
    code, tests = CROSSING[name].split("---")
    assert reason(held, code, tests) is None
    assert reason(held, "def f(*_): return None", tests) is not None


def forged(files: object) -> str:
    """A program that answers a call with a message of its own."""
    message = json.dumps({"reply": {"value": None}, "files": files}).encode()
    data = struct.pack("!Q", len(message)) + message
    return f"import os\ndef f(*_):\n    os.write(3, {data!r})\n    os._exit(0)"


CHEATS = {
    "look for what is expected": (
        "import glob\ndef f(path):\n"
        "    return [open(n).read() for n in glob.glob('/folder/**', recursive=True) + "
        "glob.glob('**', recursive=True) if 'expected' in n][0]"
    ),
    "replace what is expected": (
        "def f(path):\n    open('expected', 'w').write('mine')\n    return 'mine'"
    ),
    "replace it by a symlink": (
        "import os\ndef f(path):\n    os.symlink('a', 'expected')\n    return 'question'"
    ),
    "remove it": forged({"expected": None}),
    "forge a file": forged({"expected": "bm9uZQ=="}),
    "forge a path": forged({"../expected": "bm9uZQ==", "/folder/expected": "bm9uZQ=="}),
    "forge a path below": forged({"a/../expected": "bm9uZQ=="}),
    "forge a path through a new folder": forged({"x/../expected": "bm9uZQ=="}),
    "forge a path of points": forged({"./x/./../expected": "bm9uZQ=="}),
    "forge nonsense": forged([1, {"x": 2}]),
    "forge what is no content": forged({"new": 3}),
}


@pytest.mark.parametrize("name", CHEATS)
def test_what_is_expected_is_out_of_reach(held: tuple[Way, Sandbox], name: str) -> None:
    tests = (
        "open('expected', 'w').write('gold')\nopen('a', 'w').write('question')\n"
        "answer = f('a') or 'none'\nassert answer == open('expected').read()"
    )
    assert reason(held, CHEATS[name], tests) is not None
    assert reason(held, "def f(path): return 'gold'", tests) is None


def test_what_tests_write_after_a_call_is_theirs(held: tuple[Way, Sandbox]) -> None:
    tests = (
        "f('a')\nopen('expected', 'w').write('gold')\nopen('a', 'w').write('gold')\n"
        "f('b')\nassert open('b').read() == open('expected').read() == open('a').read()"
    )
    every = "    for name in ('expected', 'a', path):\n        open(name, 'w').write"
    for text in ("path", "'gold'[:2]"):
        assert reason(held, f"def f(path):\n{every}({text})", tests) is not None
    assert reason(held, "def f(path): open(path, 'w').write('gold')", tests) is None


def test_too_much_cannot_cross(held: tuple[Way, Sandbox]) -> None:
    code = "def f(): open('a', 'wb').write(bytes(3 << 20))"
    failed = reason(held, code, "f()", 8 * MIB)
    assert "files of more than 2097152 bytes cannot cross" in str(failed)
    tests = "open('a', 'wb').write(bytes(3 << 20))\nf('a')"
    with pytest.raises(ValueError, match="cannot cross"):
        reason(held, "def f(a): pass", tests, 8 * MIB)


def test_a_full_folder_is_no_fault_of_the_sandbox(held: tuple[Way, Sandbox]) -> None:
    code = (
        "import time\nfor n in range(100):\n    open(str(n), 'wb').write(bytes(100_000))\n"
        "time.sleep(1)"
    )
    finished = held[1].run(code, space=MIB)
    assert finished.status != 0
    assert finished.ended == "space" or "No space left" in finished.stderr


def test_a_program_that_fills_its_folder_while_tests_wait_is_ended() -> None:
    with Sandbox(limits=Limits(seconds=5)) as sandbox:
        sandbox._ways = Ways(sandbox._probed, ["landlock"])
        if (refusal := sandbox.folder_refusal) is not None:
            pytest.skip(refusal)
        code = (
            "import threading, time\ndef fill():\n    time.sleep(0.2)\n    for n in range(100):\n"
            "        open(str(n), 'wb').write(bytes(100_000))\n"
            "def f(): threading.Thread(target=fill).start()"
        )
        tests = "import time\nf()\ntime.sleep(3)"
        assert reason(("landlock", sandbox), code, tests) is not None


def test_after_the_run_is_killed_no_folder_is_left(temporary: Path) -> None:
    if landlock.version() == 0:
        pytest.skip("there is no Landlock")
    code = (
        "import threading, time\n"
        "from groupwise_sandbox.folder import Ways\n"
        "from groupwise_sandbox.sandbox import Sandbox\n"
        "s = Sandbox(parallel=2)\n"
        "s._ways = Ways(s._probed, ['landlock'])\n"
        "assert s.folder_refusal is None\n"
        'program = \'open("a", "w").write("x")\\nwhile True: pass\'\n'
        "run = threading.Thread(target=lambda: s.run(program, space=1 << 20), daemon=True)\n"
        "run.start()\n"
        "time.sleep(0.5)\n"
    )
    ended = ends_with_its_run(code)
    assert ended is not None
    assert ended[0] == 1
    assert [*temporary.iterdir()] == []


def test_without_a_way_programs_with_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox() as sandbox:
        monkeypatch.setattr(folder.landlock, "version", lambda: 0)
        sandbox._ways = Ways(sandbox._probed, ["landlock"])
        refusal = sandbox.folder_refusal
        assert refusal is not None
        assert refusal.startswith(
            "no process can be held to a folder here (landlock: there is none)"
        )
        with pytest.raises(SandboxError, match="no process can be held"):
            sandbox.run("", space=MIB)
        assert sandbox.run("print(1)").stdout == b"1\n"


def test_the_size_of_a_folder_counts_what_is_nested(tmp_path: Path) -> None:
    inner = tmp_path / "folder" / "a" / "b"
    inner.mkdir(parents=True)
    own = Folder("landlock", 100_000, str(tmp_path))
    assert not own.is_full()
    (inner / "x").write_bytes(bytes(200_000))
    assert own.is_full()
    (inner / "x").unlink()
    (inner / "y").symlink_to("/usr")
    assert not own.is_full()
