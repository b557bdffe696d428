"""PicturedModel: a causal model some of whose ids are those of pictures."""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import DynamicCache

from groupwise.kit.attention import without_cudnn
from groupwise_llm.model.attention import Layout
from groupwise_llm.model.causal import CausalModel, Run
from groupwise_llm.model.copies import Numerics
from groupwise_llm.model.likelihood import LEAST
from groupwise_llm.vision.album import Album
from groupwise_llm.vision.family import Features, Pictured
from groupwise_llm.vision.features import FeatureCache, Pictures
from groupwise_llm.vision.picture import BEYOND, Picture


class PicturedModel(CausalModel):
    """A model whose passes within `showing` may have pictures; it is one of text without any.

    album: of the pictures. feature_tokens: most tokens of pictures whose features are kept.
    sample: a picture that passes are tried with.
    """

    def __init__(
        self, model: Any, album: Album, sample: Picture, *, feature_tokens: int, **options: Any
    ) -> None:
        super().__init__(model, **options)
        self.album, self.family, self.sample = album, album.family, sample
        self._cache = FeatureCache(self._made, feature_tokens)
        self._pictures: Pictures | None = None
        self._host: Pictures | None = None
        self._features: Features | None = None
        self._learns = False
        self._weights: Hashable = None

    def exclude(self) -> None:
        """Have no token drawn that stands for pictures."""
        excluded = torch.zeros(len(self.causal.get_output_embeddings().weight), device=self.device)
        excluded[sorted(self.family.excluded)] = LEAST
        self.excluded = excluded

    @contextmanager
    def showing(self, pictures: Sequence[Picture]) -> Iterator[None]:
        """The context of passes whose ids may be those of these pictures; weights do not change in
        it.

        A pass without pictures sees the sample where other processes wait for it: for the gradient
        of a tower that learns (DDP), or for its shards of a tower's weights (FSDP).
        """
        before = self._pictures, self._host, self._features
        self._pictures = self._host = self._features = None
        self._learns = any(p.requires_grad for part in self._towers for p in part.parameters())
        self._weights = self._tower_weights()
        sharded, backward = not self.copies.reusable, torch.is_grad_enabled()
        if not pictures and (sharded or (self._learns and backward)):
            pictures = [self.sample]
        if pictures:
            self._host = Pictures(pictures, torch.device("cpu"))
            self._pictures = Pictures(pictures, self.device)
        try:
            yield
        finally:
            self._pictures, self._host, self._features = before

    # ---- positions

    def positions(self, ids: Tensor, counts: Tensor | None) -> Tensor | None:
        if self._pictures is None:
            return counts
        if counts is None:
            counts = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        shifts, offsets = _shifts(self._pictures, ids)
        return self._on_axes(counts + shifts[..., :-1] + offsets)

    def packed_positions(self, ids: Tensor, counts: Tensor, layout: Layout) -> Tensor:
        if self._pictures is None:
            return counts
        shifts, offsets = _shifts(self._pictures, ids)
        return self._on_axes(counts + _in_contexts(shifts, layout) + offsets)

    def next_positions(self, ids: Tensor, counts: Tensor) -> Tensor:
        after = super().next_positions(ids, counts)
        return after if self._pictures is None else after + _shifts(self._pictures, ids)[0][:, -1]

    def extents(self, contexts: Sequence[Tensor]) -> list[int]:
        if self._host is None:
            return super().extents(contexts)
        return [int(self._host.steps(context)[0].sum()) for context in contexts]

    def _on_axes(self, positions: Tensor) -> Tensor:
        """positions: [axes, n, t]; [n, t] with a single axis."""
        return positions.squeeze(0) if self.family.axes == 1 else positions

    # ---- ids

    def as_text(self, ids: Tensor) -> Tensor:
        return ids.where(ids < BEYOND, self.family.image_id)

    def trial_ids(self, ids: Tensor) -> Tensor:
        """With the sample within, if it is shown."""
        if self._pictures is None:
            return ids
        return torch.cat([ids[:1], torch.tensor(self.sample.ids), ids[1:]])

    # ---- passes

    def hidden(self, run: Run, numerics: Numerics) -> Tensor:
        with self.copies.swapped_in(numerics), without_cudnn():
            if self._pictures is not None:
                self._see(self._pictures.pictures, numerics)
            return super().hidden(run, numerics)

    def _see(self, pictures: Sequence[Picture], numerics: Numerics) -> None:
        """Have the features of pictures: with a gradient for the tower, if it learns, else kept."""
        if self._learns and torch.is_grad_enabled():
            self._features = self._made(pictures)
        elif self._features is None:
            # Sharded weights: all processes run the tower, or none, and as often.
            kept = partial(self._cache.of, weights=(numerics, self.device, self._weights))
            with torch.no_grad():
                self._features = (kept if self.copies.reusable else self._made)(pictures)

    @property
    def _towers(self) -> Sequence[nn.Module]:
        return self.family.towers(self.causal)

    def _tower_weights(self) -> Hashable:
        """Versions of the model's own weights, not of the copies that a pass reads."""
        modules = [module for part in self._towers for module in part.modules()]
        versions = [(id(p), p._version) for part in self._towers for p in part.parameters()]
        return tuple(versions), tuple(getattr(x, "disable_adapters", False) for x in modules)

    def _made(self, pictures: Sequence[Picture]) -> Features:
        return self.family.features(self.causal, [*map(self.album.complete, pictures)])

    def _layers(
        self,
        ids: Tensor,
        *,
        plain: bool,
        attention: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
        keep: int | Tensor = 0,
    ) -> Tensor:
        options: dict[str, Any] = {"attention": attention, "positions": positions, "cache": cache}
        # One token of each row is one that was drawn, and so of text.
        if self._pictures is None or self._features is None or ids.shape[1] == 1:
            return super()._layers(ids, plain=plain, keep=keep, **options)
        places, rows = self._pictures.find(ids)
        words = self.causal.get_input_embeddings()(self.as_text(ids))
        embeds = self._features.embeds.to(words.dtype)[rows].where(places.unsqueeze(-1), words)
        call = {
            "inputs_embeds": embeds,
            "attention_mask": attention,
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": cache is not None,
        }
        pictured = Pictured(ids=ids, places=places, rows=rows, features=self._features)
        call = {name: value for name, value in call.items() if value is not None}
        call = dict(self.family.arguments(self.causal, call, pictured))
        states: Tensor = self.family.text_model(self.causal)(**call).last_hidden_state
        states = states[:, -keep:] if isinstance(keep, int) else states[:, keep]
        return states if plain else self.causal.get_output_embeddings()(states)


def _shifts(pictures: Pictures, ids: Tensor) -> tuple[Tensor, Tensor]:
    """[n, t + 1] how much further positions are than tokens count, before each of ids [n, t] and
    after the last; and their offsets [axes, n, t]."""
    advances, offsets = pictures.steps(ids)
    return pad((advances - 1).cumsum(1), (1, 0)), offsets


def _in_contexts(shifts: Tensor, layout: Layout) -> Tensor:
    """Shifts [1, N] of a packed row's tokens in their own contexts, from those of the whole row
    [1, N + 1]: a sequence begins anew, and a completion goes on from its prompt."""
    lengths = torch.tensor([length for length, _ in layout.own.lengths])
    starts = (lengths.cumsum(0) - lengths).repeat_interleave(lengths).to(shifts.device)
    own = shifts[:, :-1] - shifts[:, starts]
    if layout.shared is not None:
        queries, keys = torch.tensor(layout.shared.lengths).T
        ends = keys.cumsum(0)
        prompts = torch.stack([ends - keys, ends]).repeat_interleave(queries, dim=1)
        first, last = prompts.to(shifts.device)
        own[:, layout.start :] += shifts[:, last] - shifts[:, first]
    return own
