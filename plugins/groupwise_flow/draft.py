"""FlowDraft: first configurations for image models."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from groupwise.kit.draft import Columns, Draft, read_json
from groupwise.kit.errors import UserError

NOISE = ("xl", "diffusion-v1", "diffusion-1", "diffusion-v2", "diffusion-2", "sd-turbo")
"""Parts of names of models that predict noise, Stable Diffusion 1, 2 and XL."""
FEW_STEPS = ("schnell", "turbo", "lightning", "lcm", "hyper")
"""Parts of names of models that were distilled to a few steps without guidance."""
VIDEOS = ("wan", "ltx", "hunyuanvideo")
"""What the names of pipelines of videos begin with."""
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
        """Precision, guidance, size and process, which differ between models. Raises UserError for
        a folder with a model of videos."""
        index = read_json(Path(model) / "model_index.json") if Path(model).exists() else {}
        name = str(index.get("_class_name", model)).lower()
        if index and name.startswith(VIDEOS):
            raise UserError(f"{model} is a model of videos: set --video in place of --image")
        distilled = index.get("is_distilled", _is_distilled(model, index))
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


def _is_distilled(model: str, index: Mapping[str, Any]) -> bool:
    """Whether a name says so: of the model, or of what a folder was saved from; of FLUX.1 the
    transformer's configuration does."""
    if index.get("_class_name") == "FluxPipeline":
        transformer = read_json(Path(model) / "transformer" / "config.json")
        if transformer.get("guidance_embeds") is False:
            return True
    names = f"{Path(model).name} {index.get('_name_or_path', '')}".lower()
    few = any(part in names for part in FEW_STEPS)
    return few or ("klein" in names and "base" not in names)


def _guidance(name: str, *, noise: bool, sd3: bool) -> float:
    """The usual scale of a model that is not distilled."""
    if noise:
        return 5.0
    if sd3:
        return 4.5
    return 3.5 if "flux.1" in name or name == "fluxpipeline" else 4.0
