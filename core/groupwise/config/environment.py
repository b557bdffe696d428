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
