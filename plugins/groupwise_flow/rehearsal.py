"""PictureRehearsal: an image model without weights, whose pictures are grey."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image

from groupwise.rehearsal import Rehearsal
from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise_flow.adapter import Adapter

GREY = 128


class PictureRehearsal(Rehearsal):
    """Pictures of the size that a run would have, so that `groupwise check` can call rewards."""

    blank = "a grey picture"

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.size = (adapter.width, adapter.height)

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
        width, height = self.size
        pictures = torch.full((len(rows), 3, height, width), GREY / 255)
        return Rollouts(
            prompts=rows,
            completions=[Image.new("RGB", self.size, (GREY,) * 3) for _ in rows],
            groups=torch.arange(len(prompts)).repeat_interleave(group_size),
            mask=torch.ones(len(rows), 1, dtype=torch.bool),
            truncated=torch.zeros(len(rows), dtype=torch.bool),
            facts={"images": [*pictures]},
        )
