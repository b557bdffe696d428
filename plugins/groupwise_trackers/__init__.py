"""Trackers: send metrics and completions of a run to wandb, TensorBoard and similar services.

They use accelerate's trackers. The package of a tracker is imported only by a run that names it.
"""
