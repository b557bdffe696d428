"""Trackio."""

from collections.abc import Mapping
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.gifs import gif_files
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker


class Trackio(Tracker):
    """A table with images and videos in it, in a local database, or a Space or server if named."""

    files = (IDENTITIES,)

    class Config(Settings):
        tracker = "trackio"
        remote = ("space_id", "server_url", "dataset_id", "bucket_id")

    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "run_name": self.config.project,
            # Trackio continues the latest run of that name.
            "name": identity.get("name", self.run_name(run)),
            "resume": "allow" if identity else "never",
            "config": dict(run.settings),
            "embed": False,
        }

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.tracker.tracker.name}

    def show(self, shown: SampleTable, step: int) -> None:
        import trackio

        with gif_files(shown.videos) as files:
            # A table shows no `Video`, but a GIF moves as an `Image`, too.
            cells = {n: trackio.Image(image) for n, image in {**shown.images, **files}.items()}
            table = trackio.Table(list(shown.columns), shown.with_cells(cells))
            self.tracker.log({f"{shown.prefix}samples": table}, step=step)
