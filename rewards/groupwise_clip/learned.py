"""A head on CLIP's features that is trained on while the policy moves."""

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
    """The probability that a verifier would call an image right, by its CLIP features.

    A network of one hidden layer reads the image's features, and beside them the prompt's and the
    product of both. The CLIP stays as it is. Until it has learned the network gives one half.
    """

    judges = False

    class Config(ClipSettings, Learning):
        """Settings of the reward `learned_image`."""

        prompt: bool = Field(
            default=True,
            description="Whether the network reads the prompt's features, too: a verifier that "
            "looks at images alone needs none.",
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
        """Loads the CLIP and makes the network, unless that is done."""
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
        """Returns a probability for each image; None where there is no text to read."""
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
        """[D] of each image, or [3 D] with its text; None where there is no text."""
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
        """On the CPU, where the network is, which is small; of numbers about 1."""
        if not len(completions):
            return []
        shown = self.clip.image_features(images_of(completions, columns)).cpu()
        shown = shown * self.clip.width**0.5
        if not self.config.prompt:
            return list(shown)
        meant = texts(prompts, columns, self.config.text, reward="learned_image")
        features: list[Tensor | None] = []
        for image, text in zip(shown, meant, strict=True):
            if text is None:
                features.append(None)
                continue
            words = self.clip.text_features([text])[0].cpu() * self.clip.width**0.5
            features.append(torch.cat([image, words, image * words]))
        return features
