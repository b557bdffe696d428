"""Together: a repository's own tests, run by pytest in one process with what a model wrote.

Code in that process may forge what pytest prints: docs/code.md has what still wins.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import quote
from typing import Any

from groupwise.kit.foreign_json import read as read_json
from groupwise_code.problem import FormatError
from groupwise_code.values import column
from groupwise_sandbox.harbor import REWARDS, Task
from groupwise_sandbox.sandbox import Sandbox
from groupwise_sandbox.shell import Setting
from groupwise_sandbox.tree import Edits, Tree, edited, name_of

OF_PYTEST = ("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
OF_PYTHON = ("sitecustomize.py", "usercustomize.py", "pytest.py", "_pytest")
_RUN = (
    "import sys, pytest; sys.path[:0] = ['', 'src'];"
    " sys.exit(pytest.main(['-q', '-rpsxXEf', '--tb=line', '--show-capture=no',"
    " '-p', 'no:cacheprovider', *sys.argv[1:]]))"
)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S.*?)(?: - .*)?$", re.MULTILINE)
_SUMMARY = "short test summary info"
_OF_PATCH = re.compile(r"^(?:---|\+\+\+) [ab]/(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Together:
    """The tests of a row, as its columns have them."""

    expected: Mapping[str, str]
    """By test: the word that pytest says of it."""
    files: Mapping[str, str]
    """Of the tests."""
    patch: str
    """Which makes them, if there are no files."""

    @property
    def names(self) -> set[str]:
        """The files that are the tests', whatever an episode made of them."""
        return {*self.files, *_OF_PATCH.findall(self.patch)}


def together_of(row: Mapping[str, Any]) -> Together:
    """SWE-bench: `FAIL_TO_PASS`, `PASS_TO_PASS` and `test_patch`; R2E: `expected_output_json`; with
    `test_files` in place of a patch. Raises FormatError."""
    if row.get("expected_output_json"):
        expected = dict(column(row, "expected_output_json"))
    else:
        names = [
            name
            for each in ("FAIL_TO_PASS", "PASS_TO_PASS")
            for name in (column(row, each) if row.get(each) else ())
        ]
        expected = dict.fromkeys(map(str, names), "PASSED")
    if not expected:
        raise FormatError("it names no test that has to pass")
    if django := [each for each in expected if re.search(r" \([\w.]+\)$", each)]:
        raise FormatError(f"its tests are not run by pytest: {django[0]!r}")
    texts = (row.get("test_files") or {}).items()
    files = {name_of(name): text for name, text in texts if text is not None}
    patch = row.get("test_patch") or ""
    if not files and not patch:
        raise FormatError("it has no tests: expected `test_files` or `test_patch`")
    for name in _OF_PATCH.findall(patch):
        name_of(name)  # which raises
    return Together(expected, files, "" if files else patch)


def failures(
    sandbox: Sandbox, tests: Together, before: Tree, edits: Edits, setting: Mapping[str, Any]
) -> Sequence[str]:
    """The tests that do not end as they should, run in a fresh copy of the files.

    Raises FormatError for a patch that does not fit, and SandboxError.
    """
    after = _cleaned(before, edited(before, edits), tests)
    with sandbox.shell(Setting(files=after, space=(64 << 20) + _size(after), **setting)) as shell:
        if tests.patch:
            applied = shell.run("git apply --whitespace=nowarn -", stdin=tests.patch)
            if applied.status != 0:
                words = applied.stdout.decode("utf-8", "replace").strip()
                raise FormatError(f"its test_patch does not fit its files: {words[-200:]}")
        modules = sorted(name for name in tests.names if name.endswith(".py"))
        command = " ".join(["python3 -P -c", quote(_RUN), *map(quote, modules)])
        printed = shell.run(command).stdout.decode("utf-8", "replace")
    said = dict[str, str]()
    for word, name in _LINE.findall(printed.rpartition(_SUMMARY)[2]):
        for each in (name, _short(name)):
            # A test that is named twice is what it is worst.
            said[each] = word if said.get(each) in (None, "PASSED") else said[each]
    return [name for name, word in tests.expected.items() if said.get(name) != word]


def task_failure(
    sandbox: Sandbox, task: Task, edits: Edits, setting: Mapping[str, Any]
) -> str | None:
    """What a task's tests print last where their reward is less than 1. Raises SandboxError."""
    files = edited(task.files, edits)
    own = Setting(
        files=files,
        temporary={f"tests/{name}": data for name, data in task.tests.items()},
        links=task.links,
        space=(64 << 20) + _size(files) + _size(task.tests),
        **setting,
    )
    with sandbox.shell(own) as shell:
        shell.run(
            f"mkdir -p /tmp/logs/verifier && cd {quote(task.place)} && "
            "bash /tests/test.sh > /tmp/log 2>&1"
        )
        said = shell.run(f"cat {' '.join(REWARDS)} 2>/dev/null").stdout
        if _rewarded(said.decode("utf-8", "replace")):
            return None
        return shell.run("tail -c 200 /tmp/log").stdout.decode("utf-8", "replace").strip() or "none"


def _rewarded(text: str) -> bool:
    """Whether each reward that was written, a number or by names, is at least 1."""
    try:
        value = read_json(text)
        values = value.values() if isinstance(value, Mapping) else [value]
        return bool(values) and all(float(each) >= 1 for each in values)
    except (TypeError, ValueError):
        return False


def _cleaned(before: Tree, after: Tree, tests: Together) -> Tree:
    """The files, with the row's own tests and configuration of pytest in place of others."""
    kept = {name: data for name, data in after.items() if not _is_held(name, tests)}
    held = {name: data for name, data in before.items() if _is_held(name, tests)}
    return {**kept, **held, **{name: text.encode() for name, text in tests.files.items()}}


def _is_held(name: str, tests: Together) -> bool:
    parts = PurePosixPath(name).parts
    is_path_file = name.endswith((".pth", ".pyc", ".so"))
    is_python = parts[0] in OF_PYTHON or parts[-1] in OF_PYTHON
    return name in tests.names or parts[-1] in OF_PYTEST or is_python or is_path_file


def _short(name: str) -> str:
    """R2E's name of a test: without its file, and with points."""
    return ".".join(name.split("::")[1:])


def _size(files: Tree) -> int:
    return sum(map(len, files.values()))
