"""Whatever a command starts, and however, ends with it."""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from groupwise.kit import descendants

SLEEPS = "'echo $$; exec sleep 600'"
WAYS = (
    f"sh -c {SLEEPS} &",
    f"setsid sh -c {SLEEPS} &",
    f"(setsid sh -c {SLEEPS} &)",  # whose parent ends at once
    "setsid sh -c 'echo $$; kill -STOP $$' &",
    """setsid sh -c 'trap "" TERM HUP; echo $$; exec sleep 600' &""",
    """(setsid sh -c 'setsid sh -c "echo \\$\\$; exec sleep 600" & wait' &)""",
)


def is_running(process):
    with suppress(FileNotFoundError):
        return ") Z " not in Path("/proc", str(process), "stat").read_text()
    return False


def started(script, **options):
    """A shell's script under the program, and the end of the pipe that ends it."""
    theirs, ours = os.pipe()
    command = [sys.executable, "-I", "-S", descendants.__file__, str(theirs), "sh", "-c", script]
    process = subprocess.Popen(command, pass_fds=[theirs], stdout=subprocess.PIPE, **options)
    os.close(theirs)
    return process, ours


@pytest.mark.parametrize("ending", ["itself", "pipe"])
def test_all_that_a_command_starts_ends_with_it(ending):
    last = "read line; exit 3" if ending == "itself" else "sleep 600"
    process, ours = started("\n".join([*WAYS, last]), stdin=subprocess.PIPE)
    with process:
        numbers = [int(process.stdout.readline()) for _ in WAYS]
        assert all(map(is_running, numbers))
        if ending == "itself":
            process.stdin.close()
        else:
            os.close(ours)
        code = process.wait(30)
    assert not any(map(is_running, numbers))
    assert (code == 3) == (ending == "itself")
    if ending == "itself":
        os.close(ours)


def test_the_end_of_a_run_by_a_signal_ends_its_commands():
    """The pipe has no other end, so it closes with the process that holds it."""
    program = f"""
import os, subprocess, sys, time
theirs, ours = os.pipe()
command = [sys.executable, "-I", "-S", {descendants.__file__!r}, str(theirs)]
command += ["setsid", "sh", "-c", "echo $$; sleep 600"]
subprocess.Popen(command, pass_fds=[theirs], start_new_session=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as run:
        number = int(run.stdout.readline())
        run.kill()
    until = time.monotonic() + 60
    while is_running(number) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(number)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_the_exit_code_is_that_of_the_command(script, code):
    process, ours = started(script)
    with process:
        assert process.wait(30) == code
    os.close(ours)
