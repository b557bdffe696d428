"""UniRL 0.2: recipes for image models and language models, in YAML of Hydra."""

from groupwise_commands.porting.unirl.table import TABLE

__all__ = ["TABLE"]
