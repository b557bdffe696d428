"""pictures: what ports of the frameworks for image models share: rewards, adapters, reasons."""

import math
from collections.abc import Mapping
from typing import Any

from groupwise_commands.porting.port import Port

DETECTOR = "google/owlv2-base-patch16-ensemble"
REWARDS: Mapping[str, Mapping[str, Any]] = {
    "geneval": {
        "name": "image_contents",
        "mode": "flow_grpo",
        "detector": DETECTOR,
        "colors": "clip",
    },
    "ocr": {"name": "image_text", "detect": True, "inside": True},
    "pickscore": {"name": "preference", "preset": "pickscore"},
    "hpsv2": {"name": "preference", "preset": "hps_v2.1"},
    "imagereward": {"name": "image_reward"},
    "clipscore": {"name": "clip_similarity", "model": "openai/clip-vit-large-patch14"},
    "jpeg_compressibility": {"name": "jpeg_size", "direction": "smaller"},
    "jpeg_incompressibility": {"name": "jpeg_size", "direction": "larger"},
}
"""By a name that is common to these frameworks, the reward here."""
FACTORS: Mapping[str, tuple[float, str]] = {
    "pickscore": (1 / 26, "theirs is PickScore / 26, ours about 20"),
    "jpeg_compressibility": (1 / 500, "theirs is kilobytes / 500"),
}
"""Factors between their values and ours, and why: of a sum of several rewards they matter."""
ATTENTION = [
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
]
FLUX = [*ATTENTION, "ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"]
QWEN = [*ATTENTION, "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"]
CPS = (
    "the same number, but their log-prob of CPS lacks 1 / (2 std^2) and ours is the Gaussian's: "
    "where a step's std is 0.7 both are equal, below it ours clips earlier"
)
MEAN = "log-probs are means over a latent's dimensions in both, hence so narrow a range"


def add_reward(port: Port, name: str, weight: float, *, several: bool) -> bool:
    """Append the reward of this common name; False if there is none. several: whether the file has
    more than one, so that units matter."""
    section = REWARDS.get(name)
    if section is None:
        return False
    factor, why = FACTORS.get(name, (1.0, ""))
    number = len(port.rewards)
    if several and factor != 1:
        port.rewards.append({**section, "weight": round(weight * factor, 8)})
        port.reasons[f"rewards.{number}"] = why
    else:
        port.rewards.append({**section, **({"weight": weight} if weight != 1 else {})})
    if name == "ocr":
        port.todo.append(
            "rewards: image_text reads the words from the column `text`; theirs are those in "
            "quotes in the prompt, so write them into a column"
        )
    return True


def write_beta(port: Port, beta: float, sde: str, *, published: bool) -> None:
    """The weight of the KL; published: whether theirs divides by 2 g^2 for `sde: flow`."""
    if not beta:
        return
    port.write("algorithm.beta", beta)
    if published and sde == "flow":
        why = "theirs is |mean difference|^2 / (2 g^2), the exact KL (2 std^2) times (s - s')"
        port.write("algorithm.kl", "published", why)


def of_std(images: int, group: int) -> str:
    """The reason that a std differs: n in theirs, n - 1 in ours; counts of both scales."""
    return (
        f"theirs divides by n, ours by n - 1, so our advantages are {_shrunk(images):.2%} smaller "
        f"over {images:,} images, {_shrunk(group):.1%} over {group}"
    )


def _shrunk(count: int) -> float:
    return 1 - math.sqrt((count - 1) / count) if count > 1 else 0.0
