"""Settings of the reward for pictures that contain the objects in their prompt."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.options import PathOrName


class Settings(BaseModel):
    """Settings of the reward `image_contents`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    detector: PathOrName = Field(
        default="shapes",
        min_length=1,
        description="`shapes`, built in: coloured disks, squares, triangles and crosses on a "
        "plain background; or the hub name or folder of a zero-shot object detection model of "
        "transformers.",
    )
    mode: Literal["strict", "partial", "geneval", "flow_grpo"] = Field(
        default="strict",
        description="strict: 1.0 if all clauses hold, else 0.0; partial: the share of checks "
        "that hold; geneval: the benchmark's rule, 0.0 or 1.0; flow_grpo: Flow-GRPO's training "
        "reward.",
    )
    unexpected: bool | None = Field(
        default=None,
        description="For strict and partial: whether objects of other classes, and unclear "
        "shapes, are wrong; if unset they are with `shapes`.",
    )
    others: Literal["geneval"] | list[str] = Field(
        default="geneval",
        description="What a model as detector looks for beside the row's classes, so that another "
        "object is taken for what it is, and not counted as the class that it resembles most: "
        "GenEval's 80 classes, in rows that have only such (geneval), or these.",
    )
    include: str = Field(
        default="include", description="Column with the objects that must be there."
    )
    exclude: str = Field(
        default="exclude",
        description="Column with the objects that must not be there; may be missing if unset.",
    )
    margin: float = Field(
        default=0.1,
        ge=0,
        allow_inf_nan=False,
        description="For positions: distances are reduced by this share of both objects' sizes.",
    )
    threshold: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="Detections with a confidence below this are ignored.",
    )
    counting_threshold: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="The threshold for rows whose column `tag` is `counting`; as `threshold` "
        "if unset.",
    )
    overlap: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Two detections of one class whose intersection over union is above this "
        "are one object.",
    )
    max_objects: int = Field(
        default=16,
        ge=1,
        description="Most objects of a class that are counted, by confidence.",
    )
    colors: Literal["palette", "clip"] = Field(
        default="palette",
        description="How colours of a model's objects are named: by the palette's colour "
        "nearest to the median pixel of the box's middle, or by a CLIP on the box, as in "
        "GenEval.",
    )
    clip_model: PathOrName = Field(
        default="ViT-L-14",
        min_length=1,
        description="For `colors: clip`: an open_clip architecture, or `local-dir:` and a folder.",
    )
    clip_pretrained: PathOrName | None = Field(
        default="openai",
        description="Weights of the architecture: open_clip's tag, or a file; null for a folder.",
    )
    clip_quick_gelu: bool | None = Field(
        default=None,
        description="For a file as `clip_pretrained`: whether its weights were trained with "
        "QuickGELU, as OpenAI's, or with GELU; needed unless `clip_model` ends with "
        "-quickgelu or an open_clip_config.json beside the file says it.",
    )
    device: str | None = Field(
        default=None, description="Device of the models; if unset a GPU if there is one."
    )
