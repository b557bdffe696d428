"""A callback that lets a test act in the middle of a run, in the processes of that run."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from groupwise import Callback


class Pauses(Callback):
    """After each of some steps says so by a file `at_STEP`, and waits until there is `on_STEP`."""

    class Config(BaseModel):
        folder: Path
        steps: list[int]

    def __init__(self, config: Config) -> None:
        self.config = config

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step not in self.config.steps:
            return
        (self.config.folder / f"at_{step}").touch()
        last = time.monotonic() + 120
        while not (self.config.folder / f"on_{step}").exists() and time.monotonic() < last:
            time.sleep(0.02)
