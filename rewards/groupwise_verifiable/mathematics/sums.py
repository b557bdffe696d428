"""A process reward for the steps of a sum: right steps that bring the answer nearer."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import prompt_text, thinking_prefixes, whole_text
from groupwise_verifiable.steps import Step, by_decision, region

_MINUS = "-\u2212"
_INTEGER = rf"[{_MINUS}]?[0-9]{{1,15}}(?![0-9])"
# Follows a sum or equation that is a part of something longer.
_GOES_ON = re.compile(rf"\.[0-9]|[^\S\n]*[{_MINUS}+*/^%(\u00b7\u00d7\u00f7]")
# Integers joined by plus and minus: the sum in a prompt.
_CHAIN = re.compile(rf"(?<![\w.]){_INTEGER}(?:[^\S\n]*[{_MINUS}+][^\S\n]*{_INTEGER})++")
_TERM = re.compile(rf"([{_MINUS}+]?)[^\S\n]*({_INTEGER})")
_EQUATION = re.compile(
    rf"(?<![\w.])({_INTEGER})[^\S\n]*([{_MINUS}+])[^\S\n]*({_INTEGER})[^\S\n]*=[^\S\n]*({_INTEGER})"
    r"(?![^\S\n]*=)"
)
_JOINS = "+*/^=(\u00b7\u00d7\u00f7" + _MINUS
_BEFORE = 20  # characters before an equation that are searched for an operator


@dataclass(frozen=True)
class Equation:
    """first + second = result; for a difference, second is negative. end: as `Step.end`."""

    first: int
    second: int
    result: int
    end: int | None


class SumSteps:
    """1 / (n - 1) for each right step of a sum of n integers, else 0.0.

    A process reward. A step is an equation of two numbers and their sum or difference. It is right
    if the result is right and both numbers are unused: terms of the prompt's sum, with their signs,
    or results of earlier right steps. A right step uses up its numbers, so repeated and idle steps
    get 0, and all right steps of a completion add up to 1.0, in any order of the terms. If terms
    remain, the end of the completion counts as one more step with 0.0, so that stopping early is
    not better than trying.

    None where the prompt has no such sum; of several the last one counts.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `sum_steps`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        inside: str | None = Field(
            default=None,
            min_length=1,
            description="Only the text inside this tag has steps, `think` for example; the whole "
            "completion if unset.",
        )

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or self.Config()

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        character_ends: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[list[float | None] | None]:
        """Returns the rewards of decisions; logs the mean number of steps, right or not."""
        prefixes = thinking_prefixes(columns, len(completions))
        pairs = zip(completions, prefixes, strict=True)
        every = [self._equations(whole_text(completion), prefix) for completion, prefix in pairs]
        if log_metric is not None and every:
            log_metric("steps", sum(map(len, every)) / len(every))
        return [
            self._rewards(terms, equations, ends)
            if len(terms := terms_of(prompt_text(prompt))) > 1
            else None
            for prompt, equations, ends in zip(prompts, every, character_ends, strict=True)
        ]

    def _equations(self, text: str, prefix: str) -> list[Equation]:
        return list(equations_of(text, *region(text, self.config.inside, prefix)))

    @staticmethod
    def _rewards(
        terms: Sequence[int], equations: Sequence[Equation], ends: Sequence[int]
    ) -> list[float | None]:
        steps = [Step(text="", end=equation.end) for equation in equations]
        right = right_steps(terms, equations)
        values = [float(one) / (len(terms) - 1) for one in right]
        if sum(right) < len(terms) - 1:
            steps, values = [*steps, Step(text="", end=None)], [*values, 0.0]
        return by_decision(steps, values, ends)


def right_steps(terms: Sequence[int], equations: Sequence[Equation]) -> list[bool]:
    """Whether each step is right, in a sum of these terms."""
    left = list(terms)
    return [_apply(left, equation) for equation in equations]


def _apply(left: list[int], equation: Equation) -> bool:
    """Whether a step is right; if so, replaces its numbers by its result among those left."""
    used = [equation.first, equation.second]
    if sum(used) != equation.result or any(used.count(n) > left.count(n) for n in used):
        return False
    for number in used:
        left.remove(number)
    left.append(equation.result)
    return True


def terms_of(text: str) -> list[int]:
    """The terms of the last sum in a prompt, with their signs; [] if there is none."""
    chains = list(_CHAIN.finditer(text))
    if not chains or _is_part(text, chains[-1]):
        return []
    return [
        _integer(number) * (1 if sign in ("", "+") else -1)
        for sign, number in _TERM.findall(chains[-1].group())
    ]


def equations_of(text: str, start: int, stop: int, closed: int | None) -> Iterator[Equation]:
    """The equations of a text from `start` to `stop`; closed: end of that region, see `region`.

    An equation's end includes the next character, which shows that its last number is complete.
    """
    for match in _EQUATION.finditer(text, start, stop):
        if _is_part(text, match):
            continue
        first, sign, second, result = match.groups()
        yield Equation(
            first=_integer(first),
            second=_integer(second) * (1 if sign == "+" else -1),
            result=_integer(result),
            end=match.end() + 1 if match.end() < stop else closed,
        )


def _is_part(text: str, match: re.Match[str]) -> bool:
    """Whether an operator precedes the match, or it continues."""
    before = text[max(0, match.start() - _BEFORE) : match.start()].rstrip(" \t")
    return before[-1:] in tuple(_JOINS) or _GOES_ON.match(text, match.end()) is not None


def _integer(literal: str) -> int:
    return int(literal.replace("\u2212", "-"))
