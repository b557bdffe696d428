"""Checks whether a completion's mathematical answer equals the gold one; runs in the workers.

Imports neither torch nor groupwise, so that a worker starts quickly.
"""

import re

from groupwise_verifiable.mathematics import formulas, strict
from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.mathematics.cost import refuse_costly, refuse_costly_text
from groupwise_verifiable.mathematics.equality import same
from groupwise_verifiable.mathematics.form import evaluated_as_read
from groupwise_verifiable.mathematics.published import published
from groupwise_verifiable.mathematics.reading import Reading, names_in, read, read_gold

_LONGEST = 1_000  # most characters of an answer, or twice those of the gold answer
_SPACES = re.compile(r"\s+(?![0-9])|(?<![0-9])\s+")  # not the space of 1 1/2
_ABOUT_LARGE = re.compile(r"\b(?:hundred|thousand|[mbtr]+illion)s?\b", re.IGNORECASE)


def equivalent(attempt: Attempt) -> float | None:
    """Returns 1.0 if the text's answer equals gold, else 0.0; None if gold is no mathematics.

    Raises TooCostlyError for answers that would take too long to check.
    """
    if attempt.rules in ("trl", "open_r1"):
        return published(attempt)
    names = formulas.names(attempt.prompt)
    golds = read_gold(attempt.gold, names)
    if not golds:
        return None
    latex = formulas.answer(attempt.text)
    if latex is None:
        return 0.0
    if _as_written(latex, attempt.gold):
        return 1.0
    latex = formulas.option(latex, attempt.gold)
    forms = {formulas.in_digits(latex)}
    if _ABOUT_LARGE.search(attempt.prompt):  # "How many million": 5 million may be meant as 5
        forms.add(latex)
    return float(any(_answers(form, golds, attempt, names) for form in forms))


def _as_written(latex: str, gold: str) -> bool:
    """Whether an answer equals gold character by character, even if math-verify cannot read it."""
    written = formulas.formula(gold)
    return written is not None and _SPACES.sub("", latex) == _SPACES.sub("", written)


def _answers(
    latex: str, golds: tuple[Reading, ...], attempt: Attempt, names: frozenset[str]
) -> bool:
    """Whether LaTeX equals one of the gold answers."""
    refuse_costly_text(latex, limit=max(_LONGEST, 2 * len(attempt.gold)))
    by_strict_rules = attempt.rules == "strict"
    functions = evaluated_as_read(latex)  # reading them can take forever
    if by_strict_rules and all(functions - evaluated_as_read(gold.latex) for gold in golds):
        return False
    answer = read(latex, names.union(*(names_in(gold.value) for gold in golds)))
    if answer is None or answer in golds:
        return answer is not None
    if any(isinstance(reading.value, str) for reading in (answer, *golds)):
        return False
    for reading in (answer, *golds):
        refuse_costly(reading.value)
    return any(
        not (by_strict_rules and strict.unfinished(gold, answer, attempt.prompt))
        and same(gold, answer, attempt.prompt)
        and not (by_strict_rules and strict.copied(gold, answer, attempt.prompt))
        for gold in golds
    )
