"""Contests: the tests of LiveCodeBench's, Codeforces' and code_contests' rows."""

import zlib
from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import Any

from groupwise.kit.foreign_json import read as read_json
from groupwise_code.pickled import text_of
from groupwise_code.problem import Case, FormatError
from groupwise_code.values import case, column

MOST_BYTES = 256 << 20
"""Of a row's private tests, when they are decompressed."""


def live_code_bench(row: Mapping[str, Any]) -> Iterable[Case]:
    """LiveCodeBench: [{"input", "output", "testtype"}] of `public_test_cases` as JSON, and of
    `private_test_cases` as JSON or packed; `metadata` names the function of functional ones."""
    public = column(row, "public_test_cases") if row.get("public_test_cases") else []
    name = (column(row, "metadata") if row.get("metadata") else {}).get("func_name")
    for each in [*public, *_private(row.get("private_test_cases") or [])]:
        is_call = each["testtype"] == "functional"
        if is_call and not name:
            raise FormatError("functional tests, and no func_name in the column 'metadata'")
        yield case(name if is_call else None, each["input"], each["output"])


def codeforces(row: Mapping[str, Any]) -> Iterable[Case]:
    """open-r1/codeforces: [{"input", "output"}] of `official_tests`, or of `examples` alone."""
    if row.get("input_mode") == "file":
        raise FormatError("the program is to read and write files, which it cannot")
    if row.get("interaction_format"):
        raise FormatError("the program is to talk with another one, which it cannot")
    name = "official_tests" if row.get("official_tests") else "examples"
    return [case(None, each["input"], each["output"]) for each in column(row, name)]


def code_contests(row: Mapping[str, Any]) -> Iterable[Case]:
    """code_contests: {"input": [...], "output": [...]} of the public, private and generated."""
    for name in ("input_file", "output_file"):
        if row.get(name):
            raise FormatError(f"{name}: the program is to read and write files, which it cannot")
    for name in ("public_tests", "private_tests", "generated_tests"):
        if row.get(name):
            tests = column(row, name)
            for given, expected in zip(tests["input"], tests["output"], strict=True):
                yield case(None, given, expected)


def _private(data: Any) -> Any:
    if not isinstance(data, str):
        return data
    if data.startswith("["):
        return read_json(data)
    # As published: base64 of a zlib stream of a pickle of a text, which is JSON.
    stream = zlib.decompressobj()
    try:
        pickled = stream.decompress(b64decode(data, validate=True), MOST_BYTES)
    except zlib.error as error:
        raise FormatError(f"the column 'private_test_cases' is not packed: {error}") from error
    if not stream.eof:
        raise FormatError(
            "the column 'private_test_cases' is cut off, or has more than "
            f"{MOST_BYTES >> 20} MiB when it is decompressed"
        )
    return read_json(text_of(pickled))
