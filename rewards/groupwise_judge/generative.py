"""The reward `generative_judge`: a model in this process, asked for one word."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from groupwise.kit import terminal
from groupwise.rewards import SampleErrors
from groupwise_judge.in_process.answers import Answers, reading
from groupwise_judge.in_process.loading import estimate
from groupwise_judge.in_process.model import NOT_FINITE, JudgeModel
from groupwise_judge.in_process.settings import ModelSettings
from groupwise_judge.questions import Questions, is_whole
from groupwise_judge.rewards import LogMetric
from groupwise_judge.settings import Shown


class GenerativeJudge:
    """What a model in this process expects its own one-word answer about a completion to be worth.

    sum over answers a of p(a) * value(a), divided by the sum of p(a), where p is the model's
    distribution of the first token of its reply. With the answers yes: 1 and no: 0 that is
    p(yes) / (p(yes) + p(no)); with 1: 1 to 5: 5 it is the expected grade.

    VQAScore (arXiv:2404.01291, section 3) is p("Yes") among all tokens, for the question `Does this
    figure show "{prompt}"? Please answer yes or no.`: the same with `normalize: false` and the one
    answer yes: 1.
    """

    judges = False

    class Config(Shown, ModelSettings):
        """Settings of the reward `generative_judge`."""

        question: str = Field(
            default="Is the completion a good one for its prompt? Answer with one word, yes or no.",
            min_length=1,
            description="What is asked after the material, which stands in fences; or, if it names "
            "{prompt}, {completion} or a column, the whole text, after the pictures.",
        )
        instructions: str | None = Field(
            default=None, description="System message; if unset one that suits the question."
        )
        answers: dict[str, FiniteFloat] = Field(
            default={"yes": 1.0, "no": 0.0},
            min_length=1,
            description="The answers that count, each one token of the model, and their values.",
        )
        normalize: bool = Field(
            default=True,
            description="Divide by the probability of all these answers together.",
        )

        @field_validator("answers", mode="before")
        @classmethod
        def _words(cls, answers: Any) -> Any:
            """Numbers, such as grades, as words."""
            if not isinstance(answers, Mapping):
                return answers
            return {str(word): value for word, value in answers.items()}

        @model_validator(mode="after")
        def _no_material(self) -> Self:
            if is_whole(self.question) and (self.reference or not self.prompt):
                raise ValueError(
                    f"question: {self.question!r:.60} holds what it is about, so `prompt` and "
                    f"`reference` have no meaning: leave them out, and name the column in it"
                )
            return self

        @model_validator(mode="after")
        def _distinct(self) -> Self:
            words = [reading(word) for word in self.answers]
            for word in words:
                if not word or words.count(word) > 1:
                    raise ValueError(
                        f"answers: {word!r} is blank or occurs twice; neither case nor white space "
                        f"tells answers apart"
                    )
            if self.normalize and len({*self.answers.values()}) < 2:
                raise ValueError(
                    "answers: all have one value, so every completion would have it; add another "
                    "answer, such as no: 0, or set normalize: false"
                )
            return self

    def __init__(self, config: Config) -> None:
        """Loads nothing. Raises ValueError for wrong settings."""
        self.config, self.model = config, JudgeModel(config)
        self.questions = Questions(config.question, config.instructions, config)
        self._answers: Answers | None = None

    def load(self) -> None:
        """Loads the model, if needed. Raises ValueError, also for an answer that is no token."""
        self.model.load()
        counted = "; ".join(
            f"{word}: {', '.join(map(repr, texts))}"
            for word, texts in self._read_answers().words.items()
        )
        if os.environ.get("RANK", "0") == "0":
            terminal.say(f"note: {self.config.model} answers by the tokens {counted}")

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
        *,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns the expected value of the answer about each completion: text or a picture.

        Logs `answered`, the mean probability of an answer that counts, and `too_long`, the share of
        completions that make the question longer than the model takes; these have the lowest value.
        Raises SampleErrors for prompts that are too long by themselves, and for samples about which
        the model's logits are not finite.
        """
        if not len(completions):
            return []
        answers = self._read_answers()
        chats = self.questions.chats(prompts, completions, columns)
        log_probs, too_long = self.model.log_probs(chats, answers.ids)
        values, answered = answers.expected(log_probs, normalize=self.config.normalize)
        is_read = values.isfinite()
        if log_metric is not None:
            log_metric("too_long", too_long.float().mean().item())
            if is_read.any():
                log_metric("answered", answered[is_read].mean().item())
        # The lowest value, not an error: else a policy would learn to write long texts.
        lowest = min(self.config.answers.values())
        scores = values.masked_fill(too_long, lowest if self.config.normalize else min(lowest, 0.0))
        errors = self._too_long_prompts(too_long.nonzero()[:, 0].tolist(), prompts, columns)
        errors |= dict.fromkeys((~is_read & ~too_long).nonzero()[:, 0].tolist(), NOT_FINITE)
        if errors:
            kept = [None if row in errors else score for row, score in enumerate(scores.tolist())]
            raise SampleErrors(kept, errors)
        return scores.tolist()

    def _too_long_prompts(
        self, rows: Sequence[int], prompts: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> dict[int, str]:
        """An error for each row whose question is too long even without a completion."""
        if not rows:
            return {}
        blank = self.questions.chats(prompts, [""] * len(prompts), columns)
        problem = "the prompt alone makes the question longer than the judge takes: `max_length`"
        return {row: problem for row in rows if not self.model.fits(blank[row])}

    def _read_answers(self) -> Answers:
        if self._answers is None:
            self._answers = Answers.of(self.config.answers, self.model.tokenizer)
        return self._answers
