"""flow_grpo, the code of Flow-GRPO's authors: `config/grpo.py` and `config/base.py`."""

from groupwise_commands.porting.flow_grpo.table import TABLE

__all__ = ["TABLE"]
