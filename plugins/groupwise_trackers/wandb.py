"""Weights & Biases."""

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.gifs import gif
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker


class Wandb(Tracker):
    """A table with the images and videos in it, and these in panels of their own."""

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

        def videos() -> dict[int, Any]:
            gifs = {number: BytesIO(gif(video)) for number, video in shown.videos.items()}
            return {n: wandb.Video(content, format="gif") for n, content in gifs.items()}

        images = {number: wandb.Image(image) for number, image in shown.images.items()}
        cells: dict[int, Any] = {**images, **videos()}
        # A column of wandb's table has one type, and None: no texts beside images.
        has_one_type = not (shown.has_texts or (shown.images and shown.videos))
        empty = dict.fromkeys(range(len(shown.rows)))
        rows = shown.with_cells({**empty, **cells} if has_one_type else {})
        self.tracker.log_table(
            f"{shown.prefix}samples", columns=list(shown.columns), data=rows, step=step
        )
        # A panel has a slider over steps, a table has none.
        if shown.images:
            self.tracker.log_images({f"{shown.prefix}images": [*shown.images.values()]}, step=step)
        if shown.videos:
            self.tracker.log({f"{shown.prefix}videos": [*videos().values()]}, step=step)
