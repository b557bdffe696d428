"""The published judges of pairs of pictures UnifiedReward 2.0 and UnifiedReward-Think.

Their answers are read in the form that they were trained to write, by the code that their authors
publish for inference (github.com/CodeGoat24/UnifiedReward): 2.0 in
inference_qwen/UnifiedReward-2.0-inference/pair_score_image_generation.py, Think (arXiv:2505.03318)
in UnifiedReward-Think/inference_qwen. The questions ask for that form in words of our own, which
the authors permit: their README says that no style of prompt is needed. To ask in theirs, name a
file with it.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from groupwise_judge import fence
from groupwise_judge.comparison import FIRST, SECOND, TIE, WINNER, Comparison
from groupwise_judge.form import UnreadableError, Value
from groupwise_judge.messages import Exhibit
from groupwise_judge.pictures import Frames, is_picture, opened
from groupwise_judge.server import Question

ASPECTS = ("Alignment", "Coherence", "Style")
"""What UnifiedReward 2.0 scores."""

TWO = """\
These are two generated images, Image 1 and Image 2, for one text caption. Compare them by three \
scores:

- Alignment Score: how well an image shows what the caption says
- Coherence Score: how free an image is of glitches and distorted objects
- Style Score: how appealing an image is, whatever the caption

Each score of an image is a number from 0 to 1, relative to the other image: the two sum to 1, and \
the better image has more. Write the scores in this form:

Alignment Score:
 Image 1: X
 Image 2: Y

Coherence Score:
 Image 1: X
 Image 2: Y

Style Score:
 Image 1: X
 Image 2: Y

Text Caption: [{prompt}]"""

THINK = """\
These are two generated images, Image 1 and Image 2, for one text caption. Find out which one is \
better.

Reason inside <think> and </think>. Go through semantic consistency (does the image show what the \
caption says), aesthetics (composition, colours, expression), authenticity (realism, details), and \
up to two more dimensions that matter here. Give each dimension a line, with a score from 1 to 10 \
and a reason for each image, then add up the scores:

<think>
1. Semantic consistency: Image 1 (x/10) - ...; Image 2 (y/10) - ...
2. Aesthetics: Image 1 (x/10) - ...; Image 2 (y/10) - ...
3. Authenticity: Image 1 (x/10) - ...; Image 2 (y/10) - ...
Total score:
Image 1: x+x+x=total
Image 2: y+y+y=total
</think>
<answer>...</answer>

Inside <answer> and </answer> write either "Image 1 is better" or "Image 2 is better", by the \
totals, and nothing else.

Text Caption: [{prompt}]"""

_ANSWER = re.compile(r"<answer>\s*Image ([12]) is better\.?\s*</answer>")
_NUMBER = r"\s*([01](?:\.\d{0,20})?|\.\d{1,20})\s*"
_SCORES = re.compile("".join(rf"{a} Score:\s*Image 1:{_NUMBER}Image 2:{_NUMBER}" for a in ASPECTS))


class Thoughts:
    """`<think>...</think><answer>Image 1 is better</answer>`, as UnifiedReward-Think answers."""

    def schema(self) -> None:
        """None: it is not JSON."""

    def read(self, text: str) -> tuple[dict[str, Value], str]:
        """The winner, and the thinking. Raises UnreadableError unless one answer, and nothing else,
        follows the thinking."""
        thinking, _, rest = text.rpartition("</think>")
        answer = _ANSWER.fullmatch(rest.strip())
        if answer is None:
            raise UnreadableError("prose", f"answered {rest[-120:]!r}, expected <answer>")
        return {WINNER: FIRST if answer[1] == "1" else SECOND}, thinking.strip()


class RelativeScores:
    """Two scores that sum to 1 by each aspect, as UnifiedReward 2.0 answers.

    The winner is the image with more by one aspect, or by the mean of all.
    """

    def __init__(self, aspect: str | None) -> None:
        self._counted = ASPECTS if aspect is None else (aspect.capitalize(),)

    def schema(self) -> None:
        """None: it is not JSON."""

    def read(self, text: str) -> tuple[dict[str, Value], str]:
        """The winner, and the whole answer. Raises UnreadableError for anything else than the
        scores, and for scores that do not sum to 1."""
        answer = _SCORES.fullmatch(text.strip())
        if answer is None:
            raise UnreadableError("prose", f"answered {text!r:.120}, expected three scores")
        lead = Decimal(0)  # exact: by floats 0.1 + 0.2 is more than 0.3, and a tie would be a win
        for number, aspect in enumerate(ASPECTS):
            first, second = Decimal(answer[2 * number + 1]), Decimal(answer[2 * number + 2])
            if abs(first + second - 1) > Decimal("0.01"):
                raise UnreadableError("range", f"gave {aspect} scores that do not sum to 1")
            lead += (first - second) * (aspect in self._counted)
        return {WINNER: TIE if lead == 0 else FIRST if lead > 0 else SECOND}, text


class UnifiedReward(Comparison):
    """Two pictures for a caption, the prompt. The pictures come first, as in training."""

    def __init__(self, question: str, form: Thoughts | RelativeScores) -> None:
        """question: its text, with {prompt} where the caption is."""
        self._question, self._form = question, form

    def question(self, context: Sequence[Exhibit], first: Any, second: Any) -> Question:
        for content in (first, second):
            if not is_picture(content):
                raise ValueError(
                    f"UnifiedReward compares pictures here, and a completion is "
                    f"{content if isinstance(content, Frames) else type(content).__name__}; use "
                    f"format: json"
                )
        parts = [part for exhibit in context for part in exhibit.parts]
        caption = "\n".join(fence.escaped(part) for part in parts if isinstance(part, str))
        content = [
            *({"type": "image", "image": opened(picture)} for picture in (first, second)),
            {"type": "text", "text": self._question.replace("{prompt}", caption)},
        ]
        return Question([{"role": "user", "content": content}], self._form)


def unified_reward(name: str, criterion: str | None, wording: str | None) -> UnifiedReward:
    """The judge `unified_reward_2` or `unified_reward_think`.

    criterion: of the former, the aspect that counts. wording: a file with the question, instead of
    ours. Raises ValueError for another criterion, and for a file without {prompt}.
    """
    question = THINK if name == "unified_reward_think" else TWO
    if wording is not None:
        question = _read(wording)
    if name == "unified_reward_think":
        if criterion is not None:
            raise ValueError("criterion: UnifiedReward-Think judges as a whole; leave it out")
        return UnifiedReward(question, Thoughts())
    if criterion is not None and criterion.capitalize() not in ASPECTS:
        known = ", ".join(ASPECTS).lower()
        raise ValueError(f"criterion: UnifiedReward 2.0 scores {known}, found {criterion!r}")
    return UnifiedReward(question, RelativeScores(criterion))


def _read(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"wording: {path!r} cannot be read: {error}") from error
    if "{prompt}" not in text:
        raise ValueError(f"wording: {path!r} does not say where the caption is: write {{prompt}}")
    return text
