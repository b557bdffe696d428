"""PictureRehearsal: an image or a video model without weights, whose completions are grey."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from groupwise.rehearsal import Rehearsal
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise_flow.adapter import Adapter

GREY = 128


class PictureRehearsal(Rehearsal):
    """Pictures, or videos, of the size that a run would have, so that `groupwise check` can call
    rewards."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.blank = "a grey video" if adapter.is_video else "a grey picture"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        rows = [row for row in prompts for _ in range(group_size)]
        adapter = self.adapter
        images = torch.tensor(GREY / 255).expand(adapter.decoded_shape)
        pixels = np.broadcast_to(np.uint8(GREY), (*images.shape[:-3], *images.shape[-2:], 3))
        drawn = adapter.video if adapter.is_video else Image.fromarray
        return Rollouts(
            prompts=rows,
            completions=[drawn(pixels) for _ in rows],
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            facts={"pixels": [images] * len(rows)},  # one number in memory, as are all pixels
        )
