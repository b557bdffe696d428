"""CausalModel: the module that answers: token ids in, hidden states, logits and log-probs out.

Architectures differ in what they call their cache, in which arguments they take and in what their
head does; whatever runs a model here runs it by a `CausalModel` and need not know.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import signature
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from groupwise_llm import modes
from groupwise_llm.likelihood import log_probs_and_entropy, project

CACHES = ("past_key_values", "cache_params")
"""What models call an argument that takes a `DynamicCache`."""


@dataclass(frozen=True)
class Numerics:
    """By which arithmetic a model answers.

    precision: "float32" or "bf16", by autocast.
    plain_head: whether logits are the output embedding times the last hidden state. The
        likelihood then never holds all of them.
    """

    precision: str
    plain_head: bool

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """The context that every pass is made in; held open, it casts each weight but once."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(device.type, dtype=torch.bfloat16)


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


class CausalModel(nn.Module):
    """model: as transformers or peft made it.

    Every weight, the head's too, is read inside `forward`.

    narrowed: whether passes find all weights in bf16, whatever `Numerics` say (sharded models).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.narrowed = False

    @property
    def causal(self) -> Any:
        """The causal model, adapters unwrapped (they stay in its layers)."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    def rounds(self, precision: str) -> bool:
        """Whether it computes in fewer digits than float32 has."""
        kinds = {p.dtype for p in self.model.parameters() if p.is_floating_point()}
        products = torch.get_float32_matmul_precision()  # "high" allows TF32
        exact = precision == "float32" and products == "highest" and not self.narrowed
        return not (exact and kinds <= {torch.float32, torch.float64})

    def train(self, mode: bool = True) -> Self:
        """Dropout stays off; only gradient checkpointing needs the model's training mode."""
        super().train(mode)
        modes.set_training(self.model, mode)
        return self

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
        return DynamicCache(config=self.causal.config)

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
        with numerics.computing(self.device):
            return run(partial(self._layers, plain=numerics.plain_head))

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
        names = self._arguments[0 if plain else 1]
        inputs = {name: value for name, value in inputs.items() if value is not None}
        call = self.causal.base_model if plain else self.causal
        output = call(**{name: value for name, value in inputs.items() if name in names})
        answer: Tensor = output.last_hidden_state if plain else output.logits
        return answer[:, -keep:]

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self.causal.get_output_embeddings()
        # As the likelihood computes it: in the hidden states' own precision.
        with torch.autocast(hidden.device.type, enabled=False):
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
