"""Encodings: each distinct prompt is encoded once in the life of a run, and kept."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch

from groupwise_flow.adapter import Conditions

ENCODED_AT_ONCE = 32


class Encodings:
    """The conditions of prompts, the `most` used last of which are kept in CPU memory.

    They are megabytes each, so a GPU would soon be full of them.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Conditions], *, most: int) -> None:
        self._encode, self.most = encode, most
        self._kept: OrderedDict[str, Conditions] = OrderedDict()

    def __call__(self, prompts: Sequence[str], device: torch.device) -> Conditions:
        """Conditions [n, ...] of n prompts, in their order; prompts may repeat."""
        distinct = list(dict.fromkeys(prompts))
        fresh = [prompt for prompt in distinct if prompt not in self._kept]
        for start in range(0, len(fresh), ENCODED_AT_ONCE):
            some = fresh[start : start + ENCODED_AT_ONCE]
            # Not inference_mode: its tensors could not be saved for a backward pass later.
            with torch.no_grad():
                encoded = self._encode(some)
            for row, prompt in enumerate(some):
                # A copy, not a view, which would keep all of them alive.
                self._kept[prompt] = {
                    name: value[row].to("cpu", copy=True) for name, value in encoded.items()
                }
        for prompt in distinct:
            self._kept.move_to_end(prompt)
        rows = [self._kept[prompt] for prompt in distinct]
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        place = {prompt: number for number, prompt in enumerate(distinct)}
        places = torch.tensor([place[prompt] for prompt in prompts], device=device)
        return {
            name: torch.stack([row[name] for row in rows]).to(device)[places] for name in rows[0]
        }
