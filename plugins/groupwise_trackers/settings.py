"""Settings: the configuration of a tracker."""

from typing import Any, ClassVar, Self

from accelerate.tracking import get_available_trackers
from pydantic import BaseModel, ConfigDict, Field, model_validator


class Settings(BaseModel):
    """Keys that all trackers have; any other key goes to the tracker's own init function as it is.

    tracker: its name in accelerate, and the extra that installs it; remote: keys that name a
    server, and are refused with `offline`.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    tracker: ClassVar[str]
    remote: ClassVar[tuple[str, ...]] = ()

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

    training_samples: int = Field(
        default=10,
        ge=0,
        description="steps between tables of training completions, those of `train.samples`; 0: "
        "none",
    )

    @model_validator(mode="after")
    def _can_be_opened(self) -> Self:
        if self.tracker not in map(str, get_available_trackers()):
            raise ValueError(
                f"{self.tracker} is not installed: pip install 'groupwise[{self.tracker}]'"
            )
        if self.offline and (remote := [key for key in self.remote if key in self.options]):
            raise ValueError(
                f"offline sends nothing to a server, and {', '.join(remote)} names one; set only "
                f"one"
            )
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options for the tracker's own init function."""
        return dict(self.model_extra or {})
