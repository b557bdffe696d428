"""A reward for images that people prefer, by CLIP models trained on human choices."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, FiniteFloat, model_validator

from groupwise_clip.images import images_of
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings
from groupwise_clip.texts import texts

_HPS: dict[str, Any] = {"model": "ViT-H-14", "resize": "longest", "scale": 100.0}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # The model card of yuvalkirstain/PickScore_v1.
    "pickscore": {
        "model": "yuvalkirstain/PickScore_v1",
        "processor": "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        "scale": "model",
    },
    # github.com/tgxs002/HPSv2: the files by `hps_version_map` in hpsv2/utils.py, the resizing by
    # `light_augmentation` in hpsv2/src/open_clip/factory.py, the factor by hpsv2/evaluation.py.
    "hps": {**_HPS, "pretrained": "hf-hub:xswu/HPSv2/HPS_v2_compressed.pt"},
    "hps_v2.1": {**_HPS, "pretrained": "hf-hub:xswu/HPSv2/HPS_v2.1_compressed.pt"},
}
"""Settings of published models, by name."""


class Preference:
    """How much people would like a picture for its prompt, by PickScore or HPS.

    scale * cosine of the image's and the text's features.

    PickScore (arXiv:2305.01569) is exp(logit_scale) * cosine, values about 20: `scale: model`.
    Flow-GRPO's authors train on that divided by 26.

    HPS v2 (arXiv:2306.09341) reports 100 * cosine in its benchmark tables, 25 to 29: `scale: 100`,
    the preset's; the function `hpsv2.score` returns the cosine, 0.25 to 0.29: `scale: 1`.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `preference`."""

        preset: Literal["pickscore", "hps", "hps_v2.1"] | None = Field(
            default=None,
            description="A published model: sets `model`, `pretrained`, `processor`, `resize` and "
            "`scale` where these are unset.",
        )
        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        scale: Literal["model"] | FiniteFloat = Field(
            default="model",
            description="Factor of the cosine; model: the model's own exp(logit_scale).",
        )

        @model_validator(mode="before")
        @classmethod
        def _with_preset(cls, options: Any) -> Any:
            """The preset's settings, overridden by those set explicitly."""
            if not isinstance(options, Mapping):
                return options
            name = options.get("preset")
            if name is not None and name not in PRESETS:
                known = "the reward hps_v3" if "3" in str(name) else f"one of {', '.join(PRESETS)}"
                raise ValueError(f"preset: no {name!r} here; take {known}")
            preset = PRESETS.get(str(name), {})
            if "model" in options:  # another model has its own weights and tokenizer
                preset = {key: preset[key] for key in ("resize", "scale") if key in preset}
            merged = {**preset, **options}
            if "model" not in merged and "preset" not in merged:
                raise ValueError("set `preset` or `model`")
            return merged

    def __init__(self, config: Config) -> None:
        self.config, self.clip = config, Clip(config)

    def load(self) -> None:
        """Loads the model, if needed."""
        self.clip.load()

    @property
    def scale(self) -> float:
        """Factor of the cosines."""
        return self.clip.scale if self.config.scale == "model" else float(self.config.scale)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each image: `pixels` [3, H, W] if provided, else completions."""
        captions = texts(prompts, columns, self.config.text, reward="preference")
        cosines = self.clip.cosines(images_of(completions, columns), captions)
        return [None if cosine is None else cosine * self.scale for cosine in cosines]
