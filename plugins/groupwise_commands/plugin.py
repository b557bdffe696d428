"""Registers the commands that write a first configuration, sample from a run and list plugins."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_commands(register: Register) -> None:
    register("init", "groupwise_commands.init:app")
    register("sample", "groupwise_commands.sample:sample")
    register("plugins", "groupwise_commands.listing:plugins")
