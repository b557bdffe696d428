"""Credit: how the turns of an episode share its advantage."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from groupwise.algorithms.credit.gigpo import gigpo
from groupwise.algorithms.credit.mt_grpo import mt_grpo
from groupwise.algorithms.credit.returns import turn_returns
from groupwise.algorithms.credit.table import Table
from groupwise.algorithms.parts.part import Options
from groupwise.rollouts import Rollouts

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "outcome": {},
    "turns": {"weight": 0.5},
    "return": {"discount": 1.0},
    "gigpo": {"discount": 0.95, "weight": 1.0},
}
"""By name, the options that it has, and their values if unset."""


class Credit(Options):
    """The advantages of the turns of an episode, in `algorithms/credit`."""

    name: Literal["outcome", "turns", "return", "gigpo"] = Field(
        "outcome",
        description="the outcome for all turns alike (outcome); each turn's own reward, and in "
        "part the outcome (turns); the rewards from a turn on (return); the outcome, and returns "
        "of turns that began in the same state (gigpo)",
    )
    discount: float | None = Field(
        None,
        ge=0,
        le=1,
        description="of return and gigpo: a reward counts times this for each turn between; 1, "
        "for gigpo 0.95, if unset",
    )
    weight: float | None = Field(
        None,
        ge=0,
        description="of turns: that of the outcome's advantage where a turn has a reward, 0.5 if "
        "unset; of gigpo: that of the comparison by states, 1 if unset",
    )

    @model_validator(mode="after")
    def _has_these_options(self) -> Self:
        for option in ("discount", "weight"):
            if getattr(self, option) is not None and option not in DEFAULTS[self.name]:
                raise ValueError(f"credit: {self.name} has no {option}; leave it out")
        return self

    @property
    def options(self) -> dict[str, float]:
        """The options of its formula, by name."""
        defaults = DEFAULTS[self.name].items()
        return {n: x if getattr(self, n) is None else getattr(self, n) for n, x in defaults}

    def advantages(
        self, rollouts: Rollouts, outcome: Tensor, episode: Tensor, **comparison: Any
    ) -> Tensor:
        """[B], or [B, T] unless all turns have the outcome alike.

        outcome: [B], the reward of each episode, NaN for none; episode: [B], its advantage;
        comparison: as of `advantages.group_relative`. Turns without the reward or state that it
        compares have that of the episode.
        """
        if self.name == "outcome" or not len(rollouts):
            return episode
        table, options = Table(rollouts), {**self.options, **comparison}
        if self.name == "return":
            return table.placed(turn_returns(table, outcome, **options))
        if self.name == "turns":
            return table.placed(mt_grpo(table, outcome, episode, **options))
        return table.placed(gigpo(table, outcome, episode, **options))

    def applies(self, rollouts: Rollouts) -> bool:
        """Whether any turn has what it compares: a reward, or a state."""
        field = {"turns": "reward", "gigpo": "state"}.get(self.name)
        if field is None or not len(rollouts):
            return True
        turns = (turn for own in rollouts.each_turn for turn in own)
        return any(getattr(turn, field) is not None for turn in turns)

    @property
    def missing(self) -> str:
        """What to say where it applies to no turn."""
        column = {"turns": "turn_rewards", "gigpo": "states"}[self.name]
        return (
            f"algorithm.credit: {self.name} compares `{column}`, and in this step the environment "
            f"returned none, so every turn has the advantage of its episode; return them from "
            f"`play`, or set credit: return, which needs none"
        )


def _section(value: Any) -> Any:
    """A word is a section that has only a name."""
    return {"name": value} if isinstance(value, str) else value


CreditOption = Annotated[Credit, BeforeValidator(_section)]
"""The type of an option: a word, or a section."""
