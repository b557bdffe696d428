"""Learners: the sections of several policies that learn in one run, and the settings of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from groupwise.config.train import TrainSection
from groupwise.kit.section import KeyPath, PluginSection, Section, mistake_at

SOLE = "policy"
"""The label of the only learner of a run with the section `policy`."""
PLAYERS = "players"
"""The key of the configuration that lists several learners."""
ARGUMENTS = (
    *("completions", "completion_ids", "environments", "groups", "log_extra", "log_metric"),
    *("purpose", "references", "trainer_state"),
)
"""Arguments of rewards, which get the texts of a chain's policies by their labels, too."""
_OWN = (
    *("group_size", "updates_per_rollout", "epochs", "optimizer", "learning_rate", "schedule"),
    *(
        "warmup_steps",
        "weight_decay",
        "betas",
        "epsilon",
        "max_grad_norm",
        "ema",
        "ema_every",
        "microbatch",
    ),
    *("sample_batch", "max_skipped_updates"),
)
"""Keys of `train` that a learner may set for itself; the others hold for the whole run."""


def _optional(name: str) -> tuple[Any, Any]:
    of_run = TrainSection.model_fields[name]
    field = FieldInfo(
        default=None, description=f"for this learner; the run's `train.{name}` if unset"
    )
    field.metadata.extend(of_run.metadata)
    return of_run.annotation | None, field  # type: ignore[operator]


OwnTrain = create_model("OwnTrain", __base__=Section, **{name: _optional(name) for name in _OWN})  # type: ignore[call-overload]


def teacher_as_policy(section: Any) -> Any:
    """`teacher: {model: PATH}` has the policy's name and options, but for those it sets itself."""
    if not isinstance(section, Mapping):
        return section
    policy, teacher = section.get("policy"), section.get("teacher")
    policy = {"name": policy} if isinstance(policy, str) else policy
    if not isinstance(policy, Mapping) or not isinstance(teacher, Mapping):
        return section
    named = policy.get("name")
    if teacher.get("name", named) != named:
        return section
    return {**section, "teacher": {**policy, **teacher}}


def grpo_unless_named(value: Any) -> Any:
    """`algorithm: {beta: 0.1}`, without a name, is GRPO with that option."""
    return {"name": "grpo", **value} if isinstance(value, Mapping) else value


class LearnerSection(Section):
    label: str = Field(
        description="name of this learner in metrics and in the run's folder",
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$",
    )
    policy: PluginSection = Field(description="the policy to train")
    teacher: PluginSection | None = Field(
        default=None, description="a frozen policy that it learns to imitate on its completions"
    )
    sampler: PluginSection | None = Field(
        default=None,
        description="the engine that samples its completions; the policy itself if unset",
    )
    algorithm: PluginSection = Field(
        default=PluginSection(name="grpo"), description="the algorithm that trains it"
    )
    train: OwnTrain = Field(
        default=OwnTrain(),
        description="settings that differ from the run's `train`; it may set "
        + ", ".join(f"`{name}`" for name in _OWN),
    )
    learns: bool = Field(default=True, description="false: frozen, it only samples")

    @model_validator(mode="before")
    @classmethod
    def _completes_the_teacher(cls, section: Any) -> Any:
        return teacher_as_policy(section)

    @model_validator(mode="after")
    def _learns_from_the_teacher(self) -> Self:
        if self.teacher is not None and not self.learns:
            raise mistake_at(("teacher",), "learns: false, so it has no use; leave one of them out")
        return self

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_grpo_unless_named(cls, value: Any) -> Any:
        return grpo_unless_named(value)


@dataclass(frozen=True, kw_only=True)
class LearnerSettings:
    """The settings of one learner of a run, with the run's own where it sets none.

    path: of the section with its keys, () at the top.
    """

    path: KeyPath
    policy: PluginSection
    teacher: PluginSection | None
    sampler: PluginSection | None
    algorithm: PluginSection
    train: TrainSection
    learns: bool = True


def learning(section: LearnerSection, path: KeyPath, train: TrainSection) -> LearnerSettings:
    """The settings of a learner; train: the run's."""
    own = TrainSection.model_validate(
        {**train.model_dump(), **section.train.model_dump(exclude_none=True)}
    )
    return LearnerSettings(
        path=path,
        policy=section.policy,
        teacher=section.teacher,
        sampler=section.sampler,
        algorithm=section.algorithm,
        train=own,
        learns=section.learns,
    )
