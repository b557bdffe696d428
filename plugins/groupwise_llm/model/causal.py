"""CausalModel: token ids in, hidden states, logits and log-probs out, for every architecture.

Architectures differ in the name of their cache argument, in the arguments they take and in what
their head computes. `CausalModel` hides these differences from sampling, training and probing.
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from inspect import signature
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from groupwise.kit.attention import without_cudnn
from groupwise.sampler import products_are_exact
from groupwise_llm.model import merging
from groupwise_llm.model.attention import Layout, PackedAttention
from groupwise_llm.model.copies import Copies, Numerics
from groupwise_llm.model.fusion import Fusion
from groupwise_llm.model.likelihood import log_probs_and_entropy, project
from groupwise_llm.model.recomputation import PromptCache, Recomputation

CACHES = ("past_key_values", "cache_params")
"""The names under which models take a `DynamicCache`."""


class Hidden(Protocol):
    """Last hidden states [n, t, h] of ids [n, t]; or logits [n, t, v], where the head is not plain.

    attention: [n, s] mask of the cache and the ids; keep: return only so many last positions, or
    these [t], 0 for all (saves memory for logits).
    """

    def __call__(
        self,
        ids: Tensor,
        *,
        attention: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
        keep: int | Tensor = 0,
    ) -> Tensor: ...


Run = Callable[[Hidden], Tensor]
"""One or several passes through the layers; returns the hidden states [k, h] of k decisions."""


class MaskedCache(DynamicCache):
    """A cache that keeps transformers from checking the mask for padding at every token.

    With an ordinary cache it does so to leave out a mask without effect, and the host waits for the
    device. For a compileable cache it does not.
    """

    masked = False

    @property
    def is_compileable(self) -> bool:
        return self.masked


class CausalModel(nn.Module):
    """A causal language model in eval mode, run under given `Numerics`.

    All weights, the head's included, are read inside `forward`, as DDP and FSDP require.

    model: a transformers model, or peft's wrapper of one.
    recompute: whether layers are computed again in the backward pass (gradient checkpointing).
    merge: whether completions are sampled with merged adapters.
    weights_in_bf16: whether FSDP gathers all weights in bf16, whatever `Numerics` say.
    excluded: [v] added to the logits: 0, or `LEAST` for tokens that are never drawn; None where
        there are none.
    """

    excluded: Tensor | None

    def __init__(self, model: Any, *, recompute: bool = False, merge: bool = True) -> None:
        super().__init__()
        self.model = model.eval()
        self.copies = Copies(model)
        self.packed_attention = PackedAttention(model)
        self.fusion = Fusion(model)
        self.recomputation = (
            Recomputation(model, self.copies, self.packed_attention) if recompute else None
        )
        self.merge, self.weights_in_bf16 = merge, False
        self.register_buffer("excluded", None, persistent=False)

    @property
    def causal(self) -> Any:
        """The transformers model without peft's wrapper; adapters stay in its layers."""
        return merging.causal_of(self.model)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def rounds(self, precision: str) -> bool:
        """Whether it computes with less than float32's precision."""
        kinds = {p.dtype for p in self.model.parameters() if p.is_floating_point()}
        quantised = bool(getattr(self.causal, "is_quantized", False))
        exact = precision == "float32" and not (quantised or self.weights_in_bf16)
        exact = exact and products_are_exact()
        return not (exact and kinds <= {torch.float32, torch.float64})

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: with dropout, the log-probs of training would differ from those of
        sampling, and the ratio would not be 1."""
        return super().train(False)

    def weights_in_use(self) -> Hashable:
        """A value that changes whenever a pass would give other results: weights are changed or
        exchanged, adapters switched on or off."""
        versions = [(id(p), p._version) for p in self.model.parameters()]
        layers = [getattr(layer, "disable_adapters", False) for layer in self.model.modules()]
        return tuple(versions), tuple(layers)

    def recover(self) -> None:
        """Reset FSDP's state after a pass that raised an error halfway."""
        reset = getattr(self, "reset_iter_state", None)  # FSDP has it since torch 2.14
        if reset is not None:
            reset()

    # ---- ids: how far positions go, and what a pass reads

    def positions(self, ids: Tensor, counts: Tensor | None) -> Tensor | None:
        """Positions of ids [n, t] for a pass. counts: [n, t] those of tokens that count one each,
        from what is in the row's cache on; None for whole rows."""
        return counts

    def packed_positions(self, ids: Tensor, counts: Tensor, layout: Layout) -> Tensor:
        """The same for a packed row [1, N]."""
        return counts

    def next_positions(self, ids: Tensor, counts: Tensor) -> Tensor:
        """[n] that of the token after each row."""
        return counts[:, -1] + 1

    def extents(self, contexts: Sequence[Tensor]) -> list[int]:
        """The position of the token after each context [t], in CPU memory."""
        return [len(context) for context in contexts]

    def as_text(self, ids: Tensor) -> Tensor:
        """Ids with those that are in no vocabulary replaced."""
        return ids

    def trial_ids(self, ids: Tensor) -> Tensor:
        """Ids [t] of a prompt that a pass is tried with."""
        return ids

    @cached_property
    def _arguments(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of the arguments of the model without its head, and of the whole model."""
        parts = (self.causal.base_model, self.causal)
        first, second = (frozenset(signature(part.forward).parameters) for part in parts)
        return first, second

    @property
    def cache_argument(self) -> str | None:
        return next((name for name in CACHES if name in self._arguments[0]), None)

    def new_cache(self) -> DynamicCache:
        return MaskedCache(config=self.causal.config)

    def new_prompt_cache(self) -> DynamicCache:
        """A cache for training: one pass over prompts, then one over all their completions."""
        return self.new_cache() if self.recomputation is None else PromptCache()

    def sampling(self, numerics: Numerics) -> AbstractContextManager[None]:
        """The context of the passes of one call of `sample`, in which weights do not change."""
        return self.copies.swapped_in(numerics, merged=self.merge)

    def forward(
        self,
        run: Run,
        numerics: Numerics,
        tokens: Tensor | None = None,
        *,
        temperature: float = 1.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Log-probs [k] of tokens and entropies [k], from the hidden states [k, h] of `run`;
        without tokens the logits [k, v] in float32."""
        with self.copies.swapped_in(numerics):
            hidden = self.hidden(run, numerics)
            if tokens is None:
                plain = numerics.plain_head
                return project(hidden, *self._head()) if plain else self._allowed(hidden)
            if numerics.plain_head:
                weight, bias = self._head()
                return log_probs_and_entropy(hidden, weight, bias, tokens, temperature=temperature)
        log_p = (self._allowed(hidden) / temperature).log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return log_p[torch.arange(len(tokens), device=tokens.device), tokens], entropy

    def hidden(self, run: Run, numerics: Numerics) -> Tensor:
        """[k, h] the hidden states of `run`; a part of `forward`."""
        with self.copies.swapped_in(numerics), without_cudnn():
            hidden = run(partial(self._layers, plain=numerics.plain_head))
        return hidden.float() if numerics.head_in_float32 else hidden

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
        inputs = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions,
            "use_cache": cache is not None,
            "logits_to_keep": keep if isinstance(keep, Tensor) else keep or None,
            self.cache_argument: cache,
        }
        if isinstance(cache, MaskedCache):
            cache.masked = attention is not None
        names = self._arguments[0 if plain else 1]
        inputs = {name: value for name, value in inputs.items() if value is not None}
        call = self.causal.base_model if plain else self.causal
        output = call(**{name: value for name, value in inputs.items() if name in names})
        answer: Tensor = output.last_hidden_state if plain else output.logits
        if isinstance(keep, int):
            return answer[:, -keep:]
        return answer if "logits_to_keep" in inputs.keys() & names else answer[:, keep]

    def _head(self) -> tuple[Tensor, Tensor | None]:
        """The weight [v, h] and bias [v] of the logits."""
        head = self.causal.get_output_embeddings()
        if self.excluded is None or head.bias is None:
            return head.weight, head.bias if self.excluded is None else self.excluded
        return head.weight, head.bias + self.excluded

    def _allowed(self, logits: Tensor) -> Tensor:
        """Logits [k, v] of the model's own head, in float32."""
        return logits.float() if self.excluded is None else logits.float() + self.excluded


def head_is_linear(causal: Any) -> bool:
    """Whether the output embedding is a plain linear layer.

    Adapters, quantisation, parametrizations and hooks change what a head computes. Comparing logits
    is not enough to notice adapters, since these start at zero.
    """
    head = causal.get_output_embeddings()
    return (
        type(head) is nn.Linear
        and head.weight.is_floating_point()
        and not (head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))
    )
