"""What a program may try, and what it gets: nothing, and the next program runs unharmed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.sandbox.killing import ends_with_its_run
from tests.sandbox.payloads import GREEDY, PAYLOADS

from groupwise_sandbox import connection
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.sandbox import Sandbox, Suite

HARMLESS = (
    "read passwords",
    "read its own memory map",
    "read by descriptor",
    "list a folder",
    "look at a file",
    "fork",
    "run a command",
    "run a shell",
    "become another program",
    "spawn",
    "limits of its own",
    "a new session",
    "a socket of AF_INET",
    "a socket of AF_UNIX",
    "a pair of sockets",
    "a file in memory",
    "call prctl (157)",
    "thousands of threads",
)
"""Those that may be tried on the machine itself."""


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all files of a folder: mode, owner, time of the last change and links."""
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {
        name: (each.st_mode, each.st_uid, each.st_mtime_ns, each.st_nlink)
        for name, each in found.items()
    }


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_payload_wins_nothing(sandbox: Sandbox, name: str, open_folder: Path) -> None:
    before = state(open_folder)
    finished = sandbox.run(PAYLOADS[name].replace("FOLDER", str(open_folder)))
    assert b"WON" not in finished.stdout, finished
    assert state(open_folder) == before
    assert sandbox.run("print(6 * 7)").stdout == b"42\n"


@pytest.mark.parametrize("name", HARMLESS)
def test_a_payload_wins_on_a_bare_interpreter(name: str, tmp_path: Path) -> None:
    """One with a mistake in it would win nothing anywhere."""
    command = [sys.executable, "-c", PAYLOADS[name]]
    ran = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert b"WON" in ran.stdout, ran.stderr


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.slow(after=2)
def test_a_greedy_program_is_ended(sandbox: Sandbox, name: str) -> None:
    code, ended = GREEDY[name]
    began = time.monotonic()
    finished = sandbox.run(code)
    assert time.monotonic() - began < 1 * 5 + 10  # of the machine
    assert finished.ended == ended if ended else finished.ended != "exit" or finished.status
    assert sandbox.run("print(6 * 7)").stdout == b"42\n"


def test_a_program_holds_its_own_descriptors_alone() -> None:
    """However many the run has open: the server's line to the run has a number of the run's."""
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
    code = (
        "import errno, os\n"
        "def is_open(number):\n"
        "    try:\n        os.lseek(number, 0, 1)\n"
        "    except OSError as error:\n        return error.errno != errno.EBADF\n"
        "    return True\n"
        "print([n for n in range(100_000) if is_open(n)])\n"
    )
    try:
        with Sandbox(limits=Limits(seconds=5)) as sandbox:
            assert sandbox.run(code).stdout == b"[0, 1, 2, 3]\n"
    finally:
        for each in held:
            os.close(each)


def test_nothing_of_an_earlier_program_is_in_memory(sandbox: Sandbox) -> None:
    marker = "marker-of-the-former-run"
    assert marker.encode() in sandbox.run(f"kept = {marker!r} * 3\nprint(kept)", marker).stdout
    search = (
        "import gc\n"
        "half = 'marker-of-the-' + 'former-run'\n"
        "texts = [v for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values())]\n"
        "print('WON' if any(isinstance(t, str) and half in t and t != half for t in texts)"
        " else 'nothing')"
    )
    assert sandbox.run(search).stdout == b"nothing\n"


def test_after_the_run_is_killed_no_program_lives() -> None:
    code = (
        "import os, threading, time\n"
        "from groupwise_sandbox.sandbox import Sandbox\n"
        "from groupwise_sandbox.limits import Limits\n"
        "s = Sandbox(limits=Limits(seconds=50), parallel=4)\n"
        "s.run('')\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=s.run, args=('while True: pass',), daemon=True).start()\n"
        "time.sleep(0.5)\n"
    )
    ended = ends_with_its_run(code)
    assert ended is not None
    programs, seconds = ended
    assert programs == 3
    assert seconds < 2


def test_a_server_that_was_killed_fails_its_programs_and_the_next_one_runs() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from groupwise_sandbox.process import SandboxError

    with Sandbox(limits=Limits(seconds=20), parallel=2) as sandbox, ThreadPoolExecutor() as pool:
        sandbox.run("")
        hanging = pool.submit(sandbox.run, "while True: pass")
        time.sleep(0.3)
        connection = sandbox._connection
        assert connection is not None
        os.kill(connection._server.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="server has ended"):
            hanging.result(timeout=5)
        assert sandbox.run("print(1)").stdout == b"1\n"


def test_a_process_that_cannot_be_restricted_is_no_answers_fault(tmp_path: Path) -> None:
    """Whatever fails before the first line of a program is the machine's."""
    from groupwise_sandbox import child
    from groupwise_sandbox.process import SandboxError

    broken = tmp_path / "groupwise_sandbox"
    shutil.copytree(Path(child.__file__).parent, broken)
    calls = (broken / "system_calls.py").read_text()
    head = 'def restrict(scope: Scope = "memory") -> None:\n'
    assert head in calls
    (broken / "system_calls.py").write_text(
        calls.replace(head, f"{head}    raise OSError('refused')\n")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "_SERVER", broken / "server.py")
        with Sandbox() as sandbox, pytest.raises(SandboxError, match="OSError: refused"):
            sandbox.run("print(1)")
        with Sandbox() as sandbox, pytest.raises(SandboxError, match="OSError: refused"):
            sandbox.call("def f(): return 1", "f", [])
        with Sandbox() as sandbox, pytest.raises(SandboxError, match="OSError: refused"):
            sandbox.test("def f(): return 1", Suite(code="assert f() == 1", stubs=["f"]))
