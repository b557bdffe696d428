"""The sections of a run's configuration: every key with its type, default and meaning."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from groupwise.balance import Constraint, Schedule
from groupwise.config.yaml_lines import KeyPath


class Section(BaseModel):
    """What all sections share: unknown keys are errors, nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PluginSection(Section):
    """A plugin by its name; a text alone is short for `{name: text}`."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="a registered name, or `module:attribute`", min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The plugin's own keys: all that the section itself does not know."""
        return dict(self.model_extra or {})


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

    @model_validator(mode="after")
    def _has_one_role(self) -> Self:
        if self.weight is not None and self.constraint is not None:
            raise _at(
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


class TrainSection(Section):
    steps: int = Field(
        default=100, ge=0, description="training steps, each with rollouts of its own"
    )
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="stop training after that time, evaluations between steps included",
    )
    groups_per_step: int = Field(default=8, ge=1, description="prompts drawn for a step")
    group_size: int = Field(
        default=8, description="completions sampled for each prompt, at least 2"
    )
    updates_per_rollout: int = Field(
        default=1,
        ge=1,
        description="optimizer updates a step's groups are cut into; must divide them",
    )
    epochs: int = Field(default=1, ge=1, description="passes over a step's rollouts")
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        default="adamw",
        description="adamw_8bit keeps the moments in 8 bits, by bitsandbytes: a quarter of their "
        "memory",
    )
    learning_rate: float = Field(default=1e-6, ge=0, description="of AdamW, after the warmup")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="how the learning rate falls; linear and cosine end at 0, after `steps`",
    )
    warmup_steps: int = Field(
        default=0, ge=0, description="steps over which the learning rate rises"
    )
    weight_decay: float = Field(default=0.0, ge=0, description="of AdamW")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        default=(0.9, 0.999), description="of AdamW"
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=True,
        description="clip the gradient's norm; .inf clips nothing",
    )
    ema: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of what is trained; if set, it is "
        "evaluated and saved",
    )
    ema_every: int = Field(
        default=1, ge=1, description="optimizer updates from one averaging to the next"
    )
    microbatch: int = Field(
        default=16384,
        ge=1,
        description="decisions in one forward and backward pass, padding included; of a language "
        "model tokens, those of prompts too",
    )
    shard: bool = Field(
        default=False,
        description="divide weights, gradients and optimizer among the processes (FSDP2), where "
        "one device cannot hold them",
    )
    tf32: bool = Field(
        default=False,
        description="on a GPU, take matrix products of float32 in TF32: quicker, of 10 bits in "
        "place of 23",
    )
    sample_batch: int = Field(default=512, ge=1, description="rollouts sampled at once")
    ahead: Literal[0, 1] = Field(
        default=0,
        description="steps that are sampled before the present one is learned from: with 1 an "
        "engine samples while the update runs, by weights one step older",
    )
    max_refills: int = Field(
        default=3, ge=0, description="rounds of resampling when the algorithm replaces groups"
    )
    max_skipped_updates: int = Field(
        default=10,
        ge=0,
        description="updates in a row whose gradient may be not finite, and which are skipped, "
        "before the run ends",
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="steps between checkpoints; 0: by minutes alone"
    )
    checkpoint_minutes: float | None = Field(
        default=15.0,
        gt=0,
        description="write a checkpoint after the first step that ends this long after the last "
        "one; null: by steps alone",
    )
    keep_checkpoints: int = Field(
        default=2, ge=1, description="how many checkpoints stay, the last"
    )

    @field_validator("group_size")
    @classmethod
    def _has_spread(cls, value: int) -> int:
        if value < 2:
            raise ValueError(
                "a group of 1 has no spread so nothing can be learned: "
                f"group_size must be at least 2, found {value}"
            )
        return value

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.groups_per_step % self.updates_per_rollout:
            raise _at(
                ("updates_per_rollout",),
                f"{self.updates_per_rollout} updates cannot share {self.groups_per_step} groups "
                "evenly: updates_per_rollout must divide groups_per_step",
            )
        return self

    @model_validator(mode="after")
    def _moments_can_be_divided(self) -> Self:
        if self.shard and self.optimizer == "adamw_8bit":
            raise _at(
                ("optimizer",),
                "adamw_8bit takes no weights that are divided among processes; set "
                "train.optimizer: adamw, or leave out train.shard",
            )
        return self


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
    policy: PluginSection = Field(description="what is trained")
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

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_grpo_unless_named(cls, value: Any) -> Any:
        return {"name": "grpo", **value} if isinstance(value, Mapping) else value


SINGLE: Mapping[KeyPath, str] = {
    ("algorithm",): "algorithms",
    ("prompts",): "prompts",
    ("evaluation", "source"): "prompts",
    ("policy",): "policies",
    ("sampler",): "samplers",
}
"""Which kind of plugin the section at a path names."""
LISTED: Mapping[str, str] = {
    "rewards": "rewards",
    "watch": "rewards",
    "callbacks": "callbacks",
}
"""The same of each section in a list."""


def kind_at(path: KeyPath) -> str | None:
    """The kind of plugin that the section at this path names; None where there is no such one."""
    of_list = LISTED.get(str(path[0])) if len(path) == 2 else None
    return of_list or SINGLE.get(path)


def plugin_sections(config: RunConfig) -> Iterator[tuple[str, KeyPath, PluginSection]]:
    """Kind, path and section of every plugin that is named, those that load little first."""
    for key, kind in LISTED.items():
        for number, section in enumerate(getattr(config, key)):
            yield kind, (key, number), section
    for path, kind in SINGLE.items():
        single: Any = config
        for part in path:
            single = getattr(single, str(part))
        if single is not None:
            yield kind, path, single


def _at(path: KeyPath, message: str) -> PydanticCustomError:
    """An error of a whole section that is about one of its keys."""
    return PydanticCustomError("at", "{message}", {"path": path, "message": message})
