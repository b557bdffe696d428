"""No payload wins, whoever the user is, and whether or not there are namespaces."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NEW_USERS = 0x10000000
NO_LANDLOCK = (
    "no process can be held to a folder here (landlock: there is none); allow namespaces of users, "
    "or take a kernel with Landlock"
)
USERS: dict[str, Sequence[str]] = {
    "root": (),
    "nobody": (
        *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"),
    ),
}
pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("user", USERS)
def test_no_payload_wins(user: str) -> None:
    shown = table(USERS[user])
    assert shown.pop("user") == (65534 if USERS[user] else 0)
    refused = {name: each for name, each in shown.items() if isinstance(each, str)}
    assert {name: each for name, each in shown.items() if name not in refused and each} == {}
    if refused:
        pytest.skip(str(refused))


@pytest.mark.slow
@pytest.mark.parametrize("user", USERS)
def test_without_namespaces_commands_are_refused_and_no_payload_wins(user: str) -> None:
    shown = table(USERS[user], begin=without_namespaces)
    assert shown["allow-list"] == []
    assert shown["landlock"] in ([], NO_LANDLOCK)
    assert shown["bubblewrap"].startswith("bubblewrap does not hold here (bwrap: ")
    assert shown["namespaces"].startswith("no process can be held to a folder here (namespaces: ")


@pytest.mark.slow
def test_root_that_can_become_nobody_else_runs_programs_alone() -> None:
    """As in a container without a range of users."""
    shown = table((), by=interpreter(USERS["nobody"]), begin=in_a_namespace_with_one_user)
    assert shown["user"] == 0
    assert shown["allow-list"] == []
    for each in ("bubblewrap", "namespaces"):
        assert "root cannot become another user here" in shown[each]
    assert "root cannot become another user here" in shown["landlock"] or (
        shown["landlock"] == NO_LANDLOCK
    )


def table(command: Sequence[str], *, by: str = "", begin: Callable[[], None] | None = None) -> Any:
    """What `attack_table` prints, when it is run by this command.

    by: an interpreter; begin: called before it is run.
    """
    ran = subprocess.run(
        [*command, by or interpreter(command), "-m", "tests.sandbox.attack_table"],
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=begin,
    )
    return json.loads(ran.stdout)


def environment() -> dict[str, str]:
    """Variables by which another interpreter imports what this one does."""
    folders = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"}


def interpreter(command: Sequence[str]) -> str:
    """A Python that a user may execute by its own name, as the sandbox's server is begun.

    Skips the test where there is none, or where the user may not read the installed packages.
    """
    again = "import os, sys, groupwise\nos.execv(sys.executable, ['python', '-c', ''])"
    for each in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        tried = [*command, each, "-c", again]
        if not Path(each).exists():
            continue
        ran = subprocess.run(tried, cwd=ROOT, env=environment(), capture_output=True, check=False)
        if ran.returncode == 0:
            return each
    pytest.skip("this user may execute no Python here, or not read its packages")


def without_namespaces() -> None:
    """Enter a namespace of users in which no further one can be made."""
    enter_a_namespace("0 0 65536")
    Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")


def in_a_namespace_with_one_user() -> None:
    """Become the root of a namespace who is nobody outside of it."""
    enter_a_namespace("0 65534 1")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def enter_a_namespace(users: str) -> None:
    """users: the first inside, the first outside, and how many."""
    ready, mapped, present = os.pipe(), os.pipe(), os.getpid()
    if os.fork() == 0:
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{present}/{name}").write_text(users, encoding="ascii")
        os.write(mapped[1], b".")
        os._exit(0)
    if ctypes.CDLL(None).unshare(NEW_USERS) != 0:
        os._exit(1)
    os.write(ready[1], b".")
    os.read(mapped[0], 1)
    os.wait()
