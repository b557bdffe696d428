"""The reward `visual_questions`: a vision-language model answers a row's questions about a picture.

When to use it: prompts that say many things (objects, counts, attributes, relations), and for which
somebody has written questions: GenEval 2's rows have them as `vqa_list`, DPG-Bench's in a table.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from groupwise.rewards import SampleErrors
from groupwise_judge.checklist import Item, checklist, holding
from groupwise_judge.in_process.answers import reading
from groupwise_judge.in_process.loading import estimate
from groupwise_judge.in_process.model import NOT_FINITE, JudgeModel
from groupwise_judge.in_process.settings import ModelSettings
from groupwise_judge.material import column
from groupwise_judge.messages import Message, exhibits
from groupwise_judge.pictures import seen
from groupwise_judge.rewards import LogMetric
from groupwise_judge.settings import Seen

NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
]
"""As words; a digit is the same answer."""
LEAST = 1e-300
"""In place of a probability of 0, of which there is no geometric mean."""


class VisualQuestions:
    """The mean, over a row's questions, of the probability of the right answer; None without any.

    Soft-TIFA of GenEval 2 (arXiv:2512.16853): p(answer) among all first tokens of the reply, in any
    case and, of numbers, also as a digit; the geometric mean of the questions, or the arithmetic
    one. DPG-Bench (arXiv:2403.05135): `rule: yes_no`, 1.0 where yes is likelier than no; a question
    whose parents do not hold is 0.0.
    """

    judges = False

    class Config(ModelSettings, Seen):
        """Settings of the reward `visual_questions`."""

        questions: str = Field(
            default="questions",
            description="Column with the questions: a list, or its JSON, of texts, of [question, "
            "answer], or of {question, answer, id, parents}; the answer is yes unless given.",
        )
        ask: str = Field(
            default="{question} Answer in one word.",
            description="What is asked about the picture; {question} stands for the question.",
        )
        rule: Literal["probability", "yes_no"] = Field(
            default="probability",
            description="What a question is worth: the probability of its answer among all tokens; "
            "or 1.0 if yes is likelier than no, else 0.0.",
        )
        mean: Literal["arithmetic", "geometric"] = Field(
            default="arithmetic", description="Of a row's questions."
        )

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        if "{question}" not in config.ask:
            raise ValueError(f"ask: expected a text with {{question}} in it, found {config.ask!r}")
        self.config, self.model = config, JudgeModel(config)
        self._tokens: dict[str, list[int]] | None = None

    def load(self) -> None:
        """Loads the model, if needed."""
        self.model.load()

    def estimate(self) -> Any:
        """Bytes on the GPU, by purpose."""
        return estimate(self.config).gpu

    def estimate_cpu(self) -> Any:
        """Bytes in CPU memory, by purpose."""
        return estimate(self.config).cpu

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each picture.

        Logs `held`, the share of questions that hold, by their own answer and their parents'.
        Raises SampleErrors for pictures about which the model's logits are not finite, and for
        questions that are longer than it takes.
        """
        cells = column(columns, self.config.questions)
        rows = [
            checklist(cell, f"sample {row}, column {self.config.questions!r}")
            for row, cell in enumerate(cells)
        ]
        chats = [
            self._chat(item, completion, row)
            for row, (items, completion) in enumerate(zip(rows, completions, strict=True))
            for item in items
        ]
        if not chats:
            return [None] * len(rows)
        chances = self._chances([item for items in rows for item in items], chats)
        scores: list[float | None] = []
        errors: dict[int, str] = {}
        held: list[float] = []
        start = 0
        for row, items in enumerate(rows):
            of_picture = chances[start : start + len(items)]
            start += len(items)
            if any(math.isnan(chance) for chance in of_picture):
                errors[row] = f"{NOT_FINITE}, or a question is longer than it takes"
            worth = self._worth(items, of_picture)
            scores.append(self._mean(worth) if items and row not in errors else None)
            held += [float(value > 0.5) for value in worth] if row not in errors else []
        if log_metric is not None and held:
            log_metric("held", sum(held) / len(held))
        if errors:
            raise SampleErrors(scores, errors)
        return scores

    def _chat(self, item: Item, completion: Any, row: int) -> list[Message]:
        shown = exhibits("completion", seen(completion, self.config.frames))
        parts = [part for exhibit in shown for part in exhibit.parts]
        pictures = [{"type": "image", "image": part} for part in parts if not isinstance(part, str)]
        if not pictures:
            raise ValueError(f"sample {row}: its questions are about a picture, found text")
        question = {"type": "text", "text": self.config.ask.replace("{question}", item.question)}
        return [{"role": "user", "content": [*pictures, question]}]

    def _chances(self, items: Sequence[Item], chats: Sequence[Sequence[Message]]) -> list[float]:
        """Of each question the probability of its answer, or 1.0 and 0.0 by `yes_no`; NaN where
        there is none."""
        words = {item.answer for item in items}
        if self.config.rule == "yes_no":
            words |= {"yes", "no"}
        ids = {word: self._ids(word) for word in sorted(words)}
        tokens = sorted({token for each in ids.values() for token in each})
        log_probs, too_long = self.model.log_probs(chats, torch.tensor(tokens))
        place = {token: number for number, token in enumerate(tokens)}

        def chance(row: int, word: str) -> Tensor:
            return log_probs[row, [place[token] for token in ids[word]]].exp().sum()

        values = []
        for row, item in enumerate(items):
            value = chance(row, item.answer)
            if self.config.rule == "yes_no" and value.isfinite():
                other = "no" if reading(item.answer) == "yes" else "yes"
                value = (value > chance(row, other)).float()
            values.append(math.nan if too_long[row] else value.item())
        return values

    def _worth(self, items: Sequence[Item], chances: Sequence[float]) -> list[float]:
        """The chances, 0.0 where a parent does not hold."""
        holds = {item.id: chance > 0.5 for item, chance in zip(items, chances, strict=True)}
        counts = holding(items, holds)
        return [
            chance if counts[item.id] else 0.0 for item, chance in zip(items, chances, strict=True)
        ]

    def _mean(self, values: Sequence[float]) -> float:
        if self.config.mean == "geometric":
            return math.exp(sum(math.log(max(value, LEAST)) for value in values) / len(values))
        return sum(values) / len(values)

    def _ids(self, word: str) -> list[int]:
        """The tokens that say this answer. Raises ValueError where none does."""
        if self._tokens is None:
            tokenizer = self.model.tokenizer
            texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
            self._tokens = {}
            for token, text in enumerate(texts):
                self._tokens.setdefault(reading(text), []).append(token)
        spellings = {reading(word)}
        if reading(word) in NUMBERS:
            spellings.add(str(NUMBERS.index(reading(word))))
        tokens = [token for each in sorted(spellings) for token in self._tokens.get(each, ())]
        if not tokens:
            raise ValueError(
                f"the answer {word!r} is not one token of the judge, and only the first token of "
                f"its reply is read"
            )
        return tokens
