"""The reward `generative_ranking`: a model in this process compares the completions of a group."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Literal

from pydantic import Field

from groupwise_judge.comparison import FIRST, POINTS, SECOND, WINNER, Fenced
from groupwise_judge.form import UnreadableError
from groupwise_judge.in_process.answers import Answers
from groupwise_judge.in_process.loading import estimate
from groupwise_judge.in_process.model import NOT_FINITE, JudgeModel
from groupwise_judge.in_process.settings import ModelSettings
from groupwise_judge.material import contexts
from groupwise_judge.ranking import Ranking, RankingSettings, opponents, pairs, published
from groupwise_judge.rewards import LogExtra, LogMetric
from groupwise_judge.server import Question
from groupwise_judge.settings import Shown


class GenerativeRanking:
    """How far a model in this process prefers a completion to the others of its group, 0 to 1.

    As `judge_ranking`: the mean over the others and over both orders of a pair. By `letter` a
    comparison counts p(A) / (p(A) + p(B)), where p is the model's distribution of the first token
    of its reply; else the model writes an answer, greedily, and the winner counts 1.
    """

    judges = False
    relative = True

    class Config(Shown, ModelSettings, RankingSettings):
        """Settings of the reward `generative_ranking`."""

        format: Literal["letter", "json", "unified_reward_2", "unified_reward_think"] = Field(
            default="letter",
            description="How the judge answers: by a letter, whose probability is read, by JSON, "
            "or as a published judge of pictures does.",
        )
        max_tokens: int = Field(default=1024, ge=1, description="Most tokens of a written answer.")

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        self.config, self.model = config, JudgeModel(config)
        own = Fenced(config.criterion, letter=config.format == "letter")
        self._comparison = published(config) or own
        self._answers: Answers | None = None

    def load(self) -> None:
        """Loads the model, if needed. Raises ValueError, also where A or B is no token."""
        self.model.load()
        if self.config.format == "letter":
            self._letters()

    def estimate(self) -> Mapping[str, int]:
        """Bytes on the GPU, by purpose."""
        return estimate(self.config).gpu

    def estimate_cpu(self) -> Mapping[str, int]:
        """Bytes in CPU memory, by purpose."""
        return estimate(self.config).cpu

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        groups: Sequence[int],
        references: Sequence[Sequence[Any]],
        *,
        purpose: str = "train",
        log_extra: LogExtra = None,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion, None where there is nothing to compare with; raises
        SampleErrors where half of its comparisons or more have no result."""
        material = contexts(self.config, prompts, columns)
        others = None if purpose == "train" else opponents(self.config, references, columns)
        frames = self.config.frames
        compared = pairs(self.config, material, completions, groups, others, frames=frames)
        ranking = Ranking(compared, self._comparison, len(completions))
        shares = self._by_letter if self.config.format == "letter" else self._by_reply
        return ranking.rates(shares(ranking.questions), log_extra, log_metric)

    def _letters(self) -> Answers:
        if self._answers is None:
            points = {letter: POINTS[letter] for letter in (FIRST, SECOND)}
            self._answers = Answers.of(points, self.model.tokenizer)
        return self._answers

    def _by_letter(self, questions: Sequence[Question]) -> list[float | str]:
        letters = self._letters()
        chats = [question.chat for question in questions]
        log_probs, too_long = self.model.log_probs(chats, letters.ids)
        shares, _ = letters.expected(log_probs, normalize=True)
        values = zip(shares.tolist(), too_long.tolist(), strict=True)
        return [
            TOO_LONG if is_long else share if isfinite(share) else NOT_FINITE
            for share, is_long in values
        ]

    def _by_reply(self, questions: Sequence[Question]) -> list[float | str]:
        chats = [question.chat for question in questions]
        replies = self.model.replies(chats, max_tokens=self.config.max_tokens)
        return [_read(*pair) for pair in zip(questions, replies, strict=True)]


TOO_LONG = "makes the question longer than the judge takes: see `max_length`"


def _read(question: Question, reply: str | None) -> float | str:
    """What a reply is worth for the completion that was read first, or why it does not count."""
    if reply is None:
        return TOO_LONG
    try:
        return POINTS[question.form.read(reply)[0][WINNER]]
    except UnreadableError as error:
        return error.reason
