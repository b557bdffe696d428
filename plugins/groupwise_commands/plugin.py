"""Registers the commands around a run: before it, from its model, and the list of plugins."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_commands(register: Register) -> None:
    register("init", "groupwise_commands.init:app")
    register("port", "groupwise_commands.porting.command:port")
    register("publish", "groupwise_commands.publish:publish")
    register("sample", "groupwise_commands.sample:sample")
    register("plugins", "groupwise_commands.listing:plugins")
