"""Weights & Biases."""

from typing import Any

from groupwise.tracking.samples import Shown
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
            **({"resume": "allow", **opening.known} if opening.known else {}),
        }

    @property
    def known(self) -> dict[str, Any]:
        return {"id": self.tracker.tracker.id}

    def show(self, shown: Shown, step: int) -> None:
        import wandb

        rows = shown.with_images(wandb.Image)
        self.tracker.log_table("samples", columns=list(shown.columns), data=rows, step=step)
        if shown.images:  # in a panel a slider runs over steps, in a table none does
            self.tracker.log_images({"images": [*shown.images.values()]}, step=step)
