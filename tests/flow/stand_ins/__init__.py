"""Tiny random pipelines of diffusers' own classes, built in place: nothing is downloaded."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.flow.stand_ins import (
    flux2,
    flux_kontext,
    hunyuan_video15,
    ltx,
    lumina2,
    qwen_image,
    qwen_image_edit,
    sana,
    wan,
    z_image,
)


@dataclass(frozen=True)
class StandIn:
    """A tiny pipeline, and the size of its pictures: at none of them are there as many tokens as
    channels, which a pipeline can confuse.

    make: builds the pipeline; height, width: of pictures; other: another size, height and width;
    frames: of videos; options: of the adapter; attributes: what is set on a loaded pipeline.
    """

    make: Callable[[], Any]
    height: int
    width: int
    other: tuple[int, int]
    prompt_tokens: int = 96
    frames: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> dict[str, int]:
        size = {"height": self.height, "width": self.width, "prompt_tokens": self.prompt_tokens}
        return size if self.frames is None else {**size, "frames": self.frames}

    def settings(self, folder: Path) -> dict[str, Any]:
        """Of a policy with the pipeline in this folder."""
        index = json.loads((folder / "model_index.json").read_text())
        adapter = {"name": index["_class_name"], **self.options}
        return {**self.size, "adapter": adapter} if self.options else self.size


SMALL = {"reference_pixels": 32 * 32}

MODELS = {
    "z_image": StandIn(z_image.z_image, 16, 24, (24, 12)),
    "qwen_image": StandIn(qwen_image.qwen_image, 16, 24, (8, 12)),
    "flux2": StandIn(flux2.dev, 16, 24, (24, 12)),
    "flux2_klein": StandIn(flux2.klein, 16, 24, (24, 12)),
    "flux2_klein distilled": StandIn(lambda: flux2.klein(distilled=True), 16, 24, (24, 12)),
    "flux2_klein edit": StandIn(
        flux2.klein, 64, 72, (72, 64), options={"references": 2, "fit": "pad"}
    ),
    "flux_kontext": StandIn(flux_kontext.flux_kontext, 16, 24, (24, 12), prompt_tokens=24),
    "qwen_image_edit": StandIn(qwen_image_edit.qwen_image_edit, 16, 24, (8, 12), options=SMALL),
    "qwen_image_edit 2511": StandIn(
        lambda: qwen_image_edit.qwen_image_edit(zero_cond_t=True), 16, 24, (8, 12), options=SMALL
    ),
    "sana": StandIn(sana.sana, 32, 64, (64, 32)),
    "lumina2": StandIn(lumina2.lumina2, 32, 48, (48, 64)),
    "ltx": StandIn(ltx.ltx, 32, 64, (64, 32), frames=3),
    "ltx timed": StandIn(lambda: ltx.ltx(timed=True), 32, 64, (64, 32), frames=3),
    "hunyuan15": StandIn(
        hunyuan_video15.hunyuan_video15,
        16,
        24,
        (24, 8),
        frames=3,
        attributes=hunyuan_video15.FEWER_TOKENS,
    ),
    "wan21": StandIn(wan.wan, 16, 48, (32, 16), frames=3),
    "wan22": StandIn(lambda: wan.wan(second=True), 16, 48, (32, 16), frames=3),
    "wan22_5b": StandIn(wan.wan_5b, 32, 48, (48, 16), frames=3),
}
"""Of each model in the box, by name."""
