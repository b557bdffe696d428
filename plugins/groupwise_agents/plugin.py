"""Registers the environments of tools."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_environments(register: Register) -> None:
    register("tools", "groupwise_agents.tools:Tools")
    register("agent", "groupwise_agents.agent:Agent", extra="agents")
