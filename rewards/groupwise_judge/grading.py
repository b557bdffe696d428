"""The reward `judge`: a model scores each completion by the aspects of a rubric."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from groupwise.kit.options import PathOrName
from groupwise_judge.form import Form
from groupwise_judge.material import contexts
from groupwise_judge.messages import Exhibit, Message, exhibits, messages
from groupwise_judge.pictures import seen
from groupwise_judge.rewards import LogExtra, LogMetric, ServerReward, checked
from groupwise_judge.rubric import Aspect, Rubric, read
from groupwise_judge.server import Question, Verdict
from groupwise_judge.settings import ServerSettings

INSTRUCTIONS = """\
You are a strict and fair judge. Score the completion that a model gave, by each of these aspects \
on its own, as an integer of the aspect's scale:

{aspects}

Reserve the highest score for what could not be better, and use the whole scale."""


class RubricSettings(BaseModel):
    """By what to judge."""

    rubric: PathOrName | None = Field(
        default=None,
        description="File with the rubric, YAML or Markdown; or `edit_four` or `gedit`, for edited "
        "pictures.",
    )
    aspects: list[Aspect] | None = Field(
        default=None, description="The rubric's aspects, if it is not in a file."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.rubric is None) == (self.aspects is None):
            raise ValueError("set either rubric (a file) or aspects (a list)")
        return self

    def read(self) -> Rubric:
        """The rubric; raises ValueError if its file cannot be read."""
        return read(self.rubric) if self.rubric else Rubric(aspects=self.aspects or [])


def instructions(rubric: Rubric) -> str:
    """What a judge is told to do."""
    lines = "\n".join(aspect.line for aspect in rubric.aspects)
    return "\n\n".join(filter(None, [rubric.introduction, INSTRUCTIONS.format(aspects=lines)]))


def form(rubric: Rubric, *, reasoning: bool) -> Form:
    """The answer that a rubric asks for."""
    return Form({aspect.name: aspect.scores for aspect in rubric.aspects}, reasoning)


class Judge(ServerReward):
    """How good a completion is by a rubric, 0 to 1, as a language model judges it.

    The weighted mean over the aspects of (score - lowest) / (highest - lowest), geometric where the
    rubric says so; a score is the mean of `answers` answers.
    """

    class Config(ServerSettings, RubricSettings):
        """Settings of the reward `judge`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config, self.rubric = config, config.read()
        self._instructions = instructions(self.rubric)
        self._form = form(self.rubric, reasoning=config.reasoning)

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: LogExtra = None,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where there is no verdict."""
        before = contexts(self.config, prompts, columns)
        questions = [
            Question(self._messages(context, completion), self._form)
            for context, completion in zip(before, completions, strict=True)
        ]
        verdicts = await self.ask(questions, len(completions), log_metric)
        failures = {row: v.failure for row, v in enumerate(verdicts) if v.failure is not None}
        scores = [None if v.failure else self._scores(v) for v in verdicts]
        self._log(verdicts, scores, log_extra, log_metric)
        return checked([None if s is None else self.rubric.value(s) for s in scores], failures)

    def _messages(self, context: Sequence[Exhibit], completion: Any) -> list[Message]:
        material = [*context, *exhibits("completion", seen(completion, self.config.frames))]
        return messages(self._instructions, material, self._form.request())

    def _scores(self, verdict: Verdict) -> dict[str, float]:
        return {aspect.name: verdict.mean(aspect.name) for aspect in self.rubric.aspects}

    def _log(
        self,
        verdicts: Sequence[Verdict],
        scores: Sequence[Mapping[str, float] | None],
        log_extra: LogExtra,
        log_metric: LogMetric,
    ) -> None:
        read = [each for each in scores if each is not None]
        if log_metric is not None and read:
            for name in (aspect.name for aspect in self.rubric.aspects):
                log_metric(f"aspect_{name}", sum(each[name] for each in read) / len(read))
        if log_extra is not None:
            log_extra("judge_scores", scores)
            log_extra("judge_reasons", [verdict.reasons[:1] for verdict in verdicts])
