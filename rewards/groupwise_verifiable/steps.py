"""Steps of reasoning: where a text has them, and rewards that judge them one by one."""

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from groupwise.rewards import SampleErrors
from groupwise_verifiable.completion import content

ENDS = "character_ends"
"""The fact of a language model by which characters become decisions."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """end: characters of the completion up to the step's end, what closes it included; None where
    nothing closes it but the end of the completion."""

    text: str
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Marks:
    r"""By what steps are told apart: one of the first three.

    separator: what closes a step: "\n" for lines, "\n\n" for paragraphs.
    pattern: a regular expression, each match of which is a step. It is applied to what a model
        wrote: one that backtracks may take very long.
    tag: steps are what stands in `<tag>...</tag>`.
    inside: a tag outside of which there are no steps, `think` say; see `region`.

    Blank steps are none.
    """

    separator: str | None = None
    pattern: str | None = None
    tag: str | None = None
    inside: str | None = None

    def __post_init__(self) -> None:
        chosen = [name for name in ("separator", "pattern", "tag") if getattr(self, name)]
        if len(chosen) != 1:
            raise ValueError(
                f"steps are marked by one of separator, pattern and tag, found "
                f"{' and '.join(chosen) or 'none of them'}"
            )
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ValueError(
                f"steps: the pattern {self.pattern!r} is no regular expression: {error}"
            ) from None

    def steps(self, text: str) -> list[Step]:
        """The steps of a completion's text, in order."""
        start, stop, closed = region(text, self.inside)
        if self.pattern:
            matches = re.compile(self.pattern).finditer(text, start, stop)
            every = iter([Step(text=match.group(), end=match.end()) for match in matches])
        elif self.tag:
            every = _between(text, f"<{self.tag}>", f"</{self.tag}>", start, stop)
        else:
            assert self.separator
            every = _parts(text, self.separator, start, stop, closed)
        return [step for step in every if step.text.strip()]


def region(text: str, tag: str | None) -> tuple[int, int, int | None]:
    """Where in a text steps may be: its first character, the one after its last, and its end.

    The end is that of the closing tag, and None where the completion ends it. With a tag this is
    what stands in the first `<tag>...</tag>`; one that is only closed was opened in the prompt,
    one that is only opened goes on to the end, and without either there is no such place. Without
    a tag it is the whole text.
    """
    if tag is None:
        return 0, len(text), None
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.find(opening)
    start = 0 if start < 0 else start + len(opening)
    stop = text.find(closing, start)
    if stop < 0:
        return (start if start else len(text)), len(text), None
    return start, stop, stop + len(closing)


def _parts(text: str, separator: str, start: int, stop: int, closed: int | None) -> Iterator[Step]:
    """What separators close, and what is left after the last of them."""
    while (place := text.find(separator, start, stop)) >= 0:
        yield Step(text=text[start:place], end=place + len(separator))
        start = place + len(separator)
    yield Step(text=text[start:stop], end=closed)


def _between(text: str, opening: str, closing: str, start: int, stop: int) -> Iterator[Step]:
    """An opening tag takes everything up to the next closing one."""
    while (first := text.find(opening, start, stop)) >= 0:
        first += len(opening)
        last = text.find(closing, first, stop)
        if last < 0:
            return
        start = last + len(closing)
        yield Step(text=text[first:last], end=start)


def by_decision(
    steps: Sequence[Step], values: Sequence[float | None], ends: Sequence[int]
) -> list[float | None]:
    """What a process reward returns of a completion: for each decision the reward of the step that
    it ends, None where it ends none.

    values: of each step; ends: for each decision the characters written by then. A step is ended
    by the decision that writes its last character, though it may begin the next. One that only the
    completion ends is ended by its last decision, the stop token. Where a decision ends several
    steps, it has the sum of their rewards.
    """
    rewards: list[float | None] = [None] * len(ends)
    if not rewards:
        return rewards
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            place = len(ends) - 1 if step.end is None else bisect_left(ends, step.end)
            rewards[place] = (rewards[place] or 0.0) + value
    return rewards


def stepwise(
    *,
    separator: str | None = None,
    pattern: str | None = None,
    tag: str | None = None,
    inside: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a process reward of a function that judges steps; for the arguments see `Marks`.

    The function, async or not, is called as a reward is, with `steps` in place of completions: of
    each completion the list of its steps, texts in order. It returns a list of numbers for each, as
    long as that list, where None leaves a step without a reward; or None for a completion that it
    does not apply to. Further arguments are columns, facts and settings, as any reward's.
    """
    marks = Marks(separator=separator, pattern=pattern, tag=tag, inside=inside)

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = _signature(function)
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def reward(*arguments: Any, **columns: Any) -> list[Any]:
                call = _Call(function, marks, signature.bind(*arguments, **columns))
                with call.failures():
                    return call.rewards(await function(**call.arguments))
        else:

            @wraps(function)
            def reward(*arguments: Any, **columns: Any) -> list[Any]:
                call = _Call(function, marks, signature.bind(*arguments, **columns))
                with call.failures():
                    return call.rewards(function(**call.arguments))

        reward.__signature__ = signature  # type: ignore[attr-defined]
        reward.judges = False  # type: ignore[attr-defined]
        return reward

    return made


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """That of a function of steps as a reward: it needs completions, and where decisions end."""
    own = inspect.signature(function).parameters
    if "steps" not in own:
        raise ValueError(
            f"stepwise: {function.__name__} has no argument `steps`, which is what it judges"
        )
    first = ("prompts", "completions")
    rest = [
        p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
        for name, p in own.items()
        if name not in (*first, ENDS, "steps")
    ]
    return inspect.Signature(
        [
            *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first),
            inspect.Parameter(ENDS, inspect.Parameter.KEYWORD_ONLY),
            *rest,
        ]
    )


class _Call:
    """A function of steps on one batch; arguments: what it is called with."""

    def __init__(
        self, function: Callable[..., Any], marks: Marks, bound: inspect.BoundArguments
    ) -> None:
        self.name = function.__name__
        whole = {**bound.arguments, **bound.kwargs}
        self.ends: Sequence[Sequence[int]] = whole[ENDS]
        self.steps = [marks.steps(content(one)) for one in whole["completions"]]
        whole["steps"] = [[step.text for step in steps] for steps in self.steps]
        own = inspect.signature(function).parameters.values()
        every = any(p.kind is p.VAR_KEYWORD for p in own)
        named = {p.name for p in own if p.kind is not p.VAR_KEYWORD}
        gathered = {p.name for p in own if p.kind is p.VAR_KEYWORD}
        self.arguments = {
            name: value
            for name, value in whole.items()
            if name in named or (every and name not in gathered)
        }

    def rewards(self, values: Any) -> list[Any]:
        """Of each completion its decisions' rewards; ValueError for what does not fit its steps."""
        rows = list(values)
        if len(rows) != len(self.steps):
            raise ValueError(
                f"{self.name} returned {len(rows)} lists for {len(self.steps)} completions"
            )
        return [
            self._row(number, *row)
            for number, row in enumerate(zip(self.steps, rows, self.ends, strict=True))
        ]

    def _row(
        self, number: int, steps: Sequence[Step], values: Any, ends: Sequence[int]
    ) -> list[float | None] | None:
        if values is None:
            return None
        row = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(row, list | tuple) or len(row) != len(steps):
            kind = f"{len(row)} values" if isinstance(row, list | tuple) else repr(row)
            raise ValueError(
                f"{self.name} returned {kind} for the {len(steps)} steps of completion {number}"
            )
        return by_decision(steps, row, ends)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Where some completions failed, the others' rewards are placed all the same."""
        try:
            yield
        except SampleErrors as error:
            raise SampleErrors(self.rewards(error.values), error.errors) from error
