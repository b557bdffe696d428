"""Reads verl-omni's settings: the overrides of a command in a shell script, or YAML."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groupwise.config.yaml_lines import read
from groupwise.errors import UserError
from groupwise_commands.porting.settings import Settings, Unread, text_of
from groupwise_commands.porting.tree import flat

EXPECTED = "a script with the command of verl_omni.trainer.main_diffusion, or its keys as YAML"
OVERRIDE = re.compile(r"\+{0,2}([\w.]+)=(.*)", re.DOTALL)
ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^{}]*))?\}|(\w+))")
DOCUMENT = re.compile(r"(?<!<)<<-?\s*['\"]?([A-Za-z_]\w*)")
"""The beginning of a document within the script, up to a line with this word."""
MOST_LINES, LONGEST = 300, 10_000
"""Lines of one command, and characters of a value."""
DEEPEST = 20
"""The most variables behind each other."""


def settings(config: str) -> Settings:
    """Raises UserError if the file is not verl-omni's."""
    path = Path(config)
    text = text_of(path, EXPECTED)
    if path.suffix in (".yaml", ".yml"):
        stated, unread = flat(read(text, config)[0], config, EXPECTED)
        stated = {name: value for name, value in stated.items() if value is not None}
    else:
        stated, unread = _command(text, config)
    if not any(name.startswith("actor_rollout_ref.") for name in stated):
        raise UserError(f"{config}: no setting of actor_rollout_ref; expected {EXPECTED}")
    counts = [stated.get(f"trainer.{name}", 1) for name in ("nnodes", "n_gpus_per_node")]
    known = all(isinstance(count, int) for count in counts)
    return Settings(
        source=config,
        stated=stated,
        unread=unread,
        processes=counts[0] * counts[1] if known else None,
    )


def _command(text: str, source: str) -> tuple[dict[str, Any], dict[str, Unread]]:
    """The overrides of the script's command, with its own variables put in."""
    variables: dict[str, str | None] = {}
    stated: dict[str, Any] = {}
    unread: dict[str, Unread] = {}
    for line, words in _lines(text, source):
        assigned = ASSIGNED.fullmatch(words[0]) if len(words) == 1 else None
        if assigned and "." not in assigned[1]:
            name, known = assigned[1], _filled(assigned[2], variables, 0)
            if known is not None:  # one of two values, by a condition, is not known
                variables[name] = known if variables.get(name, known) == known else None
            continue
        for word in words:
            match = OVERRIDE.fullmatch(word)
            if match is None or "." not in match[1]:
                continue
            value = _filled(match[2], variables, 0)
            if value is None:
                unread[match[1]] = Unread(source=match[2], line=line)
            else:
                stated[match[1]] = _value(value, f"{source}, line {line}")
    return {name: value for name, value in stated.items() if value is not None}, unread


def _lines(text: str, source: str) -> Iterator[tuple[int, list[str]]]:
    """(number, words) of each command; a backslash at the end goes on in the next line."""
    number, started, pending, document = 0, 0, "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if document:
            document = "" if line.strip() == document else document
            continue
        started = started if pending else number
        pending += line
        if (match := DOCUMENT.search(line)) is not None:
            document = match[1]
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            pending += "\n"
            if number - started < MOST_LINES:
                continue
            break
        pending = ""
        if words:
            yield started, words
    if pending.strip():
        raise UserError(f"{source}, line {started}: not a shell script; expected {EXPECTED}")


def _filled(text: str, variables: Mapping[str, str | None], depth: int) -> str | None:
    """The text with its variables; None if one is unknown, or a command computes it."""
    if "$(" in text or "`" in text or depth > DEEPEST or len(text) > LONGEST:
        return None
    unknown = False

    def value(match: re.Match[str]) -> str:
        nonlocal unknown
        name, default = match[1] or match[3], match[2]
        content = variables.get(name, default)
        unknown |= content is None
        return content or ""

    filled = VARIABLE.sub(value, text)
    if unknown:
        return None
    return filled if filled == text else _filled(filled, variables, depth + 1)


def _value(text: str, where: str) -> Any:
    """A value as Hydra reads it: YAML, more or less."""
    if text.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text.lower())
    try:
        return read(text, where)[0]
    except UserError:
        return text
