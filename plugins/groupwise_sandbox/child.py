"""Child: what a process of the sandbox does, from its fork to its end.

It reads its own payload, so that the server that it is forked from never holds one.
"""

import atexit
import builtins
import io
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise_sandbox import (
    bubblewrap,
    confinement,
    crossing,
    event_loop,
    frames,
    objects,
    references,
    shell_folder,
    system_calls,
    tester,
    view,
)
from groupwise_sandbox.confinement import CHANNEL

_STANDARD = {0: "stdin", 1: "stdout", 2: "stderr", "/dev/stdin": "stdin", "/dev/stdout": "stdout"}


def live(descriptors: Sequence[int], server: int) -> None:
    """Run what the channel says, and end the process.

    descriptors: of the channel, and of what it prints, as output and as errors.
    server: the number of the process that this one was forked from.
    """
    status, (channel, output, errors) = 1, descriptors
    try:
        payload = frames.read(channel)
        confinement.take(channel, output, errors, payload["stdin"])
        confinement.reset_signals()
        if payload["mode"] in ("command", "shell"):
            confinement.give_up_rights()
            confinement.end_with(server)
            if os.getuid() == 0:  # whose processes the kernel does not count
                raise PermissionError("root cannot become another user here")
            if payload["mode"] == "shell":
                shell_folder.keep(payload, CHANNEL)
            else:
                bubblewrap.become(payload, CHANNEL)
            os._exit(0)
        streams = _streams(payload.get("files", {}))
        if (folder := payload.get("folder")) is None:
            confinement.limit(payload["seconds"], payload["memory"])
            confinement.give_up_rights()
        else:
            _enter(folder, payload)
        confinement.limit_threads()
        confinement.end_with(server)
        system_calls.restrict("memory" if folder is None else "folder")
        # The first message of each process but a command's, before any code of the program runs:
        # what fails until here is no fault of the program's.
        frames.write(CHANNEL, {"begun": os.getpid()})
        status = _run(payload, streams)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _enter(folder: Mapping[str, Any], payload: Mapping[str, Any]) -> None:
    """Hold this process to its folder, and let the files that messages name cross."""
    seconds, memory = payload["seconds"], payload["memory"]
    confinement.limit(seconds, memory, folder["space"], view.DESCRIPTORS)
    before = view.root(folder)
    confinement.give_up_rights()
    if os.getuid() == 0:  # whom Landlock and namespaces hold less
        raise PermissionError("root cannot become another user here")
    place = view.enter(folder, before)
    crossing.begin(payload["mode"], place, payload.get("initial", {}))


def _streams(files: Mapping[str, str]) -> Mapping[str, io.TextIOWrapper]:
    """Standard streams, made while descriptors can still be looked at.

    files: contents by name, of what `open` reads from memory.
    """
    opened = {
        name: io.TextIOWrapper(
            open(number, "rb" if name == "stdin" else "wb", closefd=False),  # noqa: SIM115
            encoding="utf-8",
            errors="surrogateescape",
            write_through=name == "stderr",
        )
        for number, name in enumerate(("stdin", "stdout", "stderr"))
    }
    sys.stdin, sys.stdout, sys.stderr = opened.values()
    for name, stream in opened.items():
        setattr(sys, f"__{name}__", stream)
    really = io.open

    def opening(file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
        file = os.fspath(file) if isinstance(file, os.PathLike) else file
        if isinstance(file, str) and file in files and not {*mode} & {*"wxa+"}:
            text = files[file]
            return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text, newline=None)
        if isinstance(file, int | str) and file in _STANDARD:
            stream = opened[_STANDARD[file]]
            return stream.buffer if "b" in mode else stream
        return really(file, mode, *others, **named)

    builtins.open = io.open = opening  # programs read `open(0)`
    return opened


def _run(payload: Mapping[str, Any], streams: Mapping[str, io.TextIOWrapper]) -> int:
    """Run the payload's code by its mode; the exit status."""
    sys.argv, sys.path[:] = ["answer.py", *payload.get("arguments", [])], []
    name = "__main__" if payload["mode"] == "program" else "answer"
    module = types.ModuleType(name)
    sys.modules[name] = module
    event_loop.install()
    status = _ended(lambda: _modes[payload["mode"]](payload, module))
    for stream in (streams["stdout"], streams["stderr"]):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 1
    return status


def _ended(program: Callable[[], None]) -> int:
    """The exit status of a program, as an interpreter would end with it."""
    status = 0
    try:
        program()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
        status = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        _show(error)
        status = 1
    atexit._run_exitfuncs()
    return status & 0xFF


def _show(error: BaseException) -> None:
    """Print the traceback of a program, without the frames that called it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _execute(payload: Mapping[str, Any], module: types.ModuleType) -> None:
    exec(compile(payload["code"], "answer.py", "exec"), module.__dict__)


def _serve(payload: Mapping[str, Any], module: types.ModuleType) -> None:
    """Run the code, then answer what is asked of it until the run says no more."""
    try:
        # As builtins: a function of the opening is none of the program's.
        exec(payload["opening"], builtins.__dict__)
        _execute(payload, module)
    except BaseException as error:
        frames.write(CHANNEL, references.error_reply(error))
        raise
    frames.write(CHANNEL, {"defined": sorted(n for n in module.__dict__ if n[:2] != "__")})
    own = payload.get("modules", ())
    objects.Objects(module, refers=payload["refers"], modules=own).serve()


_modes: Mapping[str, Callable[[Mapping[str, Any], types.ModuleType], None]] = {
    "program": _execute,
    "calls": _serve,
    "tests": tester.test,
}
