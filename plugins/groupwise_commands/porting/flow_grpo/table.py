"""flow_grpo's options: those of `config/base.py`, and those that `config/grpo.py` adds."""

from groupwise_commands.porting.flow_grpo import model, rewards, run
from groupwise_commands.porting.option import Group

TABLE: tuple[Group, ...] = (model.MODEL, run.SAMPLING, run.TRAINING, rewards.DATA, run.RUN)
"""In the order in which options are applied."""
DEFAULTS = {name: option for group in TABLE for option in group.options for name in option.names}
