"""Trackio."""

from typing import Any

from groupwise.tracking.samples import SampleTable
from groupwise.tracking.tracker import Opening, Tracker


class Trackio(Tracker):
    """A table with the images in it, in a local database unless a Space or a server is named."""

    name = "trackio"
    remote = ("space_id", "server_url", "dataset_id", "bucket_id")

    def arguments(self, opening: Opening) -> dict[str, Any]:
        return {
            "run_name": self.section.project,
            # Trackio continues the latest run of that name.
            "name": opening.identity.get("name", self.run_name(opening)),
            "resume": "allow" if opening.identity else "never",
            "config": dict(opening.settings),
            "embed": False,
        }

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.tracker.tracker.name}

    def show(self, shown: SampleTable, step: int) -> None:
        import trackio

        table = trackio.Table(list(shown.columns), shown.with_images(trackio.Image))
        self.tracker.log({"samples": table}, step=step)
