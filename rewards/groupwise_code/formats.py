"""Formats: the tests of a row, as published data sets hold them, told by their columns."""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from groupwise_code import assertions, contests
from groupwise_code.problem import Case, FormatError, Printing
from groupwise_code.values import call, case, column, value
from groupwise_sandbox.languages import LANGUAGES, named

MOST = 10_000
"""Cases of a row."""


def cases_of(row: Mapping[str, Any]) -> list[Case]:
    """The cases of a row. Raises FormatError where its tests cannot be read, or it has none."""
    name = next((name for name in FORMATS if row.get(name) not in (None, "", [])), None)
    if name is None:
        raise FormatError(f"no tests: expected one of the columns {', '.join(FORMATS)}")
    try:
        cases = [_checked(each, row) for each in FORMATS[name](row)]
    except FormatError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"the column {name!r} is not of its format: {error!r}") from error
    if not cases:
        raise FormatError(f"the column {name!r} holds no test")
    if len(cases) > MOST:
        raise FormatError(f"the column {name!r} holds {len(cases):,} tests, at most {MOST:,}")
    return cases


def language_of(row: Mapping[str, Any], name: str) -> str | None:
    """What a row, or its column of that name, says of the language of its programs."""
    own = column(row, "verification_info") if row.get("verification_info") else {}
    language = own.get("language") or row.get(name)
    return str(language) if language else None


def supported(name: str) -> str:
    """The language of ours that a row names. Raises FormatError for another one."""
    if (language := named(name)) is None:
        titles = ", ".join(each.title for each in LANGUAGES.values())
        raise FormatError(f"programs in {name!r}: only Python, {titles} are run")
    return language


def _checked(case: Case, row: Mapping[str, Any]) -> Case:
    """A case with the row's checker, if it has one."""
    code = row.get("generated_checker") or row.get("checker")
    if not code or not isinstance(case, Printing):
        return case
    try:
        tree = ast.parse(code)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise FormatError(f"the row's checker is not Python: {error}") from error
    if runs := assertions.runs_answers(tree):
        raise FormatError(f"the row's checker uses {runs}, which may run what a program prints")
    return replace(case, checker=code)


def _verification(row: Mapping[str, Any]) -> Iterable[Case]:
    """open-r1, SYNTHETIC: {"language", "test_cases": [{"type", "fn_name", "input", "output"}]}."""
    return _listed(column(row, "verification_info")["test_cases"])


def _listed(data: Any) -> Iterable[Case]:
    """prime-rl: a list of cases like those of `_verification`."""
    return [case(each.get("fn_name"), each["input"], each["output"]) for each in data]


def _paired(data: Any) -> Iterable[Case]:
    """APPS, TACO and verl: {"inputs": [...], "outputs": [...], "fn_name"}."""
    name, outputs = data.get("fn_name"), data["outputs"]
    if name:
        outputs = _unwrapped([value(each) for each in outputs])
    for given, expected in zip(data["inputs"], outputs, strict=True):
        yield call(name, value(given), expected) if name else case(None, given, expected)


def _unwrapped(outputs: list[Any]) -> list[Any]:
    """APPS has rows in which what a function returns is wrapped into a list of one: all of them,
    since a function may also return a list that happens to have one value."""
    is_wrapped = all(isinstance(each, list) and len(each) == 1 for each in outputs)
    return [each[0] for each in outputs] if is_wrapped else outputs


def _ground_truth(row: Mapping[str, Any]) -> Iterable[Case]:
    data = column(row, "ground_truth")
    if isinstance(data, list):
        return _listed(data)
    if "assert_case" in data:
        return assertions.each_of(data["assert_case"], row)
    return _paired(data)


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Iterable[Case]]] = {
    "verification_info": _verification,
    "input_output": lambda row: _paired(column(row, "input_output")),
    "ground_truth": _ground_truth,
    "test_cases": lambda row: _listed(column(row, "test_cases")),
    "private_test_cases": contests.live_code_bench,
    "public_test_cases": contests.live_code_bench,
    "official_tests": contests.codeforces,
    "private_tests": contests.code_contests,
    "public_tests": contests.code_contests,
    "test_list": assertions.listed,
    "test": assertions.module,
    "test_code": assertions.module,
    "examples": contests.codeforces,
}
"""By the column that tells a format, in the order in which they are looked for."""
OTHERS = (
    *("checker", "entry_point", "generated_checker", "generated_tests", "input_file", "input_mode"),
    *("interaction_format", "metadata", "output_file", "test_imports"),
    "test_setup_code",
)
"""Columns that belong to one of these."""
