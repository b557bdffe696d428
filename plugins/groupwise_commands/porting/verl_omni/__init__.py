"""verl-omni 0.3: image models, by Hydra's overrides on a command line."""

from groupwise_commands.porting.verl_omni.table import TABLE

__all__ = ["TABLE"]
