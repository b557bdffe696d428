"""RunData: what a run wrote into its folder, read as far as possible.

A run may have been killed at any time, so a missing file or a damaged line is no error here.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from groupwise.storage.files import METRICS, RESULT, RUN_INFO, TRAINING
from groupwise.storage.run_info import masked_text, no_run, settings_of, starts
from groupwise_report.wording import display, number

MOST_STEPS = 10**9
MOST_OF_CONFIG = 100_000  # characters
LONGEST = 300  # digits; longer whole numbers do not fit a float
DEEPEST = 20
Row = Mapping[str, object]
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """The content of a run's folder.

    accuracy: the reward that tells right from wrong, "" if there is none or it is not known;
    config: config.yaml; steps: metrics by step, in order; result: result.json; samples: by "before"
    and "after"; unreadable: the number of damaged lines of metrics; training: completions of
    training steps; starts: by which commands the run was started, with packages and devices.
    """

    folder: Path
    config: str
    steps: Mapping[int, Row]
    result: Row
    samples: Mapping[str, Sequence[Row]]
    unreadable: int
    training: Sequence[Row] = ()
    starts: Sequence[Row] = ()
    accuracy: str = ""

    @property
    def accuracy_title(self) -> str:
        """ "Accuracy", with the name of the reward that tells right from wrong."""
        return titled_accuracy([self])

    @property
    def last_step(self) -> int:
        return max(self.steps, default=0)

    @property
    def trained_steps(self) -> int:
        return sum(step > 0 for step in self.steps)

    @property
    def progress(self) -> str:
        """The number of steps done, as "60 steps", or "12 of 60 steps" before the end."""
        ended = number(self.result.get("steps"))
        count = ended or self.trained_steps
        shown = f"{int(count):,}" if abs(count) < 1e12 else display(count)
        train = self.settings.get("train")
        whole = number(train.get("steps")) if isinstance(train, Mapping) else None
        of = f" of {whole:,.0f}" if whole and not ended and count < whole < 1e12 else ""
        return f"{shown}{of} step{'' if count == 1 and not of else 's'}"

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.resolve().name

    @property
    def step_seconds(self) -> list[Point]:
        """(step, seconds): the sum of the step's phases."""
        phases = [f"time/{name}" for name in self.names("time/")]
        took = [
            (step, [number(row.get(phase)) for phase in phases]) for step, row in self.steps.items()
        ]
        return [
            (step, sum(value for value in values if value is not None))
            for step, values in took
            if step and any(value is not None for value in values)
        ]

    @property
    def unit(self) -> str:
        """The policy's word for decisions: tokens, for example."""
        return str(self.result.get("unit") or "decisions")

    @cached_property
    def has_one_length(self) -> bool:
        """Whether all completions have as many decisions, as a flow model's pictures."""
        of_learners = (f"{label}/length" for label in self.learners)
        keys = ("length", "length_max", "evaluation/length", *of_learners)
        return len({length for key in keys for _, length in self.points(key)}) == 1

    @property
    def warnings(self) -> list[str]:
        """What the run warned of, as it said it."""
        noted = self.result.get("warnings")
        return [each for each in noted if isinstance(each, str)] if isinstance(noted, list) else []

    def points(self, key: str) -> list[Point]:
        values = ((step, number(row.get(key))) for step, row in self.steps.items())
        return [(step, value) for step, value in values if value is not None]

    def names(self, prefix: str) -> list[str]:
        """Names of metrics with this prefix in any step, without it, in order of appearance."""
        return [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]

    @cached_property
    def _keys(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.steps.values() for key in row))

    @cached_property
    def settings(self) -> Mapping[str, object]:
        """The configuration, of a very long one the first keys; {} if it cannot be read."""
        return settings_of(_beginning(self.config))

    @cached_property
    def learners(self) -> list[str]:
        """The labels of several policies; [] in a run of one."""
        sections = self.settings.get("players")
        listed = sections if isinstance(sections, list) else []
        return [str(each["label"]) for each in listed if _has_label(each)]

    @property
    def is_chain(self) -> bool:
        """Whether each of several policies completes what the one before wrote."""
        environment = self.settings.get("environment")
        return isinstance(environment, Mapping) and environment.get("name") == "chain"

    @property
    def shown_config(self) -> str:
        """The configuration as text, with secrets masked."""
        text = _beginning(self.config)
        left_out, shown = len(self.config) - len(text), masked_text(text, self.settings)
        return f"{shown}\n[{left_out:,} characters left out]" if left_out else shown

    def configured(self, key: str) -> str:
        """A top-level value of the configuration, or the `name` inside it."""
        if isinstance(self.result.get(key), str):
            return str(self.result[key])
        value = self.settings.get(key)
        value = value.get("name") if isinstance(value, Mapping) else value
        return "" if value is None else str(value)

    def evaluations(self) -> tuple[Row, Row, str]:
        """The first and the last evaluation, and a note on the last if training did not end."""
        before, after = self.result.get("before"), self.result.get("after")
        if isinstance(before, dict) and isinstance(after, dict) and after:
            counts = dict(self.points("evaluation/prompts")).values()
            common = {"prompts": max(counts)} if counts else {}
            return common | _unprefixed(before), common | _unprefixed(after), ""
        rows = {step: _evaluated(row) for step, row in sorted(self.steps.items())}
        evaluated = {step: row for step, row in rows.items() if row}
        if len(evaluated) < 2:
            return evaluated[min(evaluated)] if evaluated else {}, {}, ""
        last = max(evaluated)
        return evaluated[min(evaluated)], evaluated[last], f"after step {last}"


def _has_label(section: object) -> bool:
    return isinstance(section, Mapping) and "label" in section


def _evaluated(row: Row) -> dict[str, object]:
    return _unprefixed({key: row[key] for key in row if key.startswith("evaluation/")})


def _unprefixed(row: Row) -> dict[str, object]:
    return {key.removeprefix("evaluation/"): value for key, value in row.items()}


def check_runs(folders: Sequence[Path]) -> None:
    """Raise ValueError for a folder without a run; a run without any step is accepted."""
    for folder in folders:
        if not any((folder / name).is_file() for name in (RUN_INFO, METRICS)):
            raise ValueError(no_run(folder, RUN_INFO))


def read_run(run: Path) -> RunData:
    """The content of a run's folder, as far as it can be read."""
    rows, unreadable = read_lines(run / METRICS)
    steps: dict[int, dict[str, object]] = {}
    for row in rows:
        step = number(row.get("step"))
        is_step = step is not None and 0 <= step <= MOST_STEPS
        key = int(step) if step is not None and is_step else max(steps, default=0) + 1
        steps.setdefault(key, {}).update(row)  # a resumed run repeats steps: the last line counts
    result, _ = read_lines(run / RESULT, whole=True)
    sides = {side: read_lines(run / "samples" / f"{side}.jsonl") for side in ("before", "after")}
    info, _ = read_lines(run / RUN_INFO, whole=True)
    return RunData(
        folder=run,
        config=read_text(run / "config.yaml"),
        steps=dict(sorted(steps.items())),
        result=result[0] if result else {},
        samples={side: rows for side, (rows, _) in sides.items()},
        unreadable=unreadable,
        training=read_lines(run / TRAINING)[0],
        starts=starts(run),
        accuracy=named_accuracy(*info, *result),
    )


def titled_accuracy(runs: "Sequence[RunData]") -> str:
    """ "Accuracy", with the names of the rewards that tell right from wrong in these runs."""
    names = dict.fromkeys(run.accuracy for run in runs if run.accuracy)
    return f"Accuracy ({', '.join(names)})" if names else "Accuracy"


def named_accuracy(*records: Row) -> str:
    """The reward that tells right from wrong, as the last of these records names it; else ""."""
    names = [record.get("accuracy") for record in records]
    return next((name for name in reversed(names) if isinstance(name, str)), "")


def read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def read_lines(path: Path, *, whole: bool = False) -> tuple[list[dict[str, object]], int]:
    """The JSON objects of a file, one a line (or the whole file), and how many were damaged."""
    content = read_text(path)
    lines = [content] if whole else content.split("\n")
    objects, damaged = [], 0
    for line in filter(str.strip, lines):
        try:
            value = _shallow(json.loads(line, parse_int=_integer))
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            objects.append(value)
        else:
            damaged += 1
    return objects, damaged


def _beginning(config: str) -> str:
    """The first lines of a configuration, as many as a page may have."""
    if len(config) <= MOST_OF_CONFIG:
        return config
    return config[:MOST_OF_CONFIG].rpartition("\n")[0]


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST else math.inf


def _shallow(value: object, depth: int = 0) -> object:
    """The value; what is nested too deeply is replaced by an ellipsis."""
    if not isinstance(value, dict | list):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {key: _shallow(inner, depth + 1) for key, inner in value.items()}
    return [_shallow(inner, depth + 1) for inner in value]
