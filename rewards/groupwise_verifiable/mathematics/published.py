"""Published rules: TRL's and open-r1's `accuracy_reward`."""

import logging
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.mathematics.cost import refuse_costly

# math-verify warns once per process that its timeouts are off; here the worker pool has one.
logging.getLogger("math_verify").setLevel(logging.ERROR)
logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)

LATEX_OR_PLAIN = (LatexExtractionConfig(), ExprExtractionConfig())
_GOLD = {"trl": LATEX_OR_PLAIN, "open_r1": LATEX_OR_PLAIN[:1]}
# Only LaTeX in a box or after an anchor ("the answer is") counts; a box takes precedence.
_ANSWERS = {
    rules: LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True, equations=rules == "open_r1"),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    for rules in ("trl", "open_r1")
}


def published(attempt: Attempt) -> float | None:
    """Returns the value of TRL's or open-r1's `accuracy_reward`."""
    mode = "first_match" if attempt.rules == "open_r1" else "any_match"
    golds = _parsed(attempt.gold, extraction_config=_GOLD[attempt.rules], extraction_mode=mode)
    if not golds:
        return None
    config = [_ANSWERS[attempt.rules]]
    answers = _parsed(attempt.text, extraction_config=config, extraction_mode="first_match")
    for answer in answers:
        if answer not in golds:
            refuse_costly(answer)
    return float(any(_equal(gold, answer) for gold in golds for answer in answers))


def _parsed(text: str, **options: Any) -> list[Any]:  # math-verify's options
    """The values that math-verify finds in a text, sympy objects or LaTeX."""
    try:
        return list(parse(text, parsing_timeout=None, raise_on_error=True, **options))
    except MemoryError:
        raise  # the worker's memory limit, which does not make an answer wrong
    except Exception:  # text that is no mathematics raises all kinds of errors
        return []


def _equal(gold: Any, answer: Any) -> bool:  # sympy objects or strings
    """Whether math-verify shows two values to be equal."""
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # sympy cannot compare them, so they count as different
        return False
