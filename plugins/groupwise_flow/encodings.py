"""Encodings: each distinct prompt is encoded once in the life of a run, and kept."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.errors import UserError
from groupwise_flow.adapter import Conditions

ENCODED_AT_ONCE = 32
MASK = "mask"


class Encodings:
    """The conditions of prompts, the `most` used last of which are kept in CPU memory.

    They are megabytes each, so a GPU would soon be full of them. width: of conditions that have a
    mask, in tokens; name: of what encodes, for messages.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], Conditions],
        *,
        most: int,
        width: int,
        name: str,
    ) -> None:
        self._encode, self.most, self.width, self.name = encode, most, width, name
        self._kept: OrderedDict[str, Conditions] = OrderedDict()
        self._shapes: dict[str, torch.Size] = {}

    def __call__(self, prompts: Sequence[str], device: torch.device) -> Conditions:
        """Conditions [n, ...] of n prompts, in their order; prompts may repeat.

        UserError for conditions whose shape differs from prompt to prompt and have no mask: what
        a model makes of a prompt would depend on which others were encoded with it.
        """
        distinct = list(dict.fromkeys(prompts))
        fresh = [prompt for prompt in distinct if prompt not in self._kept]
        for start in range(0, len(fresh), ENCODED_AT_ONCE):
            some = fresh[start : start + ENCODED_AT_ONCE]
            # Not inference_mode: its tensors could not be saved for a backward pass later.
            with torch.no_grad():
                encoded = self._of_one_shape(self._encode(some))
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
        together = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        if len(distinct) < len(prompts):
            place = {prompt: number for number, prompt in enumerate(distinct)}
            places = torch.tensor([place[prompt] for prompt in prompts]).to(device)
            return {name: value.to(device)[places] for name, value in together.items()}
        return {name: value.to(device) for name, value in together.items()}

    def _of_one_shape(self, encoded: Conditions) -> Conditions:
        """Filled up by the mask to `width`, and as all before in shape."""
        if MASK in encoded:
            encoded = self._filled(encoded)
        shapes = {name: value.shape[1:] for name, value in encoded.items()}
        self._shapes = self._shapes or shapes
        for name, shape in shapes.items():
            if shape != self._shapes[name]:
                raise UserError(
                    f"{self.name}.encode gave {name!r} {list(self._shapes[name])} for some prompts "
                    f"and {list(shape)} for others: pad to one width, `policy.prompt_tokens`, or "
                    f"give a `mask` [n, tokens] with it that `velocity` applies, and it is filled "
                    f"up to that width"
                )
        return encoded

    def _filled(self, encoded: Conditions) -> Conditions:
        """Zeros behind the mask, and behind all conditions [n, tokens, ...] of its width."""
        tokens = encoded[MASK].shape[1]
        missing = self.width - tokens
        if missing < 0:
            raise UserError(
                f"policy.prompt_tokens: {self.name} made {tokens} tokens of a prompt, and "
                f"{self.width} are allowed; set it to {tokens} or more"
            )

        def filled(name: str, value: Tensor) -> Tensor:
            along = name == MASK or (value.ndim > 2 and value.shape[1] == tokens)
            return pad(value, (0, 0) * (value.ndim - 2) + (0, missing)) if along else value

        return {name: filled(name, value) for name, value in encoded.items()}
