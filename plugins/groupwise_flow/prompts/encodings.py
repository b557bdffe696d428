"""Encodings: a cache of encoded prompts, so that each is encoded once in a run."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import pad

from groupwise.kit.errors import UserError
from groupwise_flow.adapter import MASK, UNCONDITIONAL, Adapter, Conditions, Row
from groupwise_flow.files.messages import silent

Encoded = Mapping[str, Tensor]
"""Conditions, by name."""

BATCHES_ON_DEVICE = 2
"""Latest batches kept on the device: a step's conditional and its unconditional one."""


class Encodings:
    """Conditions of rows; the `most` used last are cached in CPU memory.

    Each takes megabytes, too much to cache on a GPU.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        most: int,
        check: Callable[[Sequence[Row]], None],
        on: Callable[[torch.device], AbstractContextManager[None]],
    ) -> None:
        """check: raises an error for rows that must not be encoded; on: the context in which the
        encoders are on a device."""
        self.adapter, self.most, self.check, self.on = adapter, most, check, on
        self.name = type(adapter).__name__
        self._kept: OrderedDict[Hashable, Encoded] = OrderedDict()
        self._batches: OrderedDict[Hashable, Conditions] = OrderedDict()
        self._shapes: dict[str, torch.Size] = {}

    def __call__(self, rows: Sequence[Row], device: torch.device) -> Conditions:
        """Conditions [n, ...] of n rows, in their order; rows may repeat.

        Raises UserError where shapes differ from row to row: a prompt's velocity would then depend
        on which prompts were encoded with it.
        """
        parts = {id(row): self._part(row) for row in rows}
        keys = {number: identity(part) for number, part in parts.items()}
        batch = (tuple(keys[id(row)] for row in rows), device)
        if batch not in self._batches:
            self._keep({keys[number]: part for number, part in parts.items()}, device)
            self._batches[batch] = self._joined(batch[0], device)
        self._batches.move_to_end(batch)
        while len(self._batches) > BATCHES_ON_DEVICE:
            self._batches.popitem(last=False)
        return self._batches[batch]

    def cache(self, rows: Iterable[Row], device: torch.device) -> None:
        """Encode all rows now and cache them. Raises UserError if they are more than `most`."""
        self._keep(self.distinct(rows), device)

    def distinct(self, rows: Iterable[Row]) -> dict[Hashable, Row]:
        """The rows with different encodings, by key. Raises UserError for more than `most`."""
        parts = [self._part(row) for row in rows]
        distinct = {identity(part): part for part in parts}
        if len(distinct) > self.most:
            raise UserError(
                f"policy.keep_prompts: encoders: cached keeps all {len(distinct):,} prompts of the "
                f"data set (with the unconditional ones), and at most {self.most:,} are kept; set "
                f"it to {len(distinct)} or more, or set policy.encoders: offload"
            )
        return distinct

    def _part(self, row: Row) -> Row:
        """The columns of a row that the adapter reads."""
        try:
            columns = self.adapter.columns(row)
        except KeyError as error:
            raise UserError(
                f"{self.name} encodes the column {error}, which a row lacks: {str(row)[:200]}"
            ) from None
        mark = {UNCONDITIONAL: True} if row.get(UNCONDITIONAL) else {}
        return _Columns({**columns, **mark})

    def _keep(self, parts: Mapping[Hashable, Row], device: torch.device) -> None:
        """Encode the rows that are not cached; parts: rows by key."""
        fresh = {key: part for key, part in parts.items() if key not in self._kept}
        if fresh:
            self.check([*fresh.values()])
            with self.on(device):
                for key, part in fresh.items():
                    self._kept[key] = self._encoded(part)
        for key in parts:
            self._kept.move_to_end(key)

    def _joined(self, keys: Sequence[Hashable], device: torch.device) -> Conditions:
        """[n, ...] on the device; keys: of the n rows."""
        parts = dict.fromkeys(keys)
        kept = [self._kept[key] for key in parts]
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)
        together = {n: torch.stack([one[n] for one in kept]).to(device) for n in kept[0]}
        place = {key: number for number, key in enumerate(parts)}
        numbers = [place[key] for key in keys]
        lengths = (
            [_length(kept[number][MASK]) for number in numbers] if self.adapter.by_token else ()
        )
        if len(parts) == 1:
            count = len(keys)
            together = {n: value.expand(count, *value.shape[1:]) for n, value in together.items()}
        elif len(parts) < len(keys):
            places = torch.tensor(numbers).to(device)
            together = {name: value[places] for name, value in together.items()}
        return Conditions(together, lengths)

    def _encoded(self, row: Row) -> Encoded:
        """Conditions [...] of a row in CPU memory, encoded alone: in a batch their last digits
        would depend on its size, and a resumed run has other rows to encode beside it."""
        # Not inference_mode: its tensors could not be saved for a backward pass later.
        with torch.no_grad(), silent():
            encoded = self._of_one_shape(self.adapter.encode([row]))
        return {name: value[0].to("cpu", copy=True) for name, value in encoded.items()}

    def _of_one_shape(self, encoded: Mapping[str, Tensor | None]) -> Encoded:
        """Conditions, padded where named in `by_token`. Raises UserError where names or shapes
        differ from those of earlier rows."""
        conditions = {name: value for name, value in encoded.items() if value is not None}
        if self.adapter.by_token:
            conditions = self._padded(conditions)
        shapes = {name: value.shape[1:] for name, value in conditions.items()}
        self._shapes = self._shapes or shapes
        if shapes.keys() != self._shapes.keys():
            raise UserError(
                f"{self.name}.encode gave {', '.join(self._shapes)} for some prompts and "
                f"{', '.join(shapes)} for others"
            )
        for name, shape in shapes.items():
            if shape != self._shapes[name]:
                raise UserError(
                    f"{self.name}.encode gave {name!r} {list(self._shapes[name])} for some prompts "
                    f"and {list(shape)} for others: pad to one width, or name it in `by_token` and "
                    f"return a `{MASK}` [n, tokens] with it, which `velocity` applies"
                )
        return conditions

    def _padded(self, encoded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Conditions in `by_token`, zero where the mask is False, and the mask, padded to one
        width."""
        first = encoded[self.adapter.by_token[0]]
        mask = encoded.get(MASK, first.new_ones(first.shape[:2])).to(torch.bool)
        missing = self.adapter.tokens - mask.shape[1]
        if missing < 0:
            raise UserError(
                f"policy.prompt_tokens: {self.name} made {mask.shape[1]} tokens of a prompt, and "
                f"{self.adapter.tokens} are allowed; set it to {mask.shape[1]} or more"
            )
        padded = {**encoded, MASK: pad(mask, (0, missing))}
        for name in self.adapter.by_token:
            value = encoded[name]
            real = mask.view(*mask.shape, *[1] * (value.ndim - 2))
            padded[name] = pad(
                value.masked_fill(~real, 0), (0, 0) * (value.ndim - 2) + (0, missing)
            )
        return padded


def _length(mask: Tensor) -> int:
    """The number of tokens up to the last real one; mask: [tokens], in CPU memory."""
    return int(mask.nonzero().max()) + 1 if bool(mask.any()) else 0


class _Columns(dict[str, Any]):
    """The columns in an adapter's `reads`; reading any other raises UserError."""

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the adapter's `encode` reads the column {name!r} and its `reads` names "
            f"{', '.join(self)}: encodings are cached by these columns; add it to `reads`"
        )


def identity(value: Any) -> Hashable:
    """A cache key for a row's value: equal keys exactly for equal content.

    Raises UserError for anything but texts, numbers, pictures, tensors, arrays, and lists and
    mappings of them.
    """
    if isinstance(value, Mapping):
        return ("mapping", *((name, identity(part)) for name, part in sorted(value.items())))
    if isinstance(value, list | tuple):
        return ("list", *map(identity, value))
    if isinstance(value, Image.Image):
        palette = tuple(value.getpalette() or ())
        return (value.mode, value.size, palette, _digest(value.tobytes()))
    if isinstance(value, Tensor):
        content = value.detach().cpu().flatten().view(torch.uint8).numpy()
        return (str(value.dtype), value.shape, _digest(content.tobytes()))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, _digest(np.ascontiguousarray(value).tobytes()))
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return (type(value).__name__, _digest(value) if isinstance(value, bytes) else value)
    raise UserError(
        f"a row's value to be encoded must be a text, a number, a picture, a tensor or an array, "
        f"or a list or mapping of them; found {type(value).__name__}"
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
