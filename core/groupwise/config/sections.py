"""The sections of a run's configuration: every key with its type, default and meaning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from groupwise.config.environment import EnvironmentSection
from groupwise.config.learners import (
    ARGUMENTS,
    PLAYERS,
    SOLE,
    LearnerSection,
    LearnerSettings,
    grpo_unless_named,
    learning,
    teacher_as_policy,
)
from groupwise.config.measures import RewardSection, WatchSection
from groupwise.config.prompts import PromptsSection
from groupwise.config.train import TrainSection
from groupwise.kit.errors import did_you_mean
from groupwise.kit.metric_names import problem_of_label
from groupwise.kit.schedule import Schedule
from groupwise.kit.section import PluginSection, Section, mistake_at

HTML = PluginSection(name="html")
"""The default report. A run does without it if no installed plugin registers it."""


class EvaluationSection(Section):
    prompts: int | None = Field(
        default=None,
        ge=0,
        description="number of held-out prompts; up to 100 if unset, 0: no evaluation",
    )
    samples: int = Field(default=1, ge=1, description="sampled completions for each prompt")
    greedy: bool = Field(
        default=True,
        description="also sample one greedy completion of each, if the policy has a greedy mode",
    )
    every: int = Field(
        default=0, ge=0, description="steps between evaluations; 0: only before and after training"
    )
    accuracy: str | None = Field(
        default=None,
        description="label of the reward, trained or watched, that tells right from wrong; "
        "if unset the first that says that it judges (`judges`)",
    )
    threshold: float | None = Field(
        default=None,
        description="a completion is right if that reward is at least this; 1 if unset",
    )
    distinct: bool = Field(
        default=True, description="use each question once, even if the source repeats it"
    )
    default_watches: bool = Field(
        default=True,
        description="also watch what installed packages measure of completions of their class, of "
        "pictures for example their darkness ([Watching what is not trained "
        "on](configuration.md#watching-what-is-not-trained-on))",
    )
    source: PluginSection | None = Field(
        default=None,
        description="a prompt source for evaluation only; if unset, `prompts.held_out` of the "
        "training prompts",
    )

    @property
    def count(self) -> int:
        """The number of held-out prompts to evaluate; without `prompts` set there may be fewer."""
        return 100 if self.prompts is None else self.prompts


class RunConfig(Section):
    output: Path = Field(
        default=Path("runs/run"),
        description="the run's folder, relative to the current folder; `runs/` and the "
        "configuration file's name if unset",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**32, description="of prompts, sampling and initialisation"
    )
    policy: PluginSection | None = Field(
        default=None, description="the policy to train; use `players` instead for several"
    )
    teacher: PluginSection | None = Field(
        default=None,
        description="a frozen policy that the policy learns to imitate on its own completions; "
        "options are the policy's unless set ([Learning from a teacher](distillation.md))",
    )
    players: list[LearnerSection] | None = Field(
        default=None, description="several policies, which the `environment` calls by their labels"
    )
    environment: EnvironmentSection = Field(
        default=EnvironmentSection(name="single"),
        description="how an episode is played: `single` is one call of the policy; `pool` and "
        "`chain` are for several `players`",
    )
    sampler: PluginSection | None = Field(
        default=None, description="the engine that samples completions; the policy itself if unset"
    )
    prompts: PromptsSection = Field(description="the source of prompts")
    rewards: list[RewardSection] = Field(min_length=1, description="rewards to train on")
    watch: list[WatchSection] = Field(
        default=[], description="rewards that are measured at evaluations and never trained on"
    )
    algorithm: PluginSection = Field(
        default=PluginSection(name="grpo"), description="the algorithm: from rewards to a loss"
    )
    train: TrainSection = Field(
        default=TrainSection(), description="steps, batch sizes, optimizer, memory, checkpoints"
    )
    evaluation: EvaluationSection = Field(
        default=EvaluationSection(), description="measurements on held-out prompts"
    )
    callbacks: list[PluginSection] = Field(
        default=[], description="further actions during the run: trackers, logs"
    )
    reports: list[PluginSection] = Field(
        default=[HTML],
        description="pages that the run writes into its folder at its end; `[]`: none",
    )
    tracking: list[PluginSection] = Field(
        default=[],
        description="where metrics and completions are also sent ([Trackers](runs.md#trackers))",
    )

    @model_validator(mode="before")
    @classmethod
    def _completes_the_teacher(cls, data: Any) -> Any:
        return teacher_as_policy(data)

    @field_validator("algorithm", mode="before")
    @classmethod
    def _is_grpo_unless_named(cls, value: Any) -> Any:
        return grpo_unless_named(value)

    @model_validator(mode="after")
    def _names_measures_once(self) -> Self:
        taken = [section.title for section in self.rewards]
        for number, section in enumerate(self.watch):
            if section.title in taken:
                problem = (
                    f"another reward is named {section.title!r}; give this one another `label`"
                )
                raise mistake_at(("watch", number), problem)
            taken.append(section.title)
        name, at = self.evaluation.accuracy, ("evaluation", "accuracy")
        if name is not None and name not in taken:
            problem = f"no reward {name!r}{did_you_mean(name, taken)}; there are {', '.join(taken)}"
            raise mistake_at(at, problem)
        better = {section.title: section.better for section in self.watch}.get(name or "", "higher")
        if better != "higher":
            raise mistake_at(
                at,
                f"{name!r} has better: {better}, but a completion is right at a value of "
                f"evaluation.threshold or above; name a reward with better: higher",
            )
        return self

    @model_validator(mode="after")
    def _names_sources_of_prompts(self) -> Self:
        titles = [source.title for source in self.prompts.sources or ()]
        for key, sections in (("rewards", self.rewards), ("watch", self.watch)):
            for number, section in enumerate(sections):
                for name in section.sources or ():
                    if name not in titles:
                        hint = did_you_mean(name, titles)
                        known = (
                            f"there are {', '.join(titles)}" if titles else "there is no mixture"
                        )
                        problem = f"prompts.sources has no {name!r}{hint}; {known}"
                        raise mistake_at((key, number, "sources"), problem)
        for number, learner in enumerate(self.players or ()):
            if learner.label in titles:
                problem = f"a source of prompts is labelled {learner.label!r}; choose another"
                raise mistake_at((PLAYERS, number, "label"), problem)
        return self

    @model_validator(mode="after")
    def _ends_once(self) -> Self:
        train = self.train
        if train.data_epochs is None:
            return self
        if "steps" in train.model_fields_set:
            problem = (
                "a run has `steps`, or as many as its `data_epochs` take: leave one out, on the "
                "command line by train.steps=null or train.data_epochs=null"
            )
            raise mistake_at(("train", "data_epochs"), problem)
        if self.prompts.sources:
            problem = "the sources of a mixture are passed at different speeds; set train.steps"
            raise mistake_at(("train", "data_epochs"), problem)
        if self.prompts.weighting is not None:
            problem = (
                "prompts.weighting draws some prompts again before others, so that there are no "
                "passes over them; set train.steps"
            )
            raise mistake_at(("train", "data_epochs"), problem)
        return self

    @model_validator(mode="after")
    def _ends_schedules_of_weights(self) -> Self:
        if self.train.data_epochs is not None:
            return self  # checked when the steps are counted
        for number, section in enumerate(self.rewards):
            weight, last = section.weight, self.train.steps
            if isinstance(weight, Schedule) and weight.steps > last:
                raise mistake_at(
                    ("rewards", number, "weight", "steps"),
                    f"the schedule takes {weight.steps} steps, but the run has only {last}; "
                    f"lower it, or raise train.steps",
                )
        return self

    @model_validator(mode="after")
    def _names_a_tracker_once(self) -> Self:
        names = [section.name for section in self.tracking]
        for number, name in enumerate(names):
            if name in names[:number]:
                problem = f"{name} is named twice; leave out one of them"
                raise mistake_at(("tracking", number), problem)
        return self

    @model_validator(mode="after")
    def _names_what_learns(self) -> Self:
        if self.policy is None and self.players is None:
            raise mistake_at(("policy",), "missing, it has no default")
        if self.policy is not None and self.players is not None:
            raise mistake_at((PLAYERS,), "a run has a policy, or several players: choose one")
        if self.players is not None:
            self._check_players(self.players)
        return self

    def _check_players(self, players: Sequence[LearnerSection]) -> None:
        self._check_labels([section.label for section in players])
        if len(players) < 2:
            raise mistake_at((PLAYERS,), f"expected at least 2 policies, found {len(players)}")
        if not any(section.learns for section in players):
            raise mistake_at((PLAYERS,), "none of them learns")
        for name in ("teacher", "sampler", "algorithm"):  # sections outside the list
            if name in self.model_fields_set and getattr(self, name) is not None:
                raise mistake_at((name,), "each of several players has its own: set it there")
        for name in ("ahead", "replay"):
            if getattr(self.train, name):
                raise mistake_at(
                    ("train", name), "runs of several players do not support it; leave it out"
                )
        for number, section in enumerate(players):
            self._check_settings(section, number)

    def _check_labels(self, labels: Sequence[str]) -> None:
        rewards = {section.title for section in (*self.rewards, *self.watch)}
        for number, label in enumerate(labels):
            problem = problem_of_label(label, {*rewards, *ARGUMENTS})
            if label in labels[:number]:
                problem = f"another one is labelled {label!r}"
            if problem:
                raise mistake_at((PLAYERS, number, "label"), problem)

    def _check_settings(self, section: LearnerSection, number: int) -> None:
        try:
            learning(section, (PLAYERS, number), self.train)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)[0]
            context = details.get("ctx", {})
            path = *details["loc"], *context.get("path", ())
            problem = str(context.get("message") or context.get("error") or details["msg"])
            raise mistake_at((PLAYERS, number, "train", *path), problem) from None

    @property
    def learners(self) -> Mapping[str, LearnerSettings]:
        """The settings of each learner by label, in the order of the configuration."""
        if self.players is not None:
            return {
                section.label: learning(section, (PLAYERS, number), self.train)
                for number, section in enumerate(self.players)
            }
        assert self.policy is not None
        sole = LearnerSettings(
            path=(),
            policy=self.policy,
            teacher=self.teacher,
            sampler=self.sampler,
            algorithm=self.algorithm,
            train=self.train,
        )
        return {SOLE: sole}
