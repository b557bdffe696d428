"""Steps of reasoning: splitting a text into steps, and process rewards that score each step."""

import inspect
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from groupwise.rewards import SampleErrors
from groupwise_messages.completion import thinking_prefixes, whole_text

ENDS = "character_ends"
"""A language model's fact that maps characters to decisions (tokens)."""
PREFIX = "thinking_prefix"
"""A language model's fact: the thinking that the prompt has begun."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """end: number of characters of the completion up to the end of the step, its separator or
    closing tag included; None where only the end of the completion ends it."""

    text: str
    end: int | None


@dataclass(frozen=True, kw_only=True)
class Marks:
    r"""How a text is split into steps: set one of separator, pattern and tag.

    separator: the string that ends a step: "\n" for lines, "\n\n" for paragraphs.
    pattern: a regular expression; each match is a step. Avoid backtracking: on a model's text it
        may take very long.
    tag: the content of each `<tag>...</tag>` is a step.
    inside: only the text inside this tag has steps, `think` for example; see `region`.

    Blank steps are ignored.
    """

    separator: str | None = None
    pattern: str | None = None
    tag: str | None = None
    inside: str | None = None

    def __post_init__(self) -> None:
        chosen = [name for name in ("separator", "pattern", "tag") if getattr(self, name)]
        if len(chosen) != 1:
            raise ValueError(
                f"steps: set exactly one of separator, pattern and tag, found "
                f"{' and '.join(chosen) or 'none of them'}"
            )
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ValueError(
                f"steps: the pattern {self.pattern!r} is no regular expression: {error}"
            ) from None

    def steps(self, text: str, prefix: str = "") -> list[Step]:
        """The steps of a completion's text, in order; prefix: as for `region`."""
        start, stop, closed = region(text, self.inside, prefix)
        if self.pattern:
            matches = re.compile(self.pattern).finditer(text, start, stop)
            every = iter([Step(text=match.group(), end=match.end()) for match in matches])
        elif self.tag:
            every = _between(text, f"<{self.tag}>", f"</{self.tag}>", start, stop)
        else:
            assert self.separator
            every = _parts(text, self.separator, start, stop, closed)
        return [step for step in every if step.text.strip()]


def region(text: str, tag: str | None, prefix: str = "") -> tuple[int, int, int | None]:
    """The part of a text that has steps, as (start, stop, end after the closing tag or None).

    That is the content of the first `<tag>...</tag>`. Without an opening tag it starts with the
    text (the tag was opened in the prompt); without a closing tag it lasts to the end, and the
    third value is None; without either it is empty. With tag None it is the whole text.

    prefix: text that the prompt has begun and `text` continues; the tag may be in it.
    """
    if tag is None:
        return 0, len(text), None
    opening, closing = f"<{tag}>", f"</{tag}>"
    whole, before = prefix + text, len(prefix)
    start = whole.find(opening)
    start = 0 if start < 0 else start + len(opening)
    stop = whole.find(closing, start)
    if stop < 0:
        return (max(0, start - before) if start else len(text)), len(text), None
    return max(0, start - before), max(0, stop - before), max(0, stop + len(closing) - before)


def _parts(text: str, separator: str, start: int, stop: int, closed: int | None) -> Iterator[Step]:
    """The parts before separators, and the rest after the last one."""
    while (place := text.find(separator, start, stop)) >= 0:
        yield Step(text=text[start:place], end=place + len(separator))
        start = place + len(separator)
    yield Step(text=text[start:stop], end=closed)


def _between(text: str, opening: str, closing: str, start: int, stop: int) -> Iterator[Step]:
    """The contents of tags; an opening tag lasts up to the next closing one."""
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
    """A process reward's values for one completion: for each decision (token) the reward of the
    step that ends with it, None where no step ends.

    values: of each step; ends: for each decision, the number of characters decoded up to it. A step
    ends with the decision that contains its last character, even if that decision also begins the
    next step; if a tool wrote that character, with the next decision. A step without an end of its
    own, or after the last decision, ends with the last decision, the stop token. Several steps that
    end with one decision have their rewards added.
    """
    rewards: list[float | None] = [None] * len(ends)
    if not rewards:
        return rewards
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            last = len(ends) - 1
            place = last if step.end is None else min(last, bisect_left(ends, step.end))
            rewards[place] = (rewards[place] or 0.0) + value
    return rewards


def stepwise(
    *,
    separator: str | None = None,
    pattern: str | None = None,
    tag: str | None = None,
    inside: str | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Turns a function that scores steps into a process reward; for the arguments see `Marks`.

    The function, async or not, is called like a reward, with `steps` instead of completions: for
    each completion the list of its steps' texts. For each completion it returns a list of as many
    numbers, with None for a step without a reward; or None for a completion that it does not apply
    to. Its other arguments are columns, facts and settings, as for any reward.
    """
    marks = Marks(separator=separator, pattern=pattern, tag=tag, inside=inside)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
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

    return decorate


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The reward's signature: completions and the facts about them instead of `steps`."""
    own = inspect.signature(function).parameters
    if "steps" not in own:
        raise ValueError(
            f"stepwise: {function.__name__} has no argument `steps`, the texts to score"
        )
    first = ("prompts", "completions")
    rest = [
        p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
        for name, p in own.items()
        if name not in (*first, ENDS, PREFIX, "steps")
    ]
    return inspect.Signature(
        [
            *(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in first),
            inspect.Parameter(ENDS, inspect.Parameter.KEYWORD_ONLY),
            inspect.Parameter(PREFIX, inspect.Parameter.KEYWORD_ONLY, default=None),
            *rest,
        ]
    )


class _Call:
    """One call of a function of steps on a batch; arguments: what it is called with."""

    def __init__(
        self, function: Callable[..., Any], marks: Marks, bound: inspect.BoundArguments
    ) -> None:
        self.name = function.__name__
        whole = {**bound.arguments, **bound.kwargs}
        self.ends: Sequence[Sequence[int]] = whole[ENDS]
        texts = [whole_text(one) for one in whole["completions"]]
        pairs = zip(texts, thinking_prefixes(whole, len(texts)), strict=True)
        self.steps = [marks.steps(text, prefix) for text, prefix in pairs]
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
        """The rewards of each completion's decisions. Raises ValueError where the values do not
        match the steps."""
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
        """The context in which SampleErrors of the function keep the other completions' rewards."""
        try:
            yield
        except SampleErrors as error:
            raise SampleErrors(self.rewards(error.values), error.errors) from error
