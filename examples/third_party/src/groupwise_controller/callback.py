"""A callback that logs the controller's exploration, the std of its actions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise import Callback, Policy
from groupwise_controller.policy import Controller


class ExplorationLog(Callback):
    """Writes a CSV file with the std of both components of the push after every step."""

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid", frozen=True)

        file: Path = Field(description="the file, relative to the working directory")

    def __init__(self, config: Config) -> None:
        self.file = config.file
        self.policy: Controller | None = None

    def on_start(self, policy: Policy) -> None:
        if not isinstance(policy, Controller):
            raise ValueError(
                f"exploration_log: expected a Controller, found {type(policy).__name__}"
            )
        self.policy = policy
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("step,std_x,std_y\n", encoding="utf-8")

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        assert self.policy is not None
        x, y = self.policy.log_std.detach().exp().tolist()
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{step},{x:.4f},{y:.4f}\n")
