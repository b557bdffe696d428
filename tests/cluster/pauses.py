"""A callback that stops a run at chosen steps, so that a test can act there."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from groupwise import Callback


class Pauses(Callback):
    """After each of `steps` it writes a file `at_STEP` and waits for a file `on_STEP`."""

    class Config(BaseModel):
        folder: Path
        steps: list[int]

    def __init__(self, config: Config) -> None:
        self.config = config

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step not in self.config.steps:
            return
        (self.config.folder / f"at_{step}").touch()
        deadline = time.monotonic() + 120
        while not (self.config.folder / f"on_{step}").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
