"""Registers the report as HTML, and the command that writes and serves its pages."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_reports(register: Register) -> None:
    register("html", "groupwise_report.writing:write")


@hookimpl
def register_commands(register: Register) -> None:
    register("report", "groupwise_report.command:report")
