"""Trackers: metrics and completions of a run, sent to wandb, TensorBoard and their like.

They are those of accelerate. Their packages are imported when a run starts that names them.
"""

from groupwise.tracking.tracking import Tracking, check_trackers

__all__ = ["Tracking", "check_trackers"]
