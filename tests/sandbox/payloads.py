"""Payloads: programs that try to leave the sandbox; each prints WON if it got what it is after.

A name says what is tried. All must find the sandbox as they would find a bare machine: what they
use is in the standard library. FOLDER stands for one that anybody may write to, with a file `mine`.
"""

from groupwise_sandbox.commands import Command

PAYLOADS = {
    # paths
    "read passwords": "print(open('/etc/passwd').read(10), 'WON')",
    "read the environment of init": "print(open('/proc/1/environ').read(10), 'WON')",
    "read its own memory map": "print(open('/proc/self/maps').read(10), 'WON')",
    "read by descriptor": "import os\nprint(os.open('/etc/hostname', 0), 'WON')",
    "list a folder": "import os\nprint(os.listdir('/'), 'WON')",
    "look at a file": "import os\nprint(os.stat('/etc/passwd'), 'WON')",
    "write a file": "open('FOLDER/won', 'w').write('x')\nprint('WON')",
    "make a folder": "import os\nos.mkdir('FOLDER/won')\nprint('WON')",
    "remove a file": "import os\nos.unlink('FOLDER/mine')\nprint('WON')",
    "rename a file": "import os\nos.rename('FOLDER/mine', 'FOLDER/x')\nprint('WON')",
    "change a mode": "import os\nos.chmod('FOLDER/mine', 0o777)\nprint('WON')",
    "change an owner": "import os\nos.chown('FOLDER/mine', 1, 1)\nprint('WON')",
    "set an attribute": ("import os\nos.setxattr('FOLDER/mine', 'user.a', b'x')\nprint('WON')"),
    "make a symlink": "import os\nos.symlink('/etc/passwd', 'FOLDER/won')\nprint('WON')",
    "make a hard link": ("import os\nos.link('FOLDER/mine', 'FOLDER/won')\nprint('WON')"),
    "change the folder": "import os\nos.chdir('/')\nprint('WON')",
    "make a pipe in a folder": "import os\nos.mkfifo('FOLDER/won')\nprint('WON')",
    "truncate a file": "import os\nos.truncate('FOLDER/mine', 0)\nprint('WON')",
    # processes
    "fork": "import os\nprint(os.fork(), 'WON')",
    "a bomb of forks": "import os\nwhile True:\n    os.fork()\n    print('WON')",
    "run a command": "import subprocess\nprint(subprocess.run(['true']), 'WON')",
    "run a shell": "import os\nprint('WON' if os.system('true') == 0 else '')",
    "become another program": "import os\nos.execv('/bin/echo', ['echo', 'WON'])",
    "spawn": "import os\nos.posix_spawn('/bin/true', ['true'], {})\nprint('WON')",
    "signal the parent": "import os\nos.kill(os.getppid(), 9)\nprint('WON')",
    "signal everybody": "import os\nos.kill(-1, 9)\nprint('WON')",
    "signal a group": "import os\nos.killpg(0, 9)\nprint('WON')",
    "signal through a descriptor": (
        "import os\nimport signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)\n"
        "print('WON')"
    ),
    "signal by an owner of a descriptor": (
        "import fcntl, os\nfcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())\nprint('WON')"
    ),
    "limits of another process": (
        "import os, resource\n"
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))\nprint('WON')"
    ),
    "limits of its own": (
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))\nprint('WON')"
    ),
    "trace the parent": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print('WON' if libc.ptrace(16, os.getppid(), 0, 0) == 0 else '')"
    ),
    "memory of the parent": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "libc.syscall.restype = ctypes.c_long\n"
        "print('WON' if libc.syscall(310, os.getppid(), 0, 0, 0, 0, 0) >= 0 else '')"
    ),
    "thousands of threads": """
import ctypes, mmap, os, struct
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long
page = mmap.mmap(-1, 8192, prot=7)
base = ctypes.addressof(ctypes.c_char.from_buffer(page))
sleep = b"\\xb8\\x23\\0\\0\\0\\x48\\xbf" + struct.pack("<Q", base + 64)
sleep += b"\\x31\\xf6\\x0f\\x05\\xeb\\xeb"
page[: len(sleep)] = sleep  # nanosleep, for ever
page[64:80] = struct.pack("<QQ", 1000, 0)
page[4096:4104] = struct.pack("<Q", base)  # a stack for all: they return to where they sleep
flags, begun = 0x50F00, 0
while begun < 3000 and libc.syscall(56, flags, ctypes.c_void_p(base + 4096), 0, 0, 0) > 0:
    begun += 1
print("WON" if begun == 3000 else begun, flush=True)
os._exit(0)
""",
    "priority": "import os\nos.nice(-5)\nprint('WON')",
    "become another user": "import os\nos.setuid(0)\nprint('WON')",
    "a new session": "import os\nos.setsid()\nprint('WON')",
    # sockets
    **{
        f"a socket of {family}": f"import socket\nsocket.socket(socket.{family})\nprint('WON')"
        for family in ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK")
    },
    "a pair of sockets": "import socket\nsocket.socketpair()\nprint('WON')",
    "send descriptors": "import socket\nsocket.socket(fileno=3).sendmsg([b'x'])\nprint('WON')",
    # the kernel
    "a file in memory": "import os\nos.memfd_create('x')\nprint('WON')",
    **{
        f"call {name} ({number})": (
            "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
            "libc.syscall.restype = ctypes.c_long\n"
            f"print('WON' if libc.syscall({number}, {arguments}) >= 0 else '')"
        )
        for name, number, arguments in (
            ("unshare", 272, "0x10000000"),
            ("mount", 165, "0, 0, 0, 0, 0"),
            ("bpf", 321, "0, 0, 0"),
            ("io_uring_setup", 425, "1, 0"),
            ("keyctl", 250, "0, 0, 0"),
            ("userfaultfd", 323, "0"),
            ("perf_event_open", 298, "0, 0, -1, -1, 0"),
            ("open by the 32-bit table", "0x40000002", "b'/etc/passwd', 0"),
            ("clone without a thread", 56, "17, 0, 0, 0, 0"),
            ("vfork", 58, "0"),
            ("prctl", 157, "1, 0, 0, 0, 0"),
            ("openat2", 437, "-100, b'/etc/passwd', 0, 0"),
            ("execveat", 322, "-100, b'/bin/true', 0, 0, 0"),
            ("pidfd_getfd", 438, "0, 0, 0"),
            ("reboot", 169, "0, 0, 0, 0"),
        )
    },
}

GREEDY = {
    "a loop": ("while True: pass", "time"),
    "a loop without its timer's signal": (
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
        "time",
    ),
    "a loop that handles its signals": (
        "import signal\nfor n in (24, 27): signal.signal(n, lambda *_: None)\nwhile True: pass",
        "time",
    ),
    "sleep": ("import time\ntime.sleep(1000)", "time"),
    "memory": ("x = bytearray(1 << 34)", "memory"),
    "memory bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    "output": ("while True: print('x' * 10000)", "output"),
    "output without a line": (
        "import sys\nwhile True: sys.stdout.write('x' * 10000)",
        "output",
    ),
    "output to stderr": ("import os\nwhile True: os.write(2, b'x' * 10000)", "output"),
    "messages": ("import os\nwhile True: os.write(3, b'x' * 10000)", "output"),
    "threads": (
        "import threading as t, time\nwhile 1: t.Thread(target=time.sleep, args=(1000,)).start()",
        None,
    ),
    "recursion": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
        None,
    ),
    "one long call of C": ("print(len(str(7 ** (10 ** 8))))", None),
    "a regular expression": ("import re\nre.match('(a+)+$', 'a' * 40 + 'b')", "time"),
}

WITH_A_FOLDER = {
    "read through a symlink": (
        "import os\nos.symlink('/etc/passwd', 'a')\nprint(open('a').read(9), 'WON')"
    ),
    "write through a symlink": (
        "import os\nos.symlink('FOLDER/mine', 'a')\nopen('a', 'w').write('x')\nprint('WON')"
    ),
    "make a file through a symlink": (
        "import os\nos.symlink('FOLDER', 'a')\nopen('a/won', 'w')\nprint('WON')"
    ),
    "list through a symlink": (
        "import os\nos.symlink('FOLDER', 'a')\nprint(os.listdir('a'), 'WON')"
    ),
    "link a file from outside": "import os\nos.link('FOLDER/mine', 'a')\nprint('WON')",
    "link its file to outside": (
        "import os\nopen('a', 'w')\nos.link('a', 'FOLDER/won')\nprint('WON')"
    ),
    "move a file in": "import os\nos.rename('FOLDER/mine', 'a')\nprint('WON')",
    "move a file out": ("import os\nopen('a', 'w')\nos.rename('a', 'FOLDER/won')\nprint('WON')"),
    "write beside its folder": "open('../won', 'w')\nprint('WON')",
    "read from a folder that it has changed to": (
        "import os\nos.chdir('/etc')\nprint(open('passwd').read(9), 'WON')"
    ),
    "change times": "import os\nos.utime('FOLDER/mine', (0, 0))",
    "execute a file": (
        "import os\nopen('a', 'w').write('#!/bin/sh\\necho WON')\nos.chmod('a', 0o777)\n"
        "os.execv('./a', ['a'])"
    ),
    "map its file": (
        "import mmap\nf = open('a', 'w+b')\nf.write(b'x' * 9999)\nf.flush()\n"
        "mmap.mmap(f.fileno(), 9999)\nprint('WON')"
    ),
    "make a pipe": "import os\nos.mkfifo('a')\nprint('WON')",
    "make a device": "import os\nos.mknod('a', 0o20666, os.makedev(1, 3))\nprint('WON')",
    "a large file": "open('a', 'wb').truncate(1 << 40)\nprint('WON')",
    "fill the disk": """
for n in range(512):
    with open(str(n), "wb") as file:
        file.write(bytes(1 << 20))
print("WON")
""",
    "fill the disk with files that are removed": """
import os
held = []
for n in range(512):
    held.append(open("a", "wb", buffering=0))
    os.unlink("a")
    held[-1].write(bytes(1 << 20))
print("WON")
""",
    "a million files": """
for n in range(1_000_000):
    open(str(n), "w").close()
print("WON")
""",
    "nest folders": """
import os
for n in range(100_000):
    os.mkdir("a")
    os.chdir("a")
print("WON")
""",
    "look into another process": """
import os
for number in (*range(os.getppid() - 5, os.getppid() + 50), os.getpid()):
    for name in ("mem", "environ", "maps", "fdinfo/0", "cwd/file", "root/etc/passwd"):
        try:
            print(open(f"/proc/{number}/{name}", "rb").read(9), "WON")
        except OSError:
            pass
""",
    "follow another process to its folder": """
import os
for number in (*range(os.getppid() - 5, os.getppid() + 50), os.getpid()):
    try:
        print(os.readlink(f"/proc/{number}/cwd"), "WON" if number != os.getpid() else "")
    except OSError:
        pass
""",
    "signal a thread of the parent": (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "print('WON' if libc.syscall(234, os.getppid(), os.getppid(), 9) == 0 else '')"
    ),
    "folders of other runs": (
        "import glob, tempfile\nprint(*(f'{each} WON' for each in glob.glob('/tmp/*')))"
    ),
}
"""Payloads of a program that has a folder, and begins in it."""


IN_A_FOLDER = ("change a mode", "change the folder")
"""Payloads that a program with a folder may win: the first seems to succeed and changes nothing,
and in another folder it can open as little."""
IN_NAMESPACES = ("list a folder",)
"""One that it may win where all folders are its own."""
SEEN = ("look at a file",)
"""What Landlock does not hold back, where there is no root to hide the machine."""
IN_A_VIEW = (
    "list a folder",
    "change the folder",
    "become another program",
    "limits of another process",
)
"""Payloads that a command may win, since they get nothing of the machine: its folders are of its
own, it executes what it sees, and its parent has the number 0, by which it calls itself."""


IN_A_SHELL = (
    *IN_A_VIEW,
    *("fork", "a bomb of forks", "run a command", "run a shell", "spawn", "signal a group"),
    *("call clone without a thread (56)", "call vfork (58)", "limits of its own", "look at a file"),
    *("a new session", "a pair of sockets", "signal everybody", "signal the parent"),
    "thousands of threads",
)
"""Those that a shell's command may win, since processes, sessions and files are its own, too."""


def command(code: str) -> Command:
    """A program for the machine's own Python, in namespaces."""
    arguments = ("/usr/bin/python3", "-I", "-S", "payload.py")
    return Command(arguments=arguments, files={"payload.py": code.encode()}, base=64 << 20)
