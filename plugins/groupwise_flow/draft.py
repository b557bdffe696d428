"""FlowDraft: first configurations for image models."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.draft import Columns, Draft, read_json

NOISE = ("xl", "diffusion-v1", "diffusion-v2", "sd-turbo")
"""Parts of names of models that predict noise, Stable Diffusion 1, 2 and XL."""
NOISE_PIPELINES = ("stablediffusionpipeline", "stablediffusionxlpipeline")
FLOW = "  noise_level: 0.7  # how much the pictures of a prompt differ"
DDIM = """\
  sde: ddim  # this model predicts noise
  noise_level: 1.0  # eta: how much the pictures of a prompt differ"""
SIZE = """\
  height: {side}  # in pixels; smaller ones are faster and take less memory
  width: {side}
"""
KL = "  kl: published  # as in the code of Flow-GRPO, whose beta this is\n"


class FlowDraft(Draft):
    """An image model that is rewarded for pictures that people prefer, or for legible words."""

    model = "an image model"
    templates = files("groupwise_flow") / "drafts"

    def settings(self, model: str) -> Mapping[str, Any]:
        """Precision, guidance, size and process, which differ between models."""
        index = read_json(Path(model) / "model_index.json") if Path(model).exists() else {}
        name = str(index.get("_class_name", model)).lower()
        few = any(part in name for part in ("schnell", "turbo", "lightning"))
        distilled = index.get("is_distilled", few or ("klein" in name and "base" not in name))
        noise = any(part in name for part in NOISE) or name in NOISE_PIPELINES
        sd3 = not noise and "stable" in name
        return {
            "precision": "fp16" if sd3 else "bf16",
            "guidance": 1.0 if distilled else _guidance(name, noise=noise, sd3=sd3),
            "evaluation_steps": 8 if distilled else 40,
            "size": "" if index else SIZE.format(side=1024 if "xl" in name else 512),
            "process": DDIM if noise else FLOW,
            # An exact KL, as DDIM's is, is a 25th to a 3.7th of the published one at equal weight.
            "beta": 0.004 if noise else 0.04,
            "kl": "" if noise else KL,
        }

    def task_of(self, data: Columns) -> str:
        """`writing` if a column `text` may hold the words to write, else `preference`."""
        return "writing" if "text" in data.names and data.prompt != "text" else "preference"


def _guidance(name: str, *, noise: bool, sd3: bool) -> float:
    """The usual scale of a model that is not distilled."""
    if noise:
        return 5.0
    if sd3:
        return 4.5
    return 3.5 if "flux.1" in name or name == "fluxpipeline" else 4.0
