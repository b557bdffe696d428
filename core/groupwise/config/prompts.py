"""Prompts: the section of the source of prompts, of several sources, and of how they are drawn."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from groupwise.kit.section import PluginSection, Section, mistake_at


class WeightingSection(Section):
    """Draw prompts more often that succeed about half the time, as those teach most."""

    explore: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of draws that take the next prompt in the usual order; the others "
        "repeat earlier prompts that succeed about half the time",
    )
    half_life: float = Field(
        default=20.0,
        gt=0,
        description="steps after which the results of a prompt count half",
    )
    size: int = Field(
        default=100_000,
        ge=1,
        description="prompts whose results are remembered, 32 bytes each in checkpoints",
    )


class SourceSection(PluginSection):
    """One of the sources of a mixture."""

    label: str | None = Field(
        default=None,
        description="name of the source in metrics, rows and rewards; `name` if unset",
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    )
    share: float = Field(
        default=1.0, gt=0, description="of the draws, in proportion to those of the other sources"
    )

    @property
    def title(self) -> str:
        return self.label or self.name.rpartition(":")[2]


class PromptsSection(PluginSection):
    sources: list[SourceSection] | None = Field(
        default=None,
        description="several sources, each with its share of the draws "
        "([Several sources](prompts.md#several-sources))",
    )
    label_column: str = Field(
        default="source", description="column of a mixture's rows with the label of their source"
    )
    held_out: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="share of the prompts kept from training, for evaluation; each question by "
        "chance, so that of few it is more or less",
    )
    shuffle: bool = Field(
        default=True, description="draw training prompts in a seeded random order"
    )
    key: str | None = Field(
        default=None,
        description="column with the question, if several prompts ask the same: rows of one "
        "question are held out together; if unset the source's own key, else the prompt",
    )
    weighting: WeightingSection | None = Field(
        default=None,
        description="draw prompts more often that succeed about half the time; `{}` takes the "
        "defaults, null draws all equally often ([Choosing prompts and replaying "
        "successes](data.md))",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_a_mixture(cls, value: Any) -> Any:
        has_sources = isinstance(value, Mapping) and value.get("sources") is not None
        return {"name": "mixture", **value} if has_sources else value

    @model_validator(mode="after")
    def _has_sources(self) -> Self:
        if (self.name == "mixture") != bool(self.sources):
            raise mistake_at(
                ("sources",),
                "a mixture needs them: list sources, each with its `share`"
                if self.name == "mixture"
                else f"the source {self.name!r} has no sources of its own; leave out `name`, or "
                f"list it among them",
            )
        titles = [source.title for source in self.sources or ()]
        for number, title in enumerate(titles):
            if title in titles[:number]:
                raise mistake_at(
                    ("sources", number),
                    f"another source is named {title!r}; give this one another `label`",
                )
        return self

    @model_validator(mode="after")
    def _has_one_order(self) -> Self:
        if self.weighting is not None and not self.shuffle:
            raise mistake_at(
                ("shuffle",),
                "false keeps the source's order, but prompts.weighting changes the order by "
                "success; leave out one of the two",
            )
        return self
