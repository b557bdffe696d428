"""Registers the commands that write a configuration, sample from a run and list plugins."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_commands(register: Register) -> None:
    register("init", "groupwise_commands.init:app")
    register("port", "groupwise_commands.porting.command:port")
    register("sample", "groupwise_commands.sample:sample")
    register("plugins", "groupwise_commands.listing:plugins")
