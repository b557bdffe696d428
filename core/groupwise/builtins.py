"""What the core itself registers, through the same hooks as anybody's plugin."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("grpo", "groupwise.algorithms.grpo:GRPO")
    register("dr_grpo", "groupwise.algorithms.dr_grpo:DrGRPO")
    register("dapo", "groupwise.algorithms.dapo:DAPO")
    register("gspo", "groupwise.algorithms.gspo:GSPO")
    register("gdpo", "groupwise.algorithms.gdpo:GDPO")


@hookimpl
def register_prompts(register: Register) -> None:
    register("rows", "groupwise.prompts.rows:Rows")
    register("dataset", "groupwise.prompts.dataset:Dataset", extra="data")
