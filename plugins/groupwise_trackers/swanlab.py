"""SwanLab."""

from collections.abc import Mapping
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.gifs import gif_files
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker


class SwanLab(Tracker):
    """Texts, images and videos, each with its reward and its prompt as the caption."""

    files = (IDENTITIES, "swanlab")

    class Config(Settings):
        tracker = "swanlab"

    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "run_name": self.config.project,
            "experiment_name": self.run_name(run),
            "logdir": str(run.folder / "swanlab"),
            "config": dict(run.settings),
            **({"mode": "offline"} if self.config.offline else {}),
            **({"resume": "allow", **identity} if identity else {}),
        }

    @property
    def identity(self) -> dict[str, Any]:
        # SwanLab can continue a run only if it is stored on a server.
        return {} if self.config.offline else {"id": self.tracker.tracker.id}

    def show(self, shown: SampleTable, step: int) -> None:
        import swanlab

        texts, images, videos = [], [], []
        with gif_files(shown.videos) as files:
            for number, row in enumerate(shown.rows):
                cells = dict(zip(shown.columns, row, strict=True))
                caption = f"{shown.names[number]}, reward {cells['reward']}: {cells['prompt']}"
                if number in files:
                    videos.append(swanlab.Video(str(files[number]), caption=caption))
                elif number in shown.images:
                    images.append(swanlab.Image(shown.images[number], caption=caption))
                else:
                    texts.append(swanlab.Text(cells["completion"], caption=caption))
            media = {"samples": texts, "images": images, "videos": videos}
            named = {f"{shown.prefix}{key}": each for key, each in media.items() if each}
            self.tracker.log(named, step=step)
