"""SwanLab."""

from typing import Any

from groupwise.tracking.samples import SampleTable
from groupwise.tracking.tracker import Opening, Tracker


class SwanLab(Tracker):
    """Texts and images, each with its reward and its prompt as the caption."""

    name = "swanlab"

    def arguments(self, opening: Opening) -> dict[str, Any]:
        return {
            "run_name": self.section.project,
            "experiment_name": self.run_name(opening),
            "logdir": str(opening.folder / "swanlab"),
            "config": dict(opening.settings),
            **({"mode": "offline"} if self.section.offline else {}),
            **({"resume": "allow", **opening.identity} if opening.identity else {}),
        }

    @property
    def identity(self) -> dict[str, Any]:
        # SwanLab can continue a run only if it is stored on a server.
        return {} if self.section.offline else {"id": self.tracker.tracker.id}

    def show(self, shown: SampleTable, step: int) -> None:
        import swanlab

        texts, images = [], []
        for number, row in enumerate(shown.rows):
            cells = dict(zip(shown.columns, row, strict=True))
            caption = f"{shown.names[number]}, reward {cells['reward']}: {cells['prompt']}"
            if number in shown.images:
                images.append(swanlab.Image(shown.images[number], caption=caption))
            else:
                texts.append(swanlab.Text(cells["completion"], caption=caption))
        media = {"samples": texts, "images": images}
        self.tracker.log({key: each for key, each in media.items() if each}, step=step)
