"""Weights & Biases."""

from typing import Any

from groupwise.tracking.samples import SampleTable
from groupwise.tracking.tracker import Opening, Tracker


class Wandb(Tracker):
    """A table with the images in it, and the images in a panel of their own."""

    name = "wandb"
    remote = ("base_url",)

    def arguments(self, opening: Opening) -> dict[str, Any]:
        return {
            "run_name": self.section.project,
            "name": self.run_name(opening),
            "dir": str(opening.folder),
            "config": dict(opening.settings),
            **({"mode": "offline"} if self.section.offline else {}),
            **({"resume": "allow", **opening.identity} if opening.identity else {}),
        }

    @property
    def identity(self) -> dict[str, Any]:
        return {"id": self.tracker.tracker.id}

    def show(self, shown: SampleTable, step: int) -> None:
        import wandb

        rows = shown.with_images(wandb.Image)
        self.tracker.log_table("samples", columns=list(shown.columns), data=rows, step=step)
        if shown.images:  # a panel has a slider over steps, a table has none
            self.tracker.log_images({"images": [*shown.images.values()]}, step=step)
