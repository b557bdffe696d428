"""Encodings: each distinct prompt is encoded once in the life of a run, and kept."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from groupwise_flow.adapter import Conditions

ENCODED_AT_ONCE = 32


class Encodings:
    """The conditions of prompts, the `most` used last of which are kept on their device."""

    def __init__(self, encode: Callable[[Sequence[str]], Conditions], *, most: int) -> None:
        self._encode, self.most = encode, most
        self._kept: OrderedDict[str, Conditions] = OrderedDict()

    def __call__(self, prompts: Sequence[str]) -> Conditions:
        """Conditions [n, ...] of n prompts, in their order; prompts may repeat."""
        fresh = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._kept]
        for start in range(0, len(fresh), ENCODED_AT_ONCE):
            some = fresh[start : start + ENCODED_AT_ONCE]
            # Not inference_mode: its tensors could not be saved for a backward pass later.
            with torch.no_grad():
                encoded = self._encode(some)
            for row, prompt in enumerate(some):
                self._kept[prompt] = {name: value[row] for name, value in encoded.items()}
        for prompt in dict.fromkeys(prompts):
            self._kept.move_to_end(prompt)
        rows = [self._kept[prompt] for prompt in prompts]
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
