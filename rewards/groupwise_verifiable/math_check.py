"""Whether a completion's mathematical answer equals the gold one: what the workers run.

Imports neither torch nor groupwise, so that a worker starts quickly.
"""

import logging
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

# math-verify warns once a process that its alarms are off; the deadline is the pool's here.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_GOLD = (LatexExtractionConfig(), ExprExtractionConfig())
# Only LaTeX after an anchor ("the answer is") or in a box counts; the box comes first.
_ANSWER = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    ),
)


def equivalent(pair: tuple[str, str]) -> float | None:
    """Returns 1.0 when the text of `(gold, text)` answers with gold, else 0.0.

    None when no mathematics can be read from gold.
    """
    gold, text = pair
    golds = _parsed(gold, extraction_config=_GOLD)
    if not golds:
        return None
    answers = _parsed(text, extraction_config=_ANSWER, extraction_mode="first_match")
    return float(any(_equal(one, other) for one in golds for other in answers))


def _parsed(text: str, **options: Any) -> list[Any]:  # math-verify's options
    try:
        return list(parse(text, parsing_timeout=None, raise_on_error=True, **options))
    except MemoryError:
        raise  # the limit, not the mathematics: never a wrong answer
    except Exception:  # text that is no mathematics fails in any way it likes
        return []


def _equal(gold: Any, answer: Any) -> bool:  # sympy objects or strings
    try:
        return bool(verify(gold, answer, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # sympy could not compare them: not shown to be equal
        return False
