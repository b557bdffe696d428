"""The core's own algorithm, environments and prompt sources, registered like any plugin's."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("grpo", "groupwise.algorithms.grpo:GRPO")


@hookimpl
def register_environments(register: Register) -> None:
    register("single", "groupwise.environments.single:Single")
    register("pool", "groupwise.environments.pool:Pool")
    register("chain", "groupwise.environments.chain:Chain")


@hookimpl
def register_prompts(register: Register) -> None:
    register("rows", "groupwise.prompts.rows:Rows")
    register("mixture", "groupwise.prompts.mixture:Mixture")
