"""CausalModel: the module that answers: token ids in, hidden states, logits and log-probs out.

Architectures differ in what they call their cache, in which arguments they take and in what their
head does; whatever runs a model here runs it by a `CausalModel` and need not know.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from inspect import signature
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from groupwise.attention import without_cudnn
from groupwise.sampler import products_are_exact
from groupwise_llm.model import merging
from groupwise_llm.model.checkpoints import Checkpoints, PromptCache
from groupwise_llm.model.copies import Copies, Numerics
from groupwise_llm.model.likelihood import log_probs_and_entropy, project

CACHES = ("past_key_values", "cache_params")
"""What models call an argument that takes a `DynamicCache`."""


class Hidden(Protocol):
    """Last hidden states [n, t, h] of ids [n, t]; or logits [n, t, v], where the head is not plain.

    attention: [n, s] mask of everything seen so far; keep: how many of the last positions are
    wanted, 0 for all; only logits are worth the cut.
    """

    def __call__(
        self,
        ids: Tensor,
        *,
        attention: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
        keep: int = 0,
    ) -> Tensor: ...


Run = Callable[[Hidden], Tensor]
"""Passes through the layers, one or several, that give the hidden states [k, h] to be answered."""


class MaskedCache(DynamicCache):
    """A cache with which nobody looks, at every token, whether any prompt is padded.

    transformers would, to leave out the mask; a host waits for that. It does not with a cache that
    could be compiled.
    """

    masked = False

    @property
    def is_compileable(self) -> bool:
        return self.masked


class CausalModel(nn.Module):
    """model: as transformers or peft made it; it stays in eval mode.

    Every weight, the head's too, is read inside `forward`.

    recompute: whether layers are computed again in the backward pass (gradient checkpointing).
    merge: whether completions are sampled with adapters merged.
    narrowed: whether passes find all weights in bf16, whatever `Numerics` say (sharded models).
    """

    def __init__(self, model: Any, *, recompute: bool = False, merge: bool = True) -> None:
        super().__init__()
        self.model = model.eval()
        self.copies = Copies(model)
        self.checkpoints = Checkpoints(model, self.copies) if recompute else None
        self.merge, self.narrowed = merge, False

    @property
    def causal(self) -> Any:
        """The causal model, adapters unwrapped (they stay in its layers)."""
        return merging.causal_of(self.model)

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def rounds(self, precision: str) -> bool:
        """Whether it computes in fewer digits than float32 has."""
        kinds = {p.dtype for p in self.model.parameters() if p.is_floating_point()}
        quantised = bool(getattr(self.causal, "is_quantized", False))
        exact = precision == "float32" and not (quantised or self.narrowed)
        exact = exact and products_are_exact()
        return not (exact and kinds <= {torch.float32, torch.float64})

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: dropout would part training from sampling."""
        return super().train(False)

    def recover(self) -> None:
        """Be as before a pass that raised, in whose midst a sharded model is left."""
        reset = getattr(self, "reset_iter_state", None)  # of FSDP, since torch 2.14
        if reset is not None:
            reset()

    @cached_property
    def _arguments(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names that the model without its head takes, and those of the whole."""
        parts = (self.causal.base_model, self.causal)
        first, second = (frozenset(signature(part.forward).parameters) for part in parts)
        return first, second

    @property
    def cache_argument(self) -> str | None:
        return next((name for name in CACHES if name in self._arguments[0]), None)

    def new_cache(self) -> DynamicCache:
        return MaskedCache(config=self.causal.config)

    def new_prompt_cache(self) -> DynamicCache:
        """One for a pass over prompts and a second over all that follows them, to be trained."""
        return self.new_cache() if self.checkpoints is None else PromptCache()

    def sampling(self, numerics: Numerics) -> AbstractContextManager[None]:
        """The context of passes that belong to one sampling; weights do not change in it."""
        return self.copies.standing_in(numerics, merged=self.merge)

    def forward(
        self,
        run: Run,
        numerics: Numerics,
        tokens: Tensor | None = None,
        *,
        temperature: float = 1.0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Of the hidden states [k, h] that `run` makes: log-probs of tokens [k] and entropies [k];
        without tokens their logits [k, v] in float32."""
        with self.copies.standing_in(numerics):
            hidden = self.hidden(run, numerics)
            if tokens is None:
                return self._logits(hidden) if numerics.plain_head else hidden.float()
            if numerics.plain_head:
                head = self.causal.get_output_embeddings()
                return log_probs_and_entropy(
                    hidden, head.weight, head.bias, tokens, temperature=temperature
                )
        log_p = (hidden.float() / temperature).log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return log_p[torch.arange(len(tokens), device=tokens.device), tokens], entropy

    def hidden(self, run: Run, numerics: Numerics) -> Tensor:
        """[k, h] what `run` makes of the layers; a part of `forward`."""
        with self.copies.standing_in(numerics), without_cudnn():
            hidden = run(partial(self._layers, plain=numerics.plain_head))
        return hidden.float() if numerics.wide_head else hidden

    def _layers(
        self,
        ids: Tensor,
        *,
        plain: bool,
        attention: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DynamicCache | None = None,
        keep: int = 0,
    ) -> Tensor:
        inputs = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions,
            "use_cache": cache is not None,
            "logits_to_keep": keep or None,
            self.cache_argument: cache,
        }
        if isinstance(cache, MaskedCache):
            cache.masked = attention is not None
        names = self._arguments[0 if plain else 1]
        inputs = {name: value for name, value in inputs.items() if value is not None}
        call = self.causal.base_model if plain else self.causal
        output = call(**{name: value for name, value in inputs.items() if name in names})
        answer: Tensor = output.last_hidden_state if plain else output.logits
        return answer[:, -keep:]

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.causal.get_output_embeddings()
        return project(hidden, head.weight, head.bias)


def head_is_linear(causal: Any) -> bool:
    """Whether the output embedding is a linear layer and nothing else.

    Adapters, quantisation, parametrizations and hooks change what a head does beside its weight;
    as adapters start at zero, a comparison of values would not see them.
    """
    head = causal.get_output_embeddings()
    return (
        type(head) is nn.Linear
        and head.weight.is_floating_point()
        and not (head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head))
    )
