"""Effect: what another value of an option changes, as each field of a policy's settings states."""

from enum import Enum, auto
from typing import Any

from pydantic import BaseModel


class Effect(Enum):
    """What differs between two policies of other values that read the same rollouts.

    A field has one as metadata: `steps: Annotated[int, Effect.DECISIONS]`.
    """

    DECISIONS = auto()
    """The decisions themselves: latents, steps, noise, or how a velocity becomes a log-prob. The
    policies cannot be compared, so a teacher must have the policy's value."""
    VELOCITIES = auto()
    """What the model predicts for latents: a teacher may have another value."""
    NOTHING = auto()
    """No log-prob: the option chooses what is drawn, trained, kept or shown, or where."""


def effect_of(kind: type[BaseModel], name: str) -> Effect | None:
    """The effect that this field states; None if it states none."""
    metadata = kind.model_fields[name].metadata
    return next((each for each in metadata if isinstance(each, Effect)), None)


def other_decisions(settings: BaseModel, others: Any) -> list[str]:
    """The fields in which `others` have a value with other decisions.

    An unset field, None, stands for the model's own value, which is not known here.
    """
    kind = type(settings)
    pairs = {
        name: (getattr(settings, name), getattr(others, name, None))
        for name in kind.model_fields
        if effect_of(kind, name) is Effect.DECISIONS
    }
    return [name for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]
