"""Rubric: the aspects by which a judge scores, each with a description, a scale and a weight."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

RUBRICS = Path(__file__).parent / "rubrics"
REASONING = "reasoning"
"""The name, in an answer, of what the judge writes before it scores."""
LONGEST_SCALE = 100
_HEADING = re.compile(r"##+\s*(?P<name>[^(]+?)\s*(?:\((?P<terms>.*)\))?\s*")
_TERMS = re.compile(
    r"(?:(?P<low>-?\d+)\s*(?:to|-|\u2013)\s*(?P<high>-?\d+))?"
    r"[,;\s]*(?:weight\s*(?P<weight>\d+(?:\.\d+)?))?"
)


class Aspect(BaseModel):
    """One thing to score; scale: the lowest and the highest integer score."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    description: str = Field(min_length=1)
    scale: tuple[int, int] = (1, 5)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == REASONING:
            raise ValueError(f"an aspect cannot be named {REASONING!r}, which the answer contains")
        return name

    @field_validator("scale")
    @classmethod
    def _rising(cls, scale: tuple[int, int]) -> tuple[int, int]:
        low, high = scale
        if not low < high <= low + LONGEST_SCALE:
            raise ValueError(
                f"expected a lower and a higher integer, at most {LONGEST_SCALE} apart, such as "
                f"[1, 5], found [{low}, {high}]"
            )
        return scale

    @property
    def scores(self) -> range:
        """All scores of the scale."""
        return range(self.scale[0], self.scale[1] + 1)

    def share(self, score: float) -> float:
        """A score as 0 to 1."""
        low, high = self.scale
        return (score - low) / (high - low)

    @property
    def line(self) -> str:
        """The aspect as the judge reads it."""
        return f"- {self.name} ({self.scale[0]} to {self.scale[1]}): {self.description}"


class Rubric(BaseModel):
    """What to judge by; introduction: what the judge should know first; mean: of the aspects'
    scores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    introduction: str = ""
    aspects: list[Aspect] = Field(min_length=1)
    mean: Literal["arithmetic", "geometric"] = "arithmetic"

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [aspect.name for aspect in self.aspects]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the aspect {name!r} occurs twice")
        return self

    def value(self, scores: Mapping[str, float]) -> float:
        """The mean of the scores as 0 to 1, by the aspects' weights.

        The geometric one is 0 where any score is the lowest.
        """
        total = sum(aspect.weight for aspect in self.aspects)
        shares = [(a.weight / total, a.share(scores[a.name])) for a in self.aspects]
        if self.mean == "geometric":
            return math.prod(share**weight for weight, share in shares)
        return sum(weight * share for weight, share in shares)


def read(path: str) -> Rubric:
    """A rubric from a file: YAML with `introduction`, `aspects` and `mean`, or Markdown. Or one of
    the package's own by its name: `edit_four` and `gedit`, for edited pictures.

    In Markdown every heading of the second level is an aspect, `## name (1 to 5, weight 2)`, with
    the text below it as description; the text before the first one is the introduction.

    Raises ValueError, which names the file, if it cannot be read or is not a rubric.
    """
    own = RUBRICS / f"{path}.yaml"
    file = own if path.isidentifier() and own.is_file() else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the rubric {path!r} cannot be read: {error}") from error
    try:
        is_markdown = file.suffix.lower() in (".md", ".markdown")
        return Rubric.model_validate(_markdown(text) if is_markdown else yaml.safe_load(text))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the rubric {path!r} is not valid YAML: {reason}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"the rubric {path!r}: {f'{place}: ' * bool(place)}{reason}") from error
    except ValueError as error:
        raise ValueError(f"the rubric {path!r}: {error}") from error


def _markdown(text: str) -> dict[str, Any]:
    introduction: list[str] = []
    aspects: list[dict[str, Any]] = []
    lines = introduction
    for line in text.splitlines():
        if not line.startswith("##"):
            lines.append(line)
            continue
        heading = _HEADING.fullmatch(line)
        terms = _TERMS.fullmatch((heading and heading["terms"]) or "")
        if heading is None or terms is None:
            raise ValueError(f"expected a heading such as `## name (1 to 5, weight 2)`: {line!r}")
        lines = []
        aspects.append({"name": heading["name"], "description": lines})
        if terms["low"]:
            aspects[-1]["scale"] = (int(terms["low"]), int(terms["high"]))
        if terms["weight"]:
            aspects[-1]["weight"] = float(terms["weight"])
    if not aspects:
        raise ValueError("it has no aspects: expected headings such as `## name (1 to 5)`")
    for aspect in aspects:
        aspect["description"] = "\n".join(aspect["description"]).strip()
    return {"introduction": "\n".join(introduction).strip(), "aspects": aspects}
