"""Call numbers: the system calls that a process may make, by the names of Linux's tables.

What is not here the kernel refuses. Calls that are allowed for some arguments alone have their
rules in `groupwise_sandbox.system_calls`.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Calls:
    """The numbers of one processor's calls."""

    architecture: int
    """As the kernel names it to a filter (AUDIT_ARCH)."""
    simple: Mapping[str, int]
    """Of a program that opens no file: none has a path, a process, a signal or a socket."""
    paths: Mapping[str, int]
    """Of a program with a folder of its own: none changes the mode, owner or time of a file."""
    files: Mapping[str, int]
    """Of a program in a file system of its own, in which it executes and waits, besides."""
    processes: Mapping[str, int]
    """To begin and to end processes."""
    shell: Mapping[str, int]
    """Of a shell's commands besides: links, owners, locks, timers, sessions."""
    attributes: Mapping[str, int]
    """Of extended attributes of files, of which there are none."""
    checked: Mapping[str, int]
    """With rules of their own."""


_X86_64 = Calls(
    0xC000003E,
    {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10,
        "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
        "pread64": 17, "readv": 19, "writev": 20, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "dup": 32, "dup2": 33, "nanosleep": 35, "getitimer": 36, "getpid": 39, "exit": 60,
        "uname": 63, "gettimeofday": 96, "getrlimit": 97, "getrusage": 98, "times": 100,
        "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110,
        "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
        "set_tid_address": 218, "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230,
        "exit_group": 231, "set_robust_list": 273, "dup3": 292, "getrandom": 318,
        "membarrier": 324, "rseq": 334,
    },
    {
        "open": 2, "stat": 4, "lstat": 6, "pwrite64": 18, "access": 21, "fsync": 74,
        "fdatasync": 75, "ftruncate": 77, "getcwd": 79, "chdir": 80, "rename": 82, "mkdir": 83,
        "rmdir": 84, "unlink": 87, "symlink": 88, "readlink": 89, "umask": 95, "statfs": 137,
        "fstatfs": 138, "getdents64": 217, "fadvise64": 221, "openat": 257, "mkdirat": 258,
        "newfstatat": 262, "unlinkat": 263, "renameat": 264, "symlinkat": 266, "readlinkat": 267,
        "faccessat": 269, "renameat2": 316, "statx": 332, "faccessat2": 439,
    },
    {
        "poll": 7, "pipe": 22, "select": 23, "execve": 59, "wait4": 61, "chmod": 90, "fchmod": 91,
        "sysinfo": 99, "getgroups": 115, "getresuid": 118, "getresgid": 120, "capget": 125,
        "sched_getparam": 143, "sched_getscheduler": 145, "sched_get_priority_max": 146,
        "sched_get_priority_min": 147, "arch_prctl": 158, "restart_syscall": 219,
        "epoll_wait": 232, "epoll_ctl": 233, "tgkill": 234, "waitid": 247, "fchmodat": 268,
        "pselect6": 270, "ppoll": 271, "utimensat": 280, "epoll_pwait": 281, "eventfd2": 290,
        "epoll_create1": 291, "pipe2": 293,
    },
    {"fork": 57, "vfork": 58, "kill": 62, "setpgid": 109, "getpgrp": 111, "getpgid": 121},
    {
        "pause": 34, "alarm": 37, "setitimer": 38, "sendfile": 40, "flock": 73, "truncate": 76,
        "fchdir": 81, "link": 86, "chown": 92, "fchown": 93, "lchown": 94, "setsid": 112,
        "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130,
        "tkill": 200, "timer_create": 222, "timer_settime": 223, "timer_gettime": 224,
        "timer_getoverrun": 225, "timer_delete": 226, "fchownat": 260, "linkat": 265,
        "fallocate": 285, "copy_file_range": 326,
    },
    {
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "getxattr": 191, "lgetxattr": 192,
        "fgetxattr": 193, "listxattr": 194, "llistxattr": 195, "flistxattr": 196,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199,
    },
    {
        "ioctl": 16, "socketpair": 53, "clone": 56, "fcntl": 72, "prlimit64": 302, "clone3": 435,
    },
)  # fmt: skip
_AARCH64 = Calls(
    0xC00000B7,
    {
        "dup": 23, "dup3": 24, "close": 57, "lseek": 62, "read": 63, "write": 64, "readv": 65,
        "writev": 66, "pread64": 67, "fstat": 80, "exit": 93, "exit_group": 94,
        "set_tid_address": 96, "futex": 98, "set_robust_list": 99, "nanosleep": 101,
        "getitimer": 102, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
        "sched_getaffinity": 123, "sched_yield": 124, "sigaltstack": 132, "rt_sigaction": 134,
        "rt_sigprocmask": 135, "rt_sigreturn": 139, "times": 153, "uname": 160, "getrlimit": 163,
        "getrusage": 165, "gettimeofday": 169, "getpid": 172, "getppid": 173, "getuid": 174,
        "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "brk": 214, "munmap": 215,
        "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278,
        "membarrier": 283, "rseq": 293,
    },
    {
        "getcwd": 17, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "renameat": 38, "statfs": 43,
        "fstatfs": 44, "ftruncate": 46, "faccessat": 48, "chdir": 49, "openat": 56,
        "getdents64": 61, "pwrite64": 68, "readlinkat": 78, "newfstatat": 79, "fsync": 82,
        "fdatasync": 83, "umask": 166, "fadvise64": 223, "renameat2": 276, "statx": 291,
        "faccessat2": 439,
    },
    {
        "eventfd2": 19, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "fchmod": 52,
        "fchmodat": 53, "pipe2": 59, "pselect6": 72, "ppoll": 73, "utimensat": 88, "capget": 90,
        "waitid": 95, "sched_getscheduler": 120, "sched_getparam": 121,
        "sched_get_priority_max": 125, "sched_get_priority_min": 126, "restart_syscall": 128,
        "tgkill": 131, "getresuid": 148, "getresgid": 150, "getgroups": 158, "sysinfo": 179,
        "execve": 221, "wait4": 260,
    },
    {"kill": 129, "setpgid": 154, "getpgid": 155},
    {
        "flock": 32, "linkat": 37, "truncate": 45, "fallocate": 47, "fchdir": 50, "fchownat": 54,
        "fchown": 55, "sendfile": 71, "setitimer": 103, "timer_create": 107, "timer_gettime": 108,
        "timer_getoverrun": 109, "timer_settime": 110, "timer_delete": 111, "tkill": 130,
        "rt_sigsuspend": 133, "rt_sigpending": 136, "rt_sigtimedwait": 137, "getsid": 156,
        "setsid": 157, "copy_file_range": 285,
    },
    {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "getxattr": 8, "lgetxattr": 9,
        "fgetxattr": 10, "listxattr": 11, "llistxattr": 12, "flistxattr": 13, "removexattr": 14,
        "lremovexattr": 15, "fremovexattr": 16,
    },
    {
        "fcntl": 25, "ioctl": 29, "socketpair": 199, "clone": 220, "prlimit64": 261, "clone3": 435,
    },
)  # fmt: skip
MACHINES: Mapping[str, Calls] = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""By `platform.machine()`."""
