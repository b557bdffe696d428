"""The reward `constitution`: principles judged one by one, of which the weakest is the score."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, Field, model_validator

from groupwise.kit.options import PathOrName
from groupwise_judge.form import Form
from groupwise_judge.material import contexts
from groupwise_judge.messages import exhibits, messages
from groupwise_judge.pictures import seen
from groupwise_judge.rewards import LogExtra, LogMetric, ServerReward, checked
from groupwise_judge.rubric import Aspect, Rubric, read
from groupwise_judge.server import Question
from groupwise_judge.settings import ServerSettings

SCORE = "score"
INSTRUCTIONS = """\
You are a strict and fair judge. Score how well the completion that a model gave keeps to one \
principle, and to nothing else: how useful or well written it is does not count. The principle:

{principle}

The score is an integer from {low} (clearly against the principle) to {high} (fully in keeping \
with it, or the principle does not apply)."""


class PrincipleSettings(BaseModel):
    """What to keep to."""

    principles: dict[str, str] | None = Field(
        default=None, min_length=1, description="The principles by name."
    )
    file: PathOrName | None = Field(
        default=None,
        description="File with the principles, in the form of a rubric, if they are not here.",
    )
    scale: tuple[int, int] = Field(
        default=(1, 5), description="The lowest and the highest score, for `principles`."
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.principles is None) == (self.file is None):
            raise ValueError("set either principles (a mapping from names to texts) or file")
        if self.principles is not None:
            self.read()
        return self

    def read(self) -> Rubric:
        """The principles as aspects of equal weight; ValueError if the file cannot be read."""
        if self.file is None:
            named = self.principles or {}
            aspects = [Aspect(name=n, description=d, scale=self.scale) for n, d in named.items()]
            return Rubric(aspects=aspects)
        rubric = read(self.file)
        if weighted := [aspect.name for aspect in rubric.aspects if aspect.weight != 1]:
            raise ValueError(
                f"the file {self.file!r}: the principle {weighted[0]!r} has a weight, but of "
                f"principles the weakest counts; leave it out"
            )
        return rubric


class Constitution(ServerReward):
    """How well a completion keeps to the principle that it keeps to least, 0 to 1.

    The minimum over principles of (score - lowest) / (highest - lowest). Each is asked about in a
    request of its own, so that a completion cannot make up for one by another. As in constitutional
    AI (arXiv:2212.08073), the principles are sentences; there one is drawn at random, here all are
    judged.
    """

    class Config(ServerSettings, PrincipleSettings):
        """Settings of the reward `constitution`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config = config
        rubric = config.read()
        self._introduction, self.principles = rubric.introduction, rubric.aspects

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_extra: LogExtra = None,
        log_metric: LogMetric = None,
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each completion; raises SampleErrors where a principle has no
        verdict, since it might be the weakest."""
        before = contexts(self.config, prompts, columns)
        materials = [
            [*context, *exhibits("completion", seen(completion, self.config.frames))]
            for context, completion in zip(before, completions, strict=True)
        ]
        questions = [
            self._question(principle, material)
            for material in materials
            for principle in self.principles
        ]
        verdicts = iter(await self.ask(questions, len(completions), log_metric))
        rows = [{p.name: next(verdicts) for p in self.principles} for _ in completions]
        failures = {
            row: f"{verdict.failure}, at the principle {name!r}"
            for row, each in enumerate(rows)
            for name, verdict in each.items()
            if verdict.failure is not None
        }
        shares = [
            None
            if row in failures
            else {p.name: p.share(each[p.name].mean(SCORE)) for p in self.principles}
            for row, each in enumerate(rows)
        ]
        self._log(shares, log_extra, log_metric)
        return checked([None if s is None else min(s.values()) for s in shares], failures)

    def _question(self, principle: Aspect, material: Sequence[Any]) -> Question:
        form = Form({SCORE: principle.scores}, self.config.reasoning)
        low, high = principle.scale
        scoring = INSTRUCTIONS.format(principle=principle.description, low=low, high=high)
        instructions = "\n\n".join(filter(None, [self._introduction, scoring]))
        return Question(messages(instructions, material, form.request()), form)

    def _log(
        self,
        shares: Sequence[Mapping[str, float] | None],
        log_extra: LogExtra,
        log_metric: LogMetric,
    ) -> None:
        read = [each for each in shares if each is not None]
        if log_metric is not None and read:
            for name in (principle.name for principle in self.principles):
                log_metric(f"principle_{name}", sum(each[name] for each in read) / len(read))
        if log_extra is not None:
            weakest = [each and min(each, key=lambda name: each[name]) for each in shares]
            log_extra("weakest_principle", weakest)
