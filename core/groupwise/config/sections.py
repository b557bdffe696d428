"""The sections of a run's configuration: every key with its type, default and meaning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from groupwise.balance import Constraint, Schedule
from groupwise.config.learners import (
    LISTS,
    SOLE,
    TAKEN,
    LearnerSection,
    Learning,
    StageSection,
    grpo_unless_named,
    learning,
)
from groupwise.config.section import PluginSection, Section, mistake_at
from groupwise.config.tracking import TrackerSection
from groupwise.config.train import TrainSection


class WeightingSection(Section):
    """Which prompts are drawn more often than others: those that succeed about half the time."""

    explore: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of the draws that are the next prompt in the usual order; the others "
        "are prompts seen before, those that succeed about half the time",
    )
    half_life: float = Field(
        default=20.0,
        gt=0,
        description="steps after which what came of a prompt counts half",
    )
    size: int = Field(
        default=100_000,
        ge=1,
        description="questions remembered, 32 bytes each in checkpoints",
    )


class PromptsSection(PluginSection):
    held_out: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="share of the prompts kept from training, for evaluation",
    )
    shuffle: bool = Field(
        default=True, description="draw training prompts in a seeded random order"
    )
    key: str | None = Field(
        default=None,
        description="column that says what a row asks, where several prompts ask the same: they "
        "are held out together; the source's own if unset, else the prompt",
    )
    weighting: WeightingSection | None = Field(
        default=None,
        description="draw prompts more often that succeed about half the time; `{}` takes the "
        "defaults, null draws all alike ([Data that teaches](data.md))",
    )

    @model_validator(mode="after")
    def _order_is_one(self) -> Self:
        if self.weighting is not None and not self.shuffle:
            raise mistake_at(
                ("shuffle",),
                "false keeps the source's order, and prompts.weighting draws by success; leave "
                "out one of the two",
            )
        return self


class MeasureSection(PluginSection):
    """A reward's name and limits, whether it is trained on or only watched."""

    label: str | None = Field(
        default=None, description="its name in metrics; if unset, `name`, or what follows its colon"
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        le=1e9,  # more than clocks of the system take
        description="seconds a call on a whole batch may take; 120 if unset",
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="when it fails: stop the run, or skip the failed samples"
    )
    isolate: bool = Field(
        default=False,
        description="call it in a process of its own, which is killed when it hangs",
    )

    @property
    def title(self) -> str:
        """What metrics and the rest of the configuration call it."""
        return self.label or self.name.rpartition(":")[2]


def _kind_of_weight(value: Any) -> str:
    return "Schedule" if isinstance(value, Mapping | Schedule) else "float"


# The kind is looked at first, so that a mistake in a schedule is not also one in a number.
Weight = Annotated[
    Annotated[float, Tag("float")] | Annotated[Schedule, Tag("Schedule")],
    Discriminator(_kind_of_weight),
]


class RewardSection(MeasureSection):
    weight: Weight | None = Field(
        default=None, description="factor in the total reward, or a schedule of it; 1 if unset"
    )
    constraint: Constraint | None = Field(
        default=None, description="bounds to hold its mean by, in place of a weight"
    )

    @model_validator(mode="before")
    @classmethod
    def _bounds_are_not_commented_out(cls, value: Any) -> Any:
        # What a run writes has a line for each key, unset ones too; a person leaves keys out.
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
                "a reward with a constraint counts by its multiplier and has no weight; leave out "
                "one of them, or list the reward twice, once with another label",
            )
        return self


class WatchSection(MeasureSection):
    better: Literal["higher", "lower"] = Field(
        default="higher", description="which way it improves"
    )
    tolerance: float = Field(
        default=0.0, ge=0, description="how far its mean may worsen without an alarm"
    )


class EvaluationSection(Section):
    prompts: int | None = Field(
        default=None,
        ge=0,
        description="held-out prompts; up to 100 if unset, 0 evaluates nothing",
    )
    samples: int = Field(default=1, ge=1, description="sampled completions for each prompt")
    greedy: bool = Field(
        default=True,
        description="also one greedy completion of each, where a policy has such a mode",
    )
    every: int = Field(
        default=0, ge=0, description="steps between evaluations; 0: only before and after"
    )
    accuracy: str | None = Field(
        default=None,
        description="label of the reward, trained or watched, that tells right from wrong; "
        "if unset the first reward, as long as it gives only 0 and 1",
    )
    threshold: float | None = Field(
        default=None, description="a completion is right at this reward or above; 1 if unset"
    )
    distinct: bool = Field(
        default=True, description="ask each question once, however often the source repeats it"
    )
    source: PluginSection | None = Field(default=None, description="held-out prompts of their own")

    @property
    def count(self) -> int:
        """Held-out prompts asked for, if there are as many."""
        return 100 if self.prompts is None else self.prompts


class RunConfig(Section):
    output: Path = Field(
        default=Path("runs/run"),
        description="the run's folder, relative to where the command is called; "
        "`runs/` and the configuration file's name if unset",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="of prompts, sampling and initialisation"
    )
    policy: PluginSection | None = Field(
        default=None, description="what is trained; in its place `pool` or `chain`, of several"
    )
    pool: list[LearnerSection] | None = Field(
        default=None, description="policies that share the completions of each prompt, and learn"
    )
    chain: list[StageSection] | None = Field(
        default=None, description="policies of which each one's completion is the next one's prompt"
    )
    sampler: PluginSection | None = Field(
        default=None, description="what draws completions; the policy itself if unset"
    )
    prompts: PromptsSection = Field(description="where prompts come from")
    rewards: list[RewardSection] = Field(min_length=1, description="what is rewarded")
    watch: list[WatchSection] = Field(
        default=[], description="rewards that are measured at evaluations and never trained on"
    )
    algorithm: PluginSection = Field(
        default=PluginSection(name="grpo"), description="what is learned from rewards"
    )
    train: TrainSection = Field(default=TrainSection(), description="how much and how fast")
    evaluation: EvaluationSection = Field(
        default=EvaluationSection(), description="what is measured on held-out prompts"
    )
    callbacks: list[PluginSection] = Field(
        default=[], description="what else happens during the run"
    )
    tracking: list[TrackerSection] = Field(
        default=[],
        description="where metrics and completions are also sent: wandb, tensorboard, trackio, "
        "mlflow, swanlab ([Trackers](runs.md#trackers))",
    )

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_grpo_unless_named(cls, value: Any) -> Any:
        return grpo_unless_named(value)

    @model_validator(mode="after")
    def _names_what_learns(self) -> Self:
        several = [key for key in LISTS if getattr(self, key) is not None]
        if self.policy is None and not several:
            raise mistake_at(("policy",), "missing, it has no default")
        if len(several) + (self.policy is not None) > 1:
            raise mistake_at(
                (several[-1],),
                "a run has a policy, a pool of policies or a chain of them: choose one",
            )
        for key in several:
            self._check_learners(key)
        return self

    def _check_learners(self, key: str) -> None:
        listed: list[LearnerSection] = getattr(self, key)
        if len(listed) < 2:
            raise mistake_at((key,), f"expected at least 2 policies, found {len(listed)}")
        labels = [section.label for section in listed]
        for number, label in enumerate(labels):
            if label in labels[:number]:
                raise mistake_at((key, number, "label"), f"another one is labelled {label!r}")
            if label in TAKEN or label in {each.title for each in (*self.rewards, *self.watch)}:
                raise mistake_at(
                    (key, number, "label"),
                    f"{label!r} already names metrics or an argument of rewards; choose another",
                )
        if not any(section.learns for section in listed):
            raise mistake_at((key,), "none of them learns")
        self._check_shared(key, listed)
        for number, section in enumerate(listed):
            try:
                learning(section, (key, number), self.train)
            except ValidationError as error:
                details = error.errors(include_url=False, include_input=False)[0]
                context = details.get("ctx", {})
                path = *details["loc"], *context.get("path", ())
                problem = str(context.get("message") or context.get("error") or details["msg"])
                raise mistake_at((key, number, "train", *path), problem) from None

    def _check_shared(self, key: str, listed: Sequence[LearnerSection]) -> None:
        """What stands beside the list, for all in it."""
        for name in ("sampler", "algorithm"):
            if name in self.model_fields_set and getattr(self, name) is not None:
                raise mistake_at((name,), f"each policy of a {key} has its own: set it there")
        for name, what in (("ahead", "sampled ahead"), ("replay", "replayed")):
            if getattr(self.train, name):
                raise mistake_at(("train", name), f"nothing is {what} in a {key}")
        sized = [n for n, x in enumerate(listed) if dict(x.train)["group_size"] is not None]
        if key == "pool" and sized:
            raise mistake_at(
                (key, sized[0], "train", "group_size"),
                "the policies of a pool share train.group_size evenly; set that",
            )
        if key == "pool" and self.train.group_size % len(listed):
            raise mistake_at(
                ("train", "group_size"),
                f"{len(listed)} policies cannot share groups of {self.train.group_size} evenly",
            )

    @property
    def learners(self) -> Mapping[str, Learning]:
        """What learns, by label: what holds for each, in the order of the configuration."""
        if self.policy is not None:
            sole = Learning(
                path=(),
                group_size=self.train.group_size,
                policy=self.policy,
                sampler=self.sampler,
                algorithm=self.algorithm,
                train=self.train,
            )
            return {SOLE: sole}
        sharing = len(self.pool or [SOLE])
        return {
            section.label: learning(section, (key, number), self.train, sharing=sharing)
            for key in LISTS
            for number, section in enumerate(getattr(self, key) or ())
        }
