"""Measures: the sections of rewards, those trained on and those only watched."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from groupwise.evaluation import Better
from groupwise.kit.constraint import Constraint
from groupwise.kit.schedule import Schedule
from groupwise.kit.section import PluginSection, mistake_at


class MeasureSection(PluginSection):
    """A reward's name and limits, whether it is trained on or only watched."""

    label: str | None = Field(
        default=None,
        description="name of the reward in metrics; if unset, `name`, of `module:attribute` the "
        "attribute",
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        le=1e9,  # the system's clocks take no more
        description="seconds that a call on a whole batch may take; 120 if unset",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="if it fails: stop the run, or skip the failed samples"
    )
    isolate: bool = Field(
        default=False,
        description="call it in a process of its own, which is killed if it hangs",
    )
    sources: list[str] | None = Field(
        default=None,
        min_length=1,
        description="labels of the sources in a mixture whose rows it judges; all if unset",
    )
    audit: Literal["note", "refuse", "skip"] | None = Field(
        default=None,
        description="before a run, of right and wrong answers that it judges wrongly: note them in "
        "`groupwise check`, or refuse to begin; skip: do not try; note if unset, but of a reward "
        "that is async or loads a model only if set ([The audit](audit.md))",
    )

    @property
    def title(self) -> str:
        """Its name in metrics and in the rest of the configuration."""
        return self.label or self.name.rpartition(":")[2]


def _kind_of_weight(value: Any) -> str:
    return "Schedule" if isinstance(value, Mapping | Schedule) else "float"


# Discriminated, so that a mistake in a schedule is not also reported as one in a number.
Weight = Annotated[
    Annotated[float, Tag("float")] | Annotated[Schedule, Tag("Schedule")],
    Discriminator(_kind_of_weight),
]


class RewardSection(MeasureSection):
    weight: Weight | None = Field(
        default=None, description="factor in the total reward, or a schedule for it; 1 if unset"
    )
    constraint: Constraint | None = Field(
        default=None, description="bounds on its mean, in place of a weight"
    )

    @model_validator(mode="before")
    @classmethod
    def _bounds_are_not_commented_out(cls, value: Any) -> Any:
        # config.yaml of a run has every key, unset ones as null; users leave unset keys out. So a
        # null constraint beside no weight is a section whose bounds are commented out.
        keys = value if isinstance(value, Mapping) else {}
        if "constraint" in keys and keys["constraint"] is None and "weight" not in keys:
            problem = "a constraint needs a bound: set at_most, at_least"
            raise mistake_at(("constraint",), problem)
        return value

    @model_validator(mode="after")
    def _has_one_role(self) -> Self:
        if self.weight is not None and self.constraint is not None:
            raise mistake_at(
                ("weight",),
                "a reward with a constraint is weighted by its multiplier and has no weight of its "
                "own; leave out one of them, or list the reward twice, once with another label",
            )
        return self


class WatchSection(MeasureSection):
    better: Better = Field(
        default="higher",
        description="whether higher or lower values are better; same: any change since the first "
        "evaluation is for the worse",
    )
    tolerance: float = Field(
        default=0.0, ge=0, description="how much its mean may worsen without an alarm"
    )
