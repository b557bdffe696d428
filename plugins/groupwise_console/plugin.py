"""Registers the display of runs."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_displays(register: Register) -> None:
    register("console", "groupwise_console.display:Console")
