"""Features: pictures of some passes, the places of their tokens, and what a tower makes of them."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from groupwise_llm.vision.family import Features
from groupwise_llm.vision.picture import BEYOND, Picture


class Pictures:
    """Different pictures, whose tokens are numbered one picture after the other, sorted by id.

    offsets: [axes, N] and advances: [N], those of all tokens; see `Picture`.
    """

    def __init__(self, pictures: Sequence[Picture], device: torch.device) -> None:
        known = {picture.first: picture for picture in pictures}
        self.pictures = [known[first] for first in sorted(known)]
        firsts = [picture.first for picture in self.pictures]
        lengths = torch.tensor([len(picture) for picture in self.pictures])
        self._firsts = torch.tensor(firsts).to(device)
        # The number of a token is its id less this number.
        self._before = (torch.tensor(firsts) - (lengths.cumsum(0) - lengths)).to(device)
        self.offsets = torch.cat([picture.offsets for picture in self.pictures], dim=1).to(device)
        self.advances = torch.cat([picture.advances for picture in self.pictures]).to(device)

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which ids [...] are of pictures, bool; and the number of each one's token, 0 for text."""
        places = ids >= BEYOND
        picture = torch.searchsorted(self._firsts, ids.contiguous(), right=True).sub(1).clamp(min=0)
        return places, (ids - self._before[picture]).where(places, 0)

    def steps(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Advances [...] and offsets [axes, ...] of ids [...]."""
        places, numbers = self.find(ids)
        return self.advances[numbers].where(places, 1), self.offsets[:, numbers].where(places, 0)


class FeatureCache:
    """Features of pictures, at most of so many tokens, kept while nothing changes; those used least
    recently are dropped first.

    Each picture is seen alone: others beside it would change the rounding, and a resumed run has
    other pictures in its first steps that are not kept yet. make: of pictures, by the tower.
    """

    def __init__(self, make: Callable[[Sequence[Picture]], Features], most: int) -> None:
        self._make, self._most = make, most
        self._weights: Hashable = None
        self._kept: dict[int, Features] = {}

    def of(self, pictures: Sequence[Picture], weights: Hashable) -> Features:
        """weights: equal only where the tower makes the same features as before."""
        if weights != self._weights:
            self._weights, self._kept = weights, {}
        kept = {p.first: self._kept.pop(p.first) for p in pictures if p.first in self._kept}
        for picture in pictures:
            if picture.first not in kept:
                kept[picture.first] = self._make([picture])
        self._kept |= kept
        self._drop()
        return _joined([kept[picture.first] for picture in pictures])

    def _drop(self) -> None:
        total = 0
        for first, kept in reversed(self._kept.copy().items()):
            total += len(kept.embeds)
            if total > self._most:
                del self._kept[first]


def _joined(parts: Sequence[Features]) -> Features:
    layers = [part.layers for part in parts if part.layers is not None]
    embeds = torch.cat([part.embeds for part in parts])
    return Features(embeds, torch.cat(layers, dim=1) if layers else None)
