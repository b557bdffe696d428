"""Registers the environment and its prompts; it does not import verifiers."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_environments(register: Register) -> None:
    register("verifiers", "groupwise_verifiers.environment:Verifiers")


@hookimpl
def register_prompts(register: Register) -> None:
    register("verifiers", "groupwise_verifiers.tasks:Tasks")
