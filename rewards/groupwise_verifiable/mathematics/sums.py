"""Each step of working out a sum: whether it is right, and brings the answer nearer."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.completion import content, prompt_text
from groupwise_verifiable.steps import Step, by_decision, region

_MINUS = "-\u2212"
_INTEGER = rf"[{_MINUS}]?[0-9]{{1,15}}(?![0-9])"
# What makes a sum, or an equation, a part of something longer.
_GOES_ON = re.compile(rf"\.[0-9]|[^\S\n]*[{_MINUS}+*/^%(\u00b7\u00d7\u00f7]")
# Integers joined by plus and minus, as a prompt asks for their sum.
_CHAIN = re.compile(rf"(?<![\w.]){_INTEGER}(?:[^\S\n]*[{_MINUS}+][^\S\n]*{_INTEGER})++")
_TERM = re.compile(rf"([{_MINUS}+]?)[^\S\n]*({_INTEGER})")
_EQUATION = re.compile(
    rf"(?<![\w.])({_INTEGER})[^\S\n]*([{_MINUS}+])[^\S\n]*({_INTEGER})[^\S\n]*=[^\S\n]*({_INTEGER})"
    r"(?![^\S\n]*=)"
)
_JOINS = "+*/^=(\u00b7\u00d7\u00f7" + _MINUS
_BEFORE = 20  # characters that are looked at before an equation


@dataclass(frozen=True)
class Equation:
    """first + second = result, the second with the sign that it was written with."""

    first: int
    second: int
    result: int
    end: int | None


class SumSteps:
    """1 / (n - 1) for each step that brings a sum of n integers nearer to its answer, else 0.0.

    A process reward. A step is an equation of two numbers and their sum or difference. It is right
    if the result is, and both numbers are still to be added up: terms of the prompt's sum, each
    with its sign, or results of right steps before. They are used up by it, so that repeated and
    idle steps are worth nothing, and all right steps of a completion 1.0 together, in whatever
    order the terms are taken. Where terms are left over, the end of the completion is one more step
    that is worth nothing: no chain, or a short one, is not above an attempt.

    None where the prompt holds no such sum; the last one in it counts.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `sum_steps`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        inside: str | None = Field(
            default=None,
            min_length=1,
            description="The tag outside of which there are no steps, as `think`; none if unset.",
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
        """Returns the rewards of decisions; logs how many steps there are, right or not."""
        every = [self._equations(content(completion)) for completion in completions]
        if log_metric is not None and every:
            log_metric("steps", sum(map(len, every)) / len(every))
        return [
            self._judged(terms, equations, ends)
            if len(terms := terms_of(prompt_text(prompt))) > 1
            else None
            for prompt, equations, ends in zip(prompts, every, character_ends, strict=True)
        ]

    def _equations(self, text: str) -> list[Equation]:
        return list(equations_of(text, *region(text, self.config.inside)))

    @staticmethod
    def _judged(
        terms: Sequence[int], equations: Sequence[Equation], ends: Sequence[int]
    ) -> list[float | None]:
        steps = [Step(text="", end=equation.end) for equation in equations]
        right = judged(terms, equations)
        values = [float(one) / (len(terms) - 1) for one in right]
        if sum(right) < len(terms) - 1:
            steps, values = [*steps, Step(text="", end=None)], [*values, 0.0]
        return by_decision(steps, values, ends)


def judged(terms: Sequence[int], equations: Sequence[Equation]) -> list[bool]:
    """Which steps are right, of a sum of these terms."""
    left = list(terms)
    return [_taken(left, equation) for equation in equations]


def _taken(left: list[int], equation: Equation) -> bool:
    """Whether a step is right; then its numbers are replaced by its result in what is left."""
    used = [equation.first, equation.second]
    if sum(used) != equation.result or any(used.count(n) > left.count(n) for n in used):
        return False
    for number in used:
        left.remove(number)
    left.append(equation.result)
    return True


def terms_of(text: str) -> list[int]:
    """The terms of the last sum in a prompt, with their signs; none where there is no sum."""
    chains = list(_CHAIN.finditer(text))
    if not chains or _is_part(text, chains[-1]):
        return []
    return [
        _integer(number) * (1 if sign in ("", "+") else -1)
        for sign, number in _TERM.findall(chains[-1].group())
    ]


def equations_of(text: str, start: int, stop: int, closed: int | None) -> Iterator[Equation]:
    """The equations of a text from `start` to `stop`, which `closed` is the end of.

    Each ends with the character after it, which ends its last number.
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
    """Whether an operator stands before it, or it goes on."""
    before = text[max(0, match.start() - _BEFORE) : match.start()].rstrip(" \t")
    return before[-1:] in tuple(_JOINS) or _GOES_ON.match(text, match.end()) is not None


def _integer(literal: str) -> int:
    return int(literal.replace("\u2212", "-"))
