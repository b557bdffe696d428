"""Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker


class Wandb(Tracker):
    """A table with the images in it, and the images in a panel of their own."""

    files = (IDENTITIES, "wandb")

    class Config(Settings):
        tracker = "wandb"
        remote = ("base_url",)

    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "run_name": self.config.project,
            "name": self.run_name(run),
            "dir": str(run.folder),
            "config": dict(run.settings),
            **({"mode": "offline"} if self.config.offline else {}),
            **({"resume": "allow", **identity} if identity else {}),
        }

    @property
    def identity(self) -> dict[str, Any]:
        return {"id": self.tracker.tracker.id}

    def show(self, shown: SampleTable, step: int) -> None:
        import wandb

        rows = shown.with_images(wandb.Image)
        self.tracker.log_table(
            f"{shown.prefix}samples", columns=list(shown.columns), data=rows, step=step
        )
        if shown.images:  # a panel has a slider over steps, a table has none
            self.tracker.log_images({f"{shown.prefix}images": [*shown.images.values()]}, step=step)
