"""A reward head on CLIP features that is trained together with the policy."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.learned import Learned, Learning
from groupwise.rollouts import Rollouts
from groupwise_clip.images import images_of
from groupwise_clip.model import Clip
from groupwise_clip.settings import ClipSettings
from groupwise_clip.texts import texts


class LearnedImage(Learned):
    """The probability that a verifier would accept an image, predicted from CLIP features.

    A network with one hidden layer on (image, prompt, image * prompt) features. The CLIP is frozen.
    Before training the network gives 0.5.
    """

    judges = False

    class Config(ClipSettings, Learning):
        """Settings of the reward `learned_image`."""

        prompt: bool = Field(
            default=True,
            description="Whether the network reads the prompt's features, too; not needed for a "
            "verifier that depends on images alone.",
        )
        text: str | None = Field(
            default=None, description="Column with the texts; null: the prompt itself."
        )
        hidden: int = Field(default=64, ge=1, description="Width of the hidden layer.")

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.clip = config, Clip(config)
        self._network: nn.Sequential | None = None

    def load(self) -> None:
        """Loads the CLIP and creates the network, if needed."""
        _ = self.network

    @property
    def network(self) -> nn.Sequential:
        if self._network is None:
            width = self.clip.width * (3 if self.config.prompt else 1)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.config.seed)
                first = nn.Linear(width, self.config.hidden)
            last = nn.Linear(self.config.hidden, 1)
            for weight in last.parameters():
                nn.init.zeros_(weight)
            self._network = nn.Sequential(first, nn.GELU(), last)
        return self._network

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        """Returns a probability for each image; None where there is no text."""
        inputs = self._features(prompts, completions, columns)
        rows = [row for row, each in enumerate(inputs) if each is not None]
        values: list[float | None] = [None] * len(inputs)
        if rows:
            with torch.no_grad():
                probabilities = self.logits([each for each in inputs if each is not None]).sigmoid()
            for row, value in zip(rows, probabilities.tolist(), strict=True):
                values[row] = value
        return values

    def inputs(self, rollouts: Rollouts) -> Sequence[Tensor | None]:
        """Features of each image, [D], or [3 D] with its text; None where there is no text."""
        rows = rollouts.prompts
        columns = {name: [row.get(name) for row in rows] for name in {n for r in rows for n in r}}
        prompts = columns.pop("prompt", [None] * len(rows))
        return self._features(prompts, rollouts.completions, {**columns, **rollouts.facts})

    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        logits: Tensor = self.network(torch.stack(list(inputs))).squeeze(1)
        return logits

    def _features(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Any
    ) -> list[Tensor | None]:
        """Inputs of the network, on the CPU like the network, scaled to numbers of about 1."""
        if not len(completions):
            return []
        images = self.clip.image_features(images_of(completions, columns)).cpu()
        images = images * self.clip.width**0.5
        if not self.config.prompt:
            return list(images)
        captions = texts(prompts, columns, self.config.text, reward="learned_image")
        features: list[Tensor | None] = []
        for image, caption in zip(images, captions, strict=True):
            if caption is None:
                features.append(None)
                continue
            text = self.clip.text_features([caption])[0].cpu() * self.clip.width**0.5
            features.append(torch.cat([image, text, image * text]))
        return features
