"""MLflow."""

import re
from collections.abc import Mapping
from typing import Any

from groupwise.callback import RunContext
from groupwise_trackers.gifs import gif_files
from groupwise_trackers.samples import SampleTable
from groupwise_trackers.settings import Settings
from groupwise_trackers.tracker import IDENTITIES, Tracker

NOT_IN_A_NAME = re.compile(r"[^/\w.\- :]")
"""Characters that MLflow refuses in names of metrics and parameters."""


class MLflow(Tracker):
    """Parameters, metrics, and for each evaluation a table, images and videos as artifacts."""

    files = (IDENTITIES, "mlflow")

    class Config(Settings):
        tracker = "mlflow"
        remote = ("tracking_uri",)

    def open(self, run: RunContext, identity: Mapping[str, Any]) -> None:
        import mlflow

        address = super().options.get("tracking_uri")
        if self.config.offline:
            folder = run.folder / "mlflow"
            folder.mkdir(exist_ok=True)
            address = f"sqlite:///{folder / 'mlflow.db'}"
        if address is not None:
            mlflow.set_tracking_uri(address)
        super().open(run, identity)
        if not identity:  # MLflow refuses to change parameters of an existing run
            self.tracker.store_init_configuration(_renamed(run.settings))

    def arguments(self, run: RunContext, identity: Mapping[str, Any]) -> dict[str, Any]:
        artifacts = run.folder / "mlflow" / "artifacts"
        return {
            "experiment_name": self.config.project,
            "run_name": self.run_name(run),
            "logging_dir": artifacts.as_uri() if self.config.offline else None,
            **identity,
        }

    @property
    def options(self) -> dict[str, Any]:
        return {k: v for k, v in super().options.items() if k != "tracking_uri"}

    @property
    def identity(self) -> dict[str, Any]:
        return {"run_id": self.tracker.tracker.info.run_id}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        super().log(_renamed(metrics), step)

    def show(self, shown: SampleTable, step: int) -> None:
        import mlflow

        # A column of MLflow's table has images only, or no image.
        all_images = len(shown.images) == len(shown.rows)
        rows = shown.with_cells(shown.images) if all_images else shown.rows
        columns = [list(column) for column in zip(*rows, strict=True)]
        table = dict(zip(shown.columns, columns, strict=True))
        mlflow.log_table(table, f"{shown.prefix}samples/step_{step}.json")
        for number, image in shown.images.items():
            mlflow.log_image(image, key=_name(shown.prefix + shown.names[number]), step=step)
        with gif_files(shown.videos) as files:
            for number, file in files.items():
                name = _name(f"{shown.prefix}videos/step_{step}/{shown.names[number]}")
                mlflow.log_artifact(str(file), name)


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_name(key): value for key, value in values.items()}


def _name(key: str) -> str:
    return NOT_IN_A_NAME.sub("_", key)
