"""UniRL's options, as its recipes have them."""

from groupwise_commands.porting.option import Group
from groupwise_commands.porting.unirl import denoising, model, run

TABLE: tuple[Group, ...] = (model.MODEL, denoising.SAMPLING, run.TRAINING, run.RUN)
"""In the order in which options are applied."""
