"""Advantages: how a rollout compares, by default with others of its group."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from groupwise import advantages, objective
from groupwise.algorithms.parts.composed import Composed
from groupwise.algorithms.parts.credit import Credit, CreditOption
from groupwise.algorithms.parts.part import Options, Part
from groupwise.rewards import Scores
from groupwise.rollouts import Rollouts


class Advantages(Part):
    """Clips and masks what `estimate` returns, which a subclass or the algorithm defines."""

    slot = "advantage"

    class Config(Options):
        advantage_clip: float | None = Field(
            None, gt=0, description="clip advantages to [-this, this], as usual for images"
        )
        refill: bool = Field(
            False,
            description="dynamic sampling: replace groups of equal reward, or of a std below "
            "least_std, by groups of other prompts",
        )
        top_entropy_quantile: float = Field(
            1.0,
            gt=0,
            le=1,
            description="learn only from this share of an update's decisions, those of highest "
            "entropy; 0.2 in arXiv:2506.01939",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self.refills = self.config.refill
        if self.config.top_entropy_quantile < 1:
            self.target_inputs = frozenset({"old_entropy"})

    def limited(
        self, estimated: Tensor, rollouts: Rollouts, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """The advantages that were estimated, clipped; with a `top_entropy_quantile` [B, T], 0 at
        decisions of lower entropy."""
        most = self.config.advantage_clip
        clipped = estimated if most is None else estimated.clamp(-most, most)
        share = self.config.top_entropy_quantile
        if share == 1:
            return clipped
        chosen = objective.high_entropy(inputs["old_entropy"], rollouts.mask, share=share)
        return objective.per_decision(clipped) * chosen


class GroupCentred(Advantages):
    """r - mean of the group, not divided by any std, plus the same for the rewards of steps.

    A is 0 in groups whose std is below `least_std`: their rewards differ by noise.
    """

    class Config(Advantages.Config):
        credit: CreditOption = Field(
            Credit(),
            description="which of an episode's rewards the advantage of a turn is made of: a word, "
            "or a section with options",
        )
        steps: Literal["rewards", "returns"] = Field(
            "rewards",
            description="with step rewards, compare in a group: each step's reward "
            "(DeepSeekMath), or the sum of rewards from a step on",
        )
        least_std: float = Field(
            1e-3,
            ge=0,
            description="a group whose rewards have a smaller std teaches nothing, as if they were "
            "equal: set it above the noise of a reward model, in units of the total reward",
        )

    config: Config

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        own = type(whole).relative is not Composed.relative
        own |= type(self).relative is not GroupCentred.relative
        if self.config.credit.name == "return" and own:
            raise ValueError(
                f"credit: return compares what follows a turn, and {type(whole).__name__} compares "
                f"whole completions in a way of its own; set credit: turns, or take grpo or dr_grpo"
            )
        if self.config.credit.name != "outcome" and self.scale == "batch":
            raise ValueError(
                f"scale: batch is the std of the rewards of whole completions, and credit: "
                f"{self.config.credit.name} compares turns; set scale: group or none, or take "
                f"reinforce_pp_baseline, which divides by the std over all decisions"
            )
        self._credited: bool | None = None

    @property
    def scale(self) -> advantages.Scale:
        """The std that advantages are divided by."""
        return "none"

    def estimate(self, scores: Scores, rollouts: Rollouts, inputs: Mapping[str, Tensor]) -> Tensor:
        """[B], or [B, T] with process rewards or credit over turns: advantages of completions, or
        of their turns, plus those of steps; variants override this."""
        credit = self.config.credit
        relative = self.whole.relative(scores, rollouts)
        relative = credit.advantages(rollouts, scores.outcome, relative, **self._comparison)
        if scores.steps is None:
            return relative
        return objective.per_decision(relative) + self._process(scores.steps, rollouts)

    def observe(self, scores: Scores, rollouts: Rollouts) -> None:
        self._credited = bool(self._credited) or self.config.credit.applies(rollouts)

    def warning(self, metrics: Mapping[str, Any]) -> str | None:
        """A warning if no turn of the step had a reward or state for `credit` to compare."""
        credited, self._credited = self._credited, None
        return self.config.credit.missing if credited is False else None

    def no_signal(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B] bool: all advantages in the rollout's group are 0, as below `least_std`."""
        compared = objective.per_decision(GroupCentred.estimate(self, scores, rollouts, {}))
        return advantages.groups_without((compared != 0).any(dim=1), rollouts.groups)

    def relative(self, scores: Scores, rollouts: Rollouts) -> Tensor:
        """[B]: the advantages of whole completions; variants override this."""
        return advantages.group_relative(scores.outcome, rollouts.groups, **self._comparison)

    @property
    def _comparison(self) -> dict[str, Any]:
        """How values are compared in a group."""
        return {"scale": self.scale, "least_std": self.config.least_std}

    def _process(self, steps: Tensor, rollouts: Rollouts) -> Tensor:
        """[B, T]: the advantages of decisions by the rewards of steps that end at them or later."""
        by = {"rewards": advantages.process_supervision, "returns": advantages.process_returns}
        relative = by[self.config.steps](steps, rollouts.groups, **self._comparison)
        missing = rollouts.mask.shape[1] - relative.shape[1]
        return torch.nn.functional.pad(relative, (0, missing))


class GroupRelative(GroupCentred):
    """(r - mean of the group) / (std + epsilon)."""

    class Config(GroupCentred.Config):
        scale: advantages.Scale = Field(
            "group",
            description="divide advantages by the std of the group, of the batch, or by none",
        )
        epsilon: float = Field(1e-4, gt=0, description="added to the std")

    config: Config

    @property
    def scale(self) -> advantages.Scale:
        return self.config.scale

    @property
    def _comparison(self) -> dict[str, Any]:
        return {**super()._comparison, "epsilon": self.config.epsilon}
