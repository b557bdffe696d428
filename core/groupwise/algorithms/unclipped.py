"""The options of algorithms without a clip range."""

from pydantic import Field

from groupwise.algorithms.grpo import GRPO


class Unclipped(GRPO.Config):
    """GRPO's options, of which those of its clip may not be set."""

    clip_low: None = Field(None, description="none: nothing is clipped")  # type: ignore[assignment]
    clip_high: None = Field(None, description="none: nothing is clipped")
    ratio_cap: None = Field(None, description="none: nothing is clipped")
