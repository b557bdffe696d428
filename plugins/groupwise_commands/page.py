"""Page: what one registered name does, how a configuration names it, and its options."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from groupwise import hookspecs
from groupwise.kinds import KINDS
from groupwise.kit.errors import UserError
from groupwise.plugins.targets import arguments, has_config
from groupwise.registry import Entry, target_of
from groupwise_commands.catalog import install
from groupwise_commands.docstrings import docstring, when
from groupwise_commands.layout import heading, paragraph
from groupwise_commands.options import REQUIRED, UNSET, Option, of_arguments, of_model


def page(entries: Sequence[Entry], width: int | None) -> Text:
    """The entries of one name: several, if several kinds or plugins register it.

    width: of the terminal, None for lines of any length.
    """
    return Text("\n").join(_of_entry(entry, width) for entry in entries)


def _of_entry(entry: Entry, width: int | None) -> Text:
    kind = KINDS[entry.kind]
    text = heading(entry.name, kind.singular)
    parts = [*docstring(entry.target).split("\n\n"), when(entry.target)]
    for part in filter(None, dict.fromkeys(parts)):
        text.append("\n")
        text.append(_described(part, width))
    text.append("\n")
    try:
        options = _options(entry.kind, target_of(entry))
    except UserError as error:
        text.append(paragraph(str(error), width, indent=2), style="red")
        options = None
    if entry.kind == "commands":
        text.append(f"  groupwise {entry.name} --help\n\n")
    if kind.sections:
        named = _named(entry.name, options or [])
        text.append(f"  {_in_section(kind.sections[0], named)}\n\n")
    if options:
        text.append_text(heading("options"))
        for option in options:
            text.append_text(_of_option(option, width))
        text.append("\n")
    elif options is not None:
        text.append("  It takes no options.\n\n")
    text.append(f"  source: {entry.target}, of plugin {entry.plugin} ({entry.distribution})\n")
    if entry.distribution == hookspecs.PROJECT and kind.docs:
        text.append(f"  docs:   {kind.docs}\n")
    if command := install(entry):
        text.append(f"  needs:  {command}\n")
    return text


def _described(part: str, width: int | None) -> str:
    """A paragraph of a docstring, reflowed unless it is a list or a formula."""
    lines = part.splitlines()
    if any(each.startswith((" ", "-", "|")) for each in lines) or width is None:
        return "".join(f"  {each}\n" for each in lines)
    return paragraph(" ".join(lines), width, indent=2)


def _options(kind: str, target: Any) -> list[Option] | None:
    """The options that a configuration may set; None of a command, which has arguments."""
    if kind == "commands":
        return None
    if has_config(target):
        return list(of_model(target.Config))
    if not callable(target):
        return []
    try:
        return list(of_arguments(arguments(kind, target)))
    except ValueError:  # a built-in type without a signature
        return []


def _in_section(section: str, named: str) -> str:
    """A plugin in its section of a configuration, or in its list of sections."""
    key = section.removesuffix("[]")
    return f"{key}: {named}" if key == section else f"{key}: [{named}]"


def _named(name: str, options: list[Option]) -> str:
    """How a configuration writes the name, with the required options."""
    required = [f"{o.key}: ..." for o in options if o.default == REQUIRED and "." not in o.key]
    return f"{{{', '.join([f'name: {name}', *required])}}}"


def _of_option(option: Option, width: int | None) -> Text:
    """Key and default as in a configuration, the type, and on the next lines the meaning."""
    default = {REQUIRED: "...", UNSET: "null"}.get(option.default, option.default.strip("`"))
    kind = option.kind.replace("`, `", " | ").replace("`", "")
    text = Text.assemble(
        "  ",
        (option.key, "bold"),
        f": {default}",
        (f"  ({kind}{', required' if option.default == REQUIRED else ''})", "dim"),
        "\n",
    )
    if option.meaning:
        text.append(paragraph(option.meaning, width, indent=6))
    return text
