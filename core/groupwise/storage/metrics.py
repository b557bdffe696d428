"""Metrics: metrics.jsonl, with one line of JSON per step."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from groupwise.storage.disk import only_files, read_text, write


class MetricsFile:
    """Appends one line per step; after a kill, only the last line can be incomplete.

    dropped: by step, the first line of each that `truncate_after` dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dropped: dict[int, Mapping[str, Any]] = {}

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        line = json.dumps({"step": step, **{k: finite(v) for k, v in metrics.items()}})
        with open(self.path, "a", encoding="utf-8", opener=only_files) as file:
            file.write(line + "\n")

    def read(self) -> list[dict[str, Any]]:
        """A record for each step: its line, with an evaluation that has a line of its own."""
        records: dict[int, dict[str, Any]] = {}
        for line in self._lines()[0]:
            records.setdefault(line["step"], {}).update(line)
        return [*records.values()]

    def truncate_after(self, step: int) -> str | None:
        """Drop lines of later steps, which a resumed run writes again; a note on damaged lines."""
        if not os.path.lexists(self.path):  # a broken link is replaced by a file
            return None
        lines, damaged = self._lines()
        self.dropped = {line["step"]: line for line in reversed(lines) if line["step"] > step}
        self._replace([line for line in lines if line["step"] <= step])
        return f"{damaged} lines of {self.path} are damaged and were dropped" if damaged else None

    def write_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the evaluation of a step, or replace one of that step by an interrupted run."""
        lines, _ = self._lines()
        of_step = [line for line in lines if line["step"] == step]
        before = [line for line in of_step if line.keys() & metrics.keys()]
        if before:
            before[-1].update({key: finite(value) for key, value in metrics.items()})
            self._replace(lines)
        else:
            self.write(step, metrics)

    def _lines(self) -> tuple[list[dict[str, Any]], int]:
        """All valid lines, and the number of damaged ones, not counting an incomplete last line."""
        text = read_text(self.path, errors="replace") if self.path.exists() else ""
        *whole, half = text.split("\n")
        records = [_record(line) for line in whole if line]
        lines = [record for record in records if record is not None]
        last = _record(half)
        return [*lines, *([] if last is None else [last])], len(records) - len(lines)

    def _replace(self, lines: Iterable[Mapping[str, Any]]) -> None:
        write(self.path, "".join(json.dumps(line) + "\n" for line in lines))


def _record(line: str) -> dict[str, Any] | None:
    """A line of metrics as a record; None for anything else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_line = isinstance(record, dict) and type(record.get("step")) is int
    return record if is_line else None


def finite(value: Any) -> Any:
    """A value for JSON: null for NaN and infinity; floats at six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def as_json(record: Mapping[str, Any]) -> str:
    """A nested record as indented JSON."""

    def clean(value: Any) -> Any:
        inner = isinstance(value, Mapping)
        return {k: clean(v) for k, v in value.items()} if inner else finite(value)

    return json.dumps(clean(record), indent=2) + "\n"
