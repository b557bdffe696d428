"""flow_grpo, the code of Flow-GRPO's authors: `config/grpo.py` and `config/base.py`."""
