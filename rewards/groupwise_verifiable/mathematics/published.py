"""Published rules: TRL's and open-r1's `accuracy_reward`."""

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig

from groupwise_verifiable.mathematics.attempt import Attempt
from groupwise_verifiable.mathematics.cost import refuse_costly
from groupwise_verifiable.mathematics.equality import equal
from groupwise_verifiable.mathematics.reading import LATEX_OR_PLAIN, parsed

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
    golds = parsed(attempt.gold, extraction_config=_GOLD[attempt.rules], extraction_mode=mode)
    if not golds:
        return None
    config = [_ANSWERS[attempt.rules]]
    answers = parsed(attempt.text, extraction_config=config, extraction_mode="first_match")
    for answer in answers:
        if answer not in golds:
            refuse_costly(answer)
    return float(any(equal(gold, answer) for gold in golds for answer in answers))
