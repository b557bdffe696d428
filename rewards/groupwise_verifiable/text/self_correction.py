"""A measure of reasoning: whether a completion checks itself, and changes what it says."""

import re
from collections.abc import Sequence
from typing import Any

from groupwise_messages.completion import content

DOUBTS = re.compile(
    r"\b(?:wait|hold on|let me (?:re-?)?check|let me verify|double[- ]check|re-?check|re-?evaluate"
    r"|on second thought|(?:that|this) (?:is|was|seems|looks) (?:not right|wrong|off)"
    r"|i made a mistake)\b|等等|等一下|再检查|重新计算|不对",
    re.IGNORECASE,
)
"""Words with which a text begins to doubt what it has said."""
_RESULT = re.compile(r"(?:=|\bis\b|等于|:|>|boxed\{)\s*[*$]*(-?\d[\d,]*(?:\.\d+)?)")
"""A number that is stated as a result."""


class SelfCorrection:
    """1.0 for a completion that doubts a result and then states others, else 0.0.

    The last number stated before a word of doubt ("wait", "let me check") is not among those stated
    after it. So words of doubt alone do not count, nor a check that confirms. A measure, not a
    reward: words are easily learned. After the "aha moment" of DeepSeek-R1, arXiv:2501.12948,
    section 2.2.4.
    """

    judges = False

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float | None]:
        return [float(_corrects(content(completion))) for completion in completions]


def _corrects(text: str) -> bool:
    for doubt in DOUBTS.finditer(text):
        before = _RESULT.findall(text, 0, doubt.start())
        after = _RESULT.findall(text, doubt.end())
        if before and after and before[-1] not in after:
            return True
    return False
