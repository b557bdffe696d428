"""The payloads in each way of holding a program, as the user that runs this; prints JSON.

    python -m tests.sandbox.attack_table

It has the payloads that won, or the sentence that refuses: of programs without files
("allow-list"), of those with a folder ("namespaces", "landlock"), of commands ("bubblewrap"), and
of a shell's ("shell").
"""

import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tests.sandbox.payloads import (
    IN_A_FOLDER,
    IN_A_SHELL,
    IN_A_VIEW,
    IN_NAMESPACES,
    PAYLOADS,
    SEEN,
    command,
)
from tests.sandbox.payloads import WITH_A_FOLDER as FOLDERS

from groupwise_sandbox.commands import Command
from groupwise_sandbox.folder import WAYS, Way, Ways
from groupwise_sandbox.limits import Limits
from groupwise_sandbox.process import Finished
from groupwise_sandbox.sandbox import Sandbox

SPACE = 1 << 20


def state(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all files of a folder: mode, owner, time of the last change and links."""
    found = {path.name: path.lstat() for path in folder.iterdir()}
    return {
        name: (each.st_mode, each.st_uid, each.st_mtime_ns, each.st_nlink)
        for name, each in found.items()
    }


def won(
    run: Callable[[str], Finished],
    next_run: Callable[[], Finished],
    payloads: Mapping[str, str] = PAYLOADS,
    harmless: Collection[str] = (),
) -> list[str]:
    """The payloads that got what they are after, changed a file, or harmed the next run.

    next_run: prints 42.
    harmless: of these what they print counts for nothing.
    """
    names = list[str]()
    for name, code in payloads.items():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "mine").write_text("mine")
            Path(folder, "mine").chmod(0o666)
            Path(folder).chmod(0o777)
            before = state(Path(folder))
            printed = run(code.replace("FOLDER", folder)).stdout
            is_harmed = next_run().stdout != b"42\n"
            has_won = b"WON" in printed and name not in harmless
            if has_won or state(Path(folder)) != before or is_harmed:
                names.append(name)
    return names


def main() -> None:
    with Sandbox(limits=Limits(seconds=2, memory=256 << 20)) as sandbox:
        ours = won(sandbox.run, lambda: sandbox.run("print(6 * 7)"))
        table: dict[str, object] = {"user": os.getuid(), "allow-list": ours}
        for way in WAYS:
            sandbox._ways = Ways(sandbox._probed, [way])
            table[way] = sandbox.folder_refusal or in_a_folder(sandbox, way)
        table["bubblewrap"] = sandbox.refusal or in_bubblewrap(sandbox)
        table["shell"] = sandbox.shell_refusal or in_a_shell(sandbox)
    print(json.dumps(table))


def in_a_folder(sandbox: Sandbox, way: Way) -> list[str]:
    harmless = {*IN_A_FOLDER, *(IN_NAMESPACES if way == "namespaces" else ())}
    if way == "landlock" and os.getuid() != 0:
        harmless |= {*SEEN}
    return won(
        lambda code: sandbox.run(code, space=SPACE),
        lambda: sandbox.run("print(6 * 7)", space=SPACE),
        {**PAYLOADS, **FOLDERS},
        harmless,
    )


def in_bubblewrap(sandbox: Sandbox) -> list[str]:
    shell = Command(arguments=("/bin/sh", "-c", "echo 42"))
    return won(
        lambda code: sandbox.command(command(code)),
        lambda: sandbox.command(shell),
        harmless=IN_A_VIEW,
    )


def in_a_shell(sandbox: Sandbox) -> list[str]:
    with sandbox.shell() as shell:
        return won(
            lambda code: shell.run('exec python3 -I -S -c "$(cat)"', stdin=code),
            lambda: shell.run("echo 42"),
            harmless=IN_A_SHELL,
        )


if __name__ == "__main__":
    main()
