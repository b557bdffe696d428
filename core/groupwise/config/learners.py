"""Learners: the sections of several policies that learn in one run, and what holds for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field, create_model, field_validator
from pydantic.fields import FieldInfo

from groupwise.config.section import PluginSection, Section
from groupwise.config.train import TrainSection
from groupwise.config.yaml_lines import KeyPath

SOLE = "policy"
"""The label of the learner in a run of one: it is what the section `policy` says."""
LISTS = ("pool", "chain")
"""The keys of the configuration that list learners."""
KINDS: Mapping[str, str] = {"policy": "policies", "sampler": "samplers", "algorithm": "algorithms"}
"""By key of a learner's section, which kind of plugin it names."""
TAKEN = frozenset(
    {
        # Metrics: `time/sample`.
        *("alarm", "evaluation", "mismatch", "multipliers", "nan_rewards", "prompts", "reference"),
        *("replay", "reward_time", "rewards", "time", "watch", "weights"),
        # Arguments of rewards, to which a writer's text goes by its label.
        *("completions", "completion_ids", "environments", "log_extra", "log_metric"),
        "trainer_state",
    }
)
"""What no learner can be labelled, as it already begins names of metrics, or is an argument."""
_OWN = (
    *("group_size", "updates_per_rollout", "epochs", "optimizer", "learning_rate", "schedule"),
    *("warmup_steps", "weight_decay", "betas", "max_grad_norm", "ema", "ema_every", "microbatch"),
    *("sample_batch", "max_skipped_updates"),
)
"""Keys of `train` that a learner may have for itself; the others are the whole run's."""


def _optional(name: str) -> tuple[Any, Any]:
    of_run = TrainSection.model_fields[name]
    field = FieldInfo(default=None, description=f"its own; the run's `train.{name}` if unset")
    field.metadata.extend(of_run.metadata)
    return of_run.annotation | None, field  # type: ignore[operator]


OwnTrain = create_model("OwnTrain", __base__=Section, **{name: _optional(name) for name in _OWN})  # type: ignore[call-overload]


def grpo_unless_named(value: Any) -> Any:
    """`algorithm: {beta: 0.1}` is GRPO with that option."""
    return {"name": "grpo", **value} if isinstance(value, Mapping) else value


class LearnerSection(Section):
    label: str = Field(
        description="its name in metrics and in the run's folder",
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    )
    policy: PluginSection = Field(description="what is trained")
    sampler: PluginSection | None = Field(
        default=None, description="what draws its completions; the policy itself if unset"
    )
    algorithm: PluginSection = Field(
        default=PluginSection(name="grpo"), description="how it learns from rewards"
    )
    train: OwnTrain = Field(
        default=OwnTrain(),
        description="what of the run's `train` is different for it; it may have its own "
        + ", ".join(f"`{name}`" for name in _OWN),
    )
    learns: bool = Field(default=True, description="false: it only samples, and never changes")

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_grpo_unless_named(cls, value: Any) -> Any:
        return grpo_unless_named(value)


class StageSection(LearnerSection):
    refused: float = Field(
        default=0.0,
        description="what each reward is for a completion that the next policy cannot take as its "
        "prompt",
    )


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What holds for one learner of a run.

    path: of the section that its keys lie in, () at the top; group_size: how many completions of a
    prompt it draws, in a pool its share of the group.
    """

    path: KeyPath
    group_size: int
    policy: PluginSection
    sampler: PluginSection | None
    algorithm: PluginSection
    train: TrainSection
    learns: bool = True
    refused: float = 0.0


def learning(
    section: LearnerSection, path: KeyPath, train: TrainSection, *, sharing: int = 1
) -> Learning:
    """A learner's section with what it leaves to the run's `train`; sharing: as many a group."""
    own = TrainSection.model_validate(
        {**train.model_dump(), **section.train.model_dump(exclude_none=True)}
    )
    return Learning(
        path=path,
        group_size=own.group_size // sharing,
        policy=section.policy,
        sampler=section.sampler,
        algorithm=section.algorithm,
        train=own,
        learns=section.learns,
        refused=section.refused if isinstance(section, StageSection) else 0.0,
    )
