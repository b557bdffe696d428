"""What a program in C, C++ or JavaScript may try in bubblewrap, and what it gets: nothing."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from tests.sandbox.killing import ends_with_its_run
from tests.sandbox.payloads import GREEDY, command

from groupwise_sandbox.commands import Command
from groupwise_sandbox.languages import LANGUAGES, named
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.programs import CompileError, Program, Programs
from groupwise_sandbox.sandbox import Sandbox

MIB = 1 << 20
HEADERS = "".join(
    f"#include <{name}>\n"
    for name in (
        *("dirent.h", "errno.h", "fcntl.h", "pthread.h", "signal.h", "stdio.h", "stdlib.h"),
        *("string.h", "sys/mman.h", "sys/resource.h", "sys/socket.h", "sys/stat.h", "unistd.h"),
    )
)
ATTACKS = {
    "write anywhere": """int main() {
    const char *places[] = {"/x", "/usr/x", "/dev/x", "/dev/shm/x", "/tmp/x", "/folder/x", "x"};
    for (int i = 0; i < 7; i++) if (open(places[i], O_CREAT | O_WRONLY, 0666) >= 0) puts("WON");
    if (mkdir("/folder/a", 0777) == 0 || symlink("/", "/folder/b") == 0) puts("WON"); }""",
    "change its program": """int main() {
    if (open("/folder/program", O_WRONLY) >= 0 || unlink("/folder/program") == 0) puts("WON"); }""",
    "write to its input": """int main() {
    if (write(0, "x", 1) > 0 || ftruncate(0, 1 << 30) == 0) puts("WON");
    if (open("/dev/stdin", O_WRONLY) >= 0) puts("WON"); }""",
    "read of the machine": """int main() {
    const char *places[] = {"/etc", "/home", "/root", "/tmp", "/var", "/proc", "/sys", "/run"};
    for (int i = 0; i < 8; i++) if (access(places[i], F_OK) == 0) puts("WON"); }""",
    "descriptors": """int main() {
    for (int i = 3; i < 100000; i++) if (fcntl(i, F_GETFD) >= 0) puts("WON"); }""",
    "begin processes": 'int main() { while (1) { if (fork() >= 0) puts("WON"); else break; } }',
    "sockets": """int main() {
    for (int i = 0; i < 50; i++) if (socket(i, SOCK_STREAM, 0) >= 0) puts("WON");
    int pair[2]; if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0) puts("WON"); }""",
    "raise its limits": """int main() {
    for (int i = 0; i < 16; i++) {
        struct rlimit old, more = {RLIM_INFINITY, RLIM_INFINITY};
        getrlimit(i, &old);
        if (old.rlim_max != RLIM_INFINITY && setrlimit(i, &more) == 0) puts("WON"); } }""",
    "threads": """void *wait_long(void *a) { sleep(100); return a; }
int main() { pthread_attr_t small; pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 16384);
    pthread_t thread; int n = 0;
    while (n < 1000 && pthread_create(&thread, &small, wait_long, 0) == 0) n++;
    if (n > 100) puts("WON"); fflush(stdout); _exit(0); }""",
    "memory of every kind": """int main() { long n = 0;
    int kinds[] = {MAP_SHARED, MAP_PRIVATE, MAP_PRIVATE | MAP_GROWSDOWN};
    for (int i = 0; i < 3; i++) while (mmap(0, 1 << 20, 3, kinds[i] | MAP_ANONYMOUS, -1, 0)
        != MAP_FAILED) n++;
    if (n > 256 + 32) puts("WON"); }""",
    "a signal to all": 'int main() { if (kill(-1, 9) == 0 || kill(0, 9) == 0) puts("WON"); }',
}
COMPILED = {
    "include passwords": '#include "/etc/passwd"\nint main() {}\n',
    "include a file of this test": f'#include "{__file__}"\nint main() {{}}\n',
    "include as bytes": 'asm(".incbin \\"/etc/passwd\\"");\nint main() {}\n',
    "include itself": "#include __FILE__\n#include __FILE__\n",
    "a large program": "char large[1 << 30] = {1};\nint main() {}\n",
}


@pytest.fixture(scope="module")
def held() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(seconds=1, memory=256 * MIB, output=MIB), parallel=4) as sandbox:
        if (reason := sandbox.refusal) is not None:
            pytest.skip(reason)
        yield sandbox


@pytest.fixture(scope="module")
def programs(held: Sandbox) -> Programs:
    return Programs(held)


def compiled(programs: Programs, name: str, code: str) -> Program:
    if (reason := programs.refusal(name)) is not None:
        pytest.skip(reason)
    return programs.compiled(name, code)


def test_bubblewrap_holds_where_it_works() -> None:
    """Else a fault of ours would only be one more refusal, and skip all that is below."""
    bare = ("bwrap", "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "true")
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    try:
        subprocess.run([*(user if os.getuid() == 0 else ()), *bare], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("bubblewrap does not work here")
    with Sandbox() as sandbox:
        assert sandbox.refusal is None


def test_a_program_is_held_to_its_limits(programs: Programs) -> None:
    code = """int main() {
    int kinds[] = {RLIMIT_CPU, RLIMIT_DATA, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_NPROC, RLIMIT_CORE};
    for (int i = 0; i < 6; i++) {
        struct rlimit all; getrlimit(kinds[i], &all);
        printf("%ld %d ", (long)all.rlim_max, all.rlim_max == all.rlim_cur); } }"""
    finished = programs.run(compiled(programs, "c", HEADERS + code), "")
    memory = 256 * MIB
    expected = (2, memory, memory + 32 * MIB, 0, 64, 0)
    assert finished.stdout.decode() == "".join(f"{each} 1 " for each in expected)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_in_c_wins_nothing(programs: Programs, name: str) -> None:
    program = compiled(programs, "c", f"{HEADERS}{ATTACKS[name]}")
    assert b"WON" not in programs.run(program, "").stdout
    ordinary = compiled(programs, "c", LANGUAGES["c"].probe)
    assert programs.run(ordinary, "41").stdout == b"42\n"


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiler_shows_nothing_of_the_machine(programs: Programs, name: str) -> None:
    compiled(programs, "c", "int main() {}")
    with pytest.raises(CompileError):
        programs.compiled("c", COMPILED[name])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
@pytest.mark.parametrize("name", ["begin processes", "threads", "memory of every kind"])
def test_an_attack_in_c_wins_on_a_bare_machine(name: str, tmp_path: object) -> None:
    """One with a mistake in it would win nothing anywhere."""
    code = f"{HEADERS}{ATTACKS[name]}".replace("while (1)", "for (int i = 0; i < 1; i++)")
    code = code.replace("!= MAP_FAILED) n++", "!= MAP_FAILED && n < 1000) n++")
    file = f"{tmp_path}/attack"
    subprocess.run(["gcc", "-w", "-xc", "-o", file, "-"], input=code.encode(), check=True)
    assert b"WON" in subprocess.run([file], stdout=subprocess.PIPE, check=False).stdout


ENDINGS = {
    "a loop": ("int main() { for (;;); }", "time"),
    "sleep": ("#include <unistd.h>\nint main() { sleep(100); }", "time"),
    "output": ('#include <stdio.h>\nint main() { for (;;) puts("xxxx"); }', "output"),
    "a crash": ("int main() { *(volatile int *)0 = 1; }", "signal"),
    "an end": ("int main() { return 3; }", "exit"),
}


@pytest.mark.parametrize("name", ENDINGS)
@pytest.mark.slow(after=1)
def test_how_a_program_in_c_ends(programs: Programs, name: str) -> None:
    code, ended = ENDINGS[name]
    finished = programs.run(compiled(programs, "c", code), "")
    assert finished.ended == ended
    assert finished.status != 0


MEMORY = {
    "cpp": "#include <vector>\nint main() { std::vector<char> all(1l << 33); return all[7]; }",
    "javascript": "const all = []; while (true) all.push(new Array(1e5).fill(Math.random()))",
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_limited(programs: Programs, name: str) -> None:
    assert programs.run(compiled(programs, name, MEMORY[name]), "").ended == "memory"


SCRIPTS = {
    "read passwords": "require('fs').readFileSync('/etc/passwd')",
    "write": "require('fs').writeFileSync('/folder/x', 'x')",
    "run a command": "require('child_process').execSync('true')",
    "fork": "require('child_process').fork('/folder/program.js')",
    "listen": "require('net').createServer().listen(0, () => console.log('WON'))\nnull.x",
    "kill": "process.kill(-1, 9)",
    "buffers": "const a = []; for (let i = 0; i < 5e3; i++) a.push(Buffer.alloc(1 << 20, 1))",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_attack_in_javascript_wins_nothing(programs: Programs, name: str) -> None:
    program = compiled(programs, "javascript", f"{SCRIPTS[name]}\nconsole.log('WON')")
    finished = programs.run(program, "")
    assert b"WON" not in finished.stdout
    assert finished.status != 0


@pytest.mark.parametrize("name", ["a loop", "memory", "output without a line", "messages"])
@pytest.mark.slow(after=1)
def test_a_greedy_command_is_ended(held: Sandbox, name: str) -> None:
    assert held.command(command(GREEDY[name][0])).status != 0


def test_a_command_writes_within_its_space_alone(held: Sandbox) -> None:
    script = (
        "cat given; head -c 9000000 /dev/zero > a; head -c 9000000 /dev/zero > b; wc -c a b\n"
        "echo x > /dev/x; echo x > /x; (sleep 1000 &); echo $(id -u) $SECRET"
    )
    shell = Command(
        arguments=("/bin/sh", "-c", script),
        files={"given": b"hello\n"},
        space=10 * MIB,
        scope="processes",
    )
    finished = held.command(shell)
    lines = finished.stdout.decode().splitlines()
    assert lines[0] == "hello"
    assert int(lines[-2].split()[0]) <= 10 * MIB
    assert lines[-1] != "0"
    assert "space" in finished.stderr
    assert finished.ended == "exit"
    assert b"hello" in held.command(shell).stdout  # and no `a` of the former one


def test_a_signal_to_its_group_reaches_itself_alone(held: Sandbox) -> None:
    script = "kill -9 0; kill -9 -1; echo 42"
    shell = Command(arguments=("/bin/sh", "-c", script), scope="processes")
    assert held.command(shell).stdout == b"42\n"


@pytest.mark.slow
def test_a_bomb_of_processes_ends(held: Sandbox) -> None:
    bomb = Command(arguments=("/bin/sh", "-c", "f() { f | f & }; f; sleep 9"), scope="processes")
    before = len(psutil.pids())
    assert held.command(bomb).status != 0
    assert held.command(Command(arguments=("/bin/echo", "42"))).stdout == b"42\n"
    assert len(psutil.pids()) < before + 30


def test_after_the_run_is_killed_no_command_lives() -> None:
    code = (
        "import threading, time\n"
        "from groupwise_sandbox.sandbox import Sandbox\n"
        "from groupwise_sandbox.commands import Command\n"
        "s = Sandbox(parallel=4)\n"
        "assert s.refusal is None\n"
        "c = Command(arguments=('/bin/sh', '-c', 'sleep 100 & sleep 100'), scope='processes')\n"
        "for _ in range(3): threading.Thread(target=s.command, args=(c,), daemon=True).start()\n"
        "time.sleep(0.7)\n"
    )
    ended = ends_with_its_run(code)
    if ended is None:
        pytest.skip("bubblewrap does not work here")
    processes, seconds = ended
    assert processes >= 9
    assert seconds < 2


def test_the_machines_fault_is_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from groupwise_sandbox import commands
    from groupwise_sandbox.process import SandboxError

    with Sandbox() as sandbox:
        monkeypatch.setattr(commands.shutil, "which", lambda name: None)
        assert sandbox.refusal == "install the package bubblewrap"
    with Sandbox() as sandbox:
        monkeypatch.setattr(commands.shutil, "which", lambda name: "/bin/false")
        reason = sandbox.refusal
        assert reason is not None
        assert reason.startswith("bubblewrap does not hold here")
        with pytest.raises(SandboxError, match="cannot be run here"):
            sandbox.command(Command(arguments=("/bin/true",)))
    # What a program writes and how it ends is never taken for bubblewrap's own words.
    monkeypatch.undo()
    with Sandbox() as sandbox:
        if sandbox.refusal is None:
            says = Command(arguments=("/bin/sh", "-c", "echo bwrap: no >&2; exit 1"))
            assert sandbox.command(says).status == 1
            none = Command(arguments=("/usr/bin/no-such-program",))
            assert sandbox.command(none).status == 127


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GNU C++17 (64)", "cpp"),
        ("C++14 (GCC 6-32)", "cpp"),
        ("c++", "cpp"),
        ("GNU C11", "c"),
        ("Node.js", "javascript"),
        ("JavaScript", "javascript"),
        ("Python 3", "python"),
        ("python", "python"),
        ("c#", None),
        ("Java 17", None),
        ("PyPy 3", None),
        ("", None),
    ],
)
def test_names_of_languages(text: str, name: str | None) -> None:
    assert named(text) == name
