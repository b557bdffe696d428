"""verl-omni's options, as in its `diffusion_trainer.yaml`."""

from groupwise_commands.porting.option import Group
from groupwise_commands.porting.verl_omni import model, run

TABLE: tuple[Group, ...] = (model.MODEL, model.ROLLOUT, run.ACTOR, run.RUN)
"""In the order in which options are applied."""
