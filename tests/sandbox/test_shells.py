"""Shells: what a model's commands may try, and what they get: their own folder alone."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from tests.sandbox.killing import ends_with_its_run
from tests.sandbox.payloads import IN_A_SHELL, PAYLOADS

from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import SandboxError
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.shell import LONGEST, CommandError, Setting, Shell

MIB = 1 << 20
SPACE = 8 * MIB


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    limits = Limits(seconds=5, memory=256 * MIB, output=MIB)
    with Sandbox(limits=limits, parallel=4, total_memory=4096 * MIB) as sandbox:
        if reason := sandbox.shell_refusal:
            pytest.skip(reason)
        yield sandbox


@pytest.fixture
def shell(box: Sandbox) -> Iterator[Shell]:
    files = {"shop/cart.py": b"total = 0\n", "run": b"#!/bin/sh\necho ran\n"}
    with box.shell(Setting(files=files, space=SPACE)) as opened:
        yield opened


def printed(shell: Shell, command: str) -> str:
    return shell.run(command).stdout.decode()


def test_files_stay_from_one_command_to_the_next(shell: Shell) -> None:
    assert printed(shell, "./run; cd shop; echo 'x = 1' >> cart.py; ln -s cart.py b; ls") == (
        "ran\nb\ncart.py\n"
    )
    assert printed(shell, "pwd; cat shop/b; echo oops >&2") == "/folder\ntotal = 0\nx = 1\noops\n"
    assert shell.run("wc -c; exit 3", stdin="four").status == 3
    assert shell.files() == {
        "run": b"#!/bin/sh\necho ran\n",
        "shop/cart.py": b"total = 0\nx = 1\n",
    }


def test_ordinary_programs_work(shell: Shell) -> None:
    command = (
        "cp -r shop b && mv b c && rm -r c && ls -la shop > list && grep -c cart list && sort list"
        " > /tmp/s && timeout 9 sed -i s/0/1/ shop/cart.py && cat shop/cart.py && flock run echo k"
    )
    finished = shell.run(command)
    assert (finished.stdout, finished.status) == (b"1\ntotal = 1\nk\n", 0)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo \0", "a NUL"),
        ("echo \ud800", "half of a surrogate"),
        ("x" * (LONGEST + 1), "at most"),
    ],
)
def test_what_is_no_command_is_an_error_of_its_own(
    shell: Shell, command: str, problem: str
) -> None:
    with pytest.raises(CommandError, match=problem):
        shell.run(command)
    assert printed(shell, "echo 42") == "42\n"


DETACHED = {
    "in the background": "sleep 1000 &",
    "in a session of its own": "(setsid sleep 1000 &)",
    "without its input and output": "(setsid sleep 1000 < /dev/null > /dev/null 2>&1 &)",
    "deaf to signals": "(trap '' HUP TERM INT; setsid sleep 1000 &)",
    "a chain of processes": "f() { sleep 0.01; (setsid bash -c 'sleep 1000' &); }; f & f &",
}


@pytest.mark.parametrize("name", DETACHED)
def test_nothing_lives_on_after_a_command(shell: Shell, name: str) -> None:
    before = {each.pid for each in psutil.process_iter()}
    assert printed(shell, f"{DETACHED[name]}\necho begun") == "begun\n"
    new = [each for each in psutil.process_iter(["cmdline"]) if each.pid not in before]
    assert [each for each in new if "1000" in str(each.info["cmdline"])] == []
    assert printed(shell, "kill -0 -1 2>&1; cat shop/cart.py").endswith("total = 0\n")


ATTACKS = {
    "a signal to all": "kill -9 -1; kill -9 0; kill -9 1; kill -9 $PPID",
    "write outside": "for at in / /usr/ /bin/ /dev/ /etc/; do echo x > ${at}x && echo WON; done",
    "read of the machine": (
        "for at in /etc/passwd /etc/shadow /home /root /proc/1 /sys/kernel /var /run /mnt; do"
        " [ -e $at ] && echo WON $at; done"
    ),
    "climb out": "cd ..; cd ../../..; ls -d root home proc 2>/dev/null && echo WON",
    "mount": "mount -t tmpfs none /tmp && echo WON; umount /folder && echo WON",
    "become root": "su -c 'echo WON'; unshare -r echo WON; chroot / echo WON; nsenter -t 1 -m true",
    "a namespace": "bwrap --ro-bind / / echo WON; unshare -U echo WON",
    "a network": "exec 3<> /dev/tcp/127.0.0.1/22 && echo WON",
    "a device": "mknod x b 8 0 && echo WON; mknod y c 1 1 && echo WON",
    "priority": "nice -n -5 true 2>&1 | grep -q cannot || echo WON",
    "higher limits": "ulimit -u 5000 && echo WON; ulimit -v unlimited && echo WON",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_wins_nothing(shell: Shell, name: str) -> None:
    assert "WON" not in printed(shell, ATTACKS[name])
    assert printed(shell, "cat shop/cart.py") == "total = 0\n"


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("start", range(0, len(PAYLOADS), 20))
def test_a_payload_wins_nothing(shell: Shell, start: int) -> None:
    for name, code in [*PAYLOADS.items()][start : start + 20]:
        if name not in IN_A_SHELL:
            finished = shell.run('exec python3 -c "$(cat)"', 2, stdin=code)
            assert b"WON" not in finished.stdout, name
        assert printed(shell, "cat shop/cart.py") == "total = 0\n"


GREEDY = {
    "a full disk": ("cat /dev/zero > big; echo x > small; rm big; echo $?", "exit"),
    "a full disk of names": ("i=0; while echo $((i++)) > f$i; do :; done 2> /dev/null", "exit"),
    "a full folder for temporary files": ("cat /dev/zero > /tmp/x", "exit"),
    "output": ("yes", "output"),
    "a loop": ("while :; do :; done", "time"),
    "sleep": ("sleep 100", "time"),
    "memory of one": ("python3 -c 'x = bytearray(10 ** 9)'", "exit"),
    "memory of many": (
        "for i in 1 2 3 4; do (sleep 9 | python3 -c 'x = b\"x\" * 10 ** 8; input()') & done; wait",
        "memory",
    ),
    "a bomb of forks": ("f() { f | f & }; f; wait", None),
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.slow(after=1)
def test_a_greedy_command_is_ended_and_the_next_one_runs(shell: Shell, name: str) -> None:
    command, ended = GREEDY[name]
    began, before = time.monotonic(), len(psutil.pids())
    finished = shell.run(command, 1)
    assert time.monotonic() - began < 15
    assert ended in (None, finished.ended), finished
    assert printed(shell, "rm -rf f* small big /tmp/x; echo 42 > x; cat x") == "42\n"
    assert len(psutil.pids()) < before + 30


def test_files_that_are_too_large_to_be_read_are_an_error(shell: Shell) -> None:
    shell.run("for i in 1 2 3 4; do truncate -s 7000000 f$i; done")
    with pytest.raises(ValueError, match="cannot be read"):
        shell.files()
    shell.run("rm f*; ln -s /etc/passwd link; mkfifo pipe; ln run hard")
    assert {*shell.files()} == {"run", "hard", "shop/cart.py"}


@pytest.mark.slow
def test_thirty_two_in_parallel_and_two_calls_at_once(box: Sandbox) -> None:
    def one(number: int) -> str:
        with box.shell(Setting(files={"n": str(number).encode()})) as shell:
            calls = [
                threading.Thread(target=shell.run, args=(f"sleep 0.1; echo {each} >> n",))
                for each in "ab"
            ]
            for each in calls:
                each.start()
            for each in calls:
                each.join()
            shell.run("kill -9 -1; (setsid sleep 1000 &)")
            return printed(shell, "cat n")

    with ThreadPoolExecutor(32) as pool:
        texts = [*pool.map(one, range(32))]
    for number, text in enumerate(texts):
        assert text in (f"{number}a\nb\n", f"{number}b\na\n")


def test_names_that_leave_the_folder_are_refused() -> None:
    for name in ("../x", "/etc/x", "a/../../x", ""):
        with pytest.raises(ValueError, match="names no file"):
            Setting(files={name: b""})
    with pytest.raises(ValueError, match="more than"):
        Setting(files={"x": b"12345"}, space=4)


def test_a_shell_that_was_killed_is_the_machines_fault(box: Sandbox) -> None:
    with box.shell() as shell:
        shell.run("echo x > x")
        server = psutil.Process(box._connected()._server.pid)
        for each in server.children():
            each.kill()
        with pytest.raises(SandboxError, match="server has ended"):
            shell.run("cat x")
    with box.shell() as shell:
        assert printed(shell, "echo 42") == "42\n"


def test_after_the_run_is_killed_no_command_lives() -> None:
    code = (
        "import threading, time\n"
        "from groupwise_sandbox.sandbox import Sandbox\n"
        "s = Sandbox(parallel=4, total_memory=8 << 30)\n"
        "assert s.shell_refusal is None\n"
        "def hang():\n"
        "    with s.shell() as shell: shell.run('(setsid sleep 100 &); sleep 100')\n"
        "for _ in range(3): threading.Thread(target=hang, daemon=True).start()\n"
        "time.sleep(0.9)\n"
    )
    ended = ends_with_its_run(code)
    if ended is None:
        pytest.skip("shells do not work here")
    processes, seconds = ended
    assert processes >= 12
    assert seconds < 2
