"""TensorBoard."""

from collections.abc import Mapping
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.gifs import SIDE, gif
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker

FOLDER = "tensorboard"


class TensorBoard(Tracker):
    """Event files in the run's folder: scalars, a table of texts, each prompt's image or video."""

    files = (IDENTITIES, FOLDER)

    class Config(Settings):
        tracker = "tensorboard"

    def open(self, run: RunContext, identity: Mapping[str, Any]) -> None:
        super().open(run, identity)
        if not run.step:
            lines = "\n".join(f"    {key}: {value}" for key, value in run.settings.items())
            self.tracker.log({"configuration": lines}, step=0)  # indented: Markdown keeps the lines

    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "run_name": FOLDER,  # accelerate's name for the folder
            "logging_dir": str(run.folder),
            # Hide steps after the checkpoint of a resumed run, since they are repeated.
            **({"purge_step": run.step + 1} if run.step else {}),
        }

    def show(self, shown: SampleTable, step: int) -> None:
        self.tracker.log({f"{shown.prefix}samples": _markdown(shown)}, step=step)
        for number, image in shown.images.items():
            import numpy as np

            pixels = np.asarray(image.convert("RGB"))[None]
            images = {f"{shown.prefix}images/{shown.names[number]}": pixels}
            self.tracker.log_images(images, step=step, dataformats="NHWC")
        for number, video in shown.videos.items():
            self._show_video(f"{shown.prefix}videos/{shown.names[number]}", video, step)

    def _show_video(self, name: str, video: Any, step: int) -> None:
        """As `SummaryWriter.add_video`, which needs moviepy to write the GIF."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(colorspace=3, encoded_image_string=gif(video))
        image.width, image.height = video.reduced(SIDE).size
        summary = Summary(value=[Summary.Value(tag=name, image=image)])
        self.tracker.writer.file_writer.add_summary(summary, global_step=step)


def _markdown(shown: SampleTable) -> str:
    """The rows as a table in Markdown."""
    rule = ["---"] * len(shown.columns)
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in (shown.columns, rule, *shown.rows)]
    return "\n".join(rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "" if value is None else str(value)
    for character, written in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\n", "<br>")):
        text = text.replace(character, written)
    return text
