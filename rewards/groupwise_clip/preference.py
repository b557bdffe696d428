"""Which image people would prefer, as CLIP models that were trained on their choices say."""

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
    """The cosine of the image's and the text's features, in the units of the published model.

    PickScore (arXiv:2305.01569) is exp(logit_scale) * cosine: `scale: model`, values about 20.
    Flow-GRPO's authors train on that divided by 26.

    HPS v2 (arXiv:2306.09341): its benchmark tables show 100 * cosine, values of 25 to 29, and so
    does this; the function `hpsv2.score` returns the cosine itself, 0.25 to 0.29: `scale: 1`.
    """

    judges = False

    class Config(ClipSettings):
        """Settings of the reward `preference`."""

        preset: Literal["pickscore", "hps", "hps_v2.1"] | None = Field(
            default=None,
            description="A published model: fills those of `model`, `pretrained`, `processor`, "
            "`resize` and `scale` that are not set.",
        )
        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        scale: Literal["model"] | FiniteFloat = Field(
            default="model",
            description="What the cosine is multiplied by; model: by its own exp(logit_scale).",
        )

        @model_validator(mode="before")
        @classmethod
        def _filled(cls, given: Any) -> Any:
            """What the preset says, under what is said beside it."""
            if not isinstance(given, Mapping):
                return given
            preset = PRESETS.get(str(given.get("preset")), {})
            if "model" in given:  # its weights and tokenizer are then its own
                preset = {key: preset[key] for key in ("resize", "scale") if key in preset}
            filled = {**preset, **given}
            if "model" not in filled and "preset" not in filled:
                raise ValueError("set `preset` or `model`")
            return filled

    def __init__(self, config: Config) -> None:
        self.config, self.clip = config, Clip(config)

    def load(self) -> None:
        """Loads the model, unless that is done."""
        self.clip.load()

    @property
    def scale(self) -> float:
        """What cosines are multiplied by."""
        return self.clip.scale if self.config.scale == "model" else float(self.config.scale)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a value for each image: of `images` [3, H, W] if stated, else of completions."""
        meant = texts(prompts, columns, self.config.text, reward="preference")
        cosines = self.clip.cosines(images_of(completions, columns), meant)
        return [None if cosine is None else cosine * self.scale for cosine in cosines]
