"""What the core itself registers, through the same hooks as anybody's plugin."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("grpo", "groupwise.algorithm:GRPO")
    register("dr_grpo", "groupwise.algorithm:DrGRPO")
    register("dapo", "groupwise.algorithm:DAPO")
    register("gspo", "groupwise.algorithm:GSPO")


@hookimpl
def register_prompts(register: Register) -> None:
    register("rows", "groupwise.prompts:Rows")
    register("dataset", "groupwise.dataset:Dataset", extra="data")
