"""The options of algorithms without a clip range."""

from typing import ClassVar

from groupwise.algorithms.grpo import GRPO


class Unclipped(GRPO.Config):
    """GRPO's options without those of its clip."""

    clip_low: ClassVar[None] = None  # type: ignore[misc]
    clip_high: ClassVar[None] = None  # type: ignore[misc]
    ratio_cap: ClassVar[None] = None  # type: ignore[misc]
