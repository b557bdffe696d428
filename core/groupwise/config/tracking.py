"""The sections of `tracking`: where a run's metrics and completions are sent."""

from typing import Literal

from pydantic import Field

from groupwise.section import PluginSection

Name = Literal["wandb", "tensorboard", "trackio", "mlflow", "swanlab"]


class TrackerSection(PluginSection):
    """One tracker; keys that are none of these go to its own init function as they are."""

    name: Name = Field(description="which tracker; each needs the extra of its name")
    project: str = Field(
        default="groupwise",
        min_length=1,
        description="project (MLflow: experiment) that the run is listed in; TensorBoard has none",
    )
    run: str | None = Field(
        default=None,
        min_length=1,
        description="the run's name in the tracker; the name of its folder if unset",
    )
    offline: bool = Field(
        default=False,
        description="send nothing over the network: wandb and swanlab keep local files, to be "
        "uploaded later by their own commands; options that name a server are refused",
    )
    samples: int = Field(
        default=16,
        ge=0,
        description="held-out prompts whose completion is logged at each evaluation; 0: none",
    )
