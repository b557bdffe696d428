"""EnvironmentSection: the section of the environment, with the limits of any."""

from pydantic import Field

from groupwise.kit.section import PluginSection

TURN_DEADLINE = 600.0
"""The default of `turn_deadline`."""


class EnvironmentSection(PluginSection):
    turn_deadline: float = Field(
        default=TURN_DEADLINE,
        gt=0,
        le=1e9,  # the system's clocks take no more
        description="seconds that the environment may take between two completions of an episode, "
        "which fails after that",
    )
    episodes: int | None = Field(
        default=None,
        ge=1,
        description="episodes that each process plays at once, where each needs something of which "
        "there are so many (a container, a session of a server): the next one begins when one is "
        "over, in the order of draws; null: all of them",
    )
