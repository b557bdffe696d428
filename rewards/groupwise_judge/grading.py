"""The reward `judge`: a model scores each completion by the aspects of a rubric."""

from typing import Self

from pydantic import BaseModel, Field, model_validator

from groupwise.options import PathOrName
from groupwise_judge.form import Form
from groupwise_judge.rubric import Aspect, Rubric, read
from groupwise_judge.settings import ServerSettings

INSTRUCTIONS = """\
You are a strict and fair judge. Score the completion that a model gave, by each of these aspects \
on its own, as an integer of the aspect's scale:

{aspects}

Reserve the highest score for what could not be better, and use the whole scale."""


class RubricSettings(BaseModel):
    """By what to judge."""

    rubric: PathOrName | None = Field(
        default=None, description="File with the rubric, YAML or Markdown."
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


class Judge:
    """Placeholder until the server's client is there."""

    class Config(ServerSettings, RubricSettings):
        """Settings of the reward `judge`."""

    def __init__(self, config: Config) -> None:
        self.config, self.rubric = config, config.read()
