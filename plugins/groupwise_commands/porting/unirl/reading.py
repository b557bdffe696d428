"""Reads a recipe of UniRL: YAML, whose references are resolved."""

from pathlib import Path

from groupwise.config.yaml_lines import read
from groupwise.errors import UserError
from groupwise_commands.porting.settings import Settings, text_of
from groupwise_commands.porting.tree import flat

EXPECTED = "a recipe of UniRL as YAML, with algorithm._target_"


def settings(config: str) -> Settings:
    """Raises UserError if the file is not UniRL's."""
    data, _ = read(text_of(Path(config), EXPECTED), config)
    stated, unread = flat(data, config, EXPECTED)
    target = str(stated.get("algorithm._target_", ""))
    if not target.startswith("unirl."):
        raise UserError(f"{config}: not UniRL's, without algorithm._target_; expected {EXPECTED}")
    # Objects are named by class paths, whose own keys nobody else lists.
    stated = {name: value for name, value in stated.items() if value is not None}
    return Settings(
        source=config, stated=stated, unread=unread, processes=stated.get("num_devices")
    )
