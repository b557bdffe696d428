"""LanguageModel: a policy over any transformers causal language model; its decisions are tokens."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from transformers import DynamicCache, StopStringCriteria

from groupwise.policy import Microbatch, Policy, Purpose
from groupwise.rollouts import LogProbs, Rollouts
from groupwise_llm import passes, probes, sampling
from groupwise_llm.likelihood import log_probs_and_entropy, project
from groupwise_llm.loading import checkpoint_activations, config_of, end_tokens, load, save
from groupwise_llm.memory import estimate
from groupwise_llm.packing import pack
from groupwise_llm.settings import Settings
from groupwise_llm.text import decode, encode


class LanguageModel(Policy):
    """Log-probs are those of the full softmax of logits / temperature, sampled or trained."""

    provides = frozenset({"log_probs", "entropy", "reference"})
    facts = frozenset({"completion_ids", "kept_mass"})
    logged = frozenset({"kept_mass"})
    unit = "tokens"
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.model, self.tokenizer = load(config)
        self._reference: list[Any] = []  # in a list, so that nn.Module does not count its weights
        self._answering = self.model
        self.precision = "float32"  # of the probes; what a model can do does not hang on rounding
        self.notes: list[str] = []
        self.ends = end_tokens(self.model, self.tokenizer)
        self.max_decisions = config.max_new_tokens
        self._stop = StopStringCriteria(self.tokenizer, config.stop) if config.stop else None
        self._filters = sampling.filters_for(config)
        if config.gradient_checkpointing:
            checkpoint_activations(self.model)
        self.plain_head = probes.head_is_plain(self)
        self.share_prompt = config.share_prompt and probes.cache_agrees(self)
        self.precision = config.precision
        if config.gradient_checkpointing and self.share_prompt:
            self.notes.append(
                "prompts are shared in sampling only: gradient checkpointing drops the cache"
            )

    def train(self, mode: bool = True) -> Self:
        """Dropout stays off; only gradient checkpointing needs the model's training mode."""
        super().train(mode)
        for module in self.model.modules():
            # Not `model.train(mode)`: dropout would part training from sampling.
            checkpoints = getattr(module, "gradient_checkpointing", False)
            module.training = bool(mode and checkpoints)
        return self

    # ---- sampling

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Completions of text prompts or chat messages; see `Policy.sample`."""
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        ids = [encode(self.tokenizer, row["prompt"], self.config, limit=limit) for row in prompts]
        draws = None
        if purpose != "greedy":
            draws = sampling.uniforms(seeds, self.config.max_new_tokens)
        training = self.training
        self.train(False)  # in training mode gradient checkpointing drops the cache
        sampled = sampling.decode(self._decoder(), ids, group_size, draws)
        self.train(training)
        rows = [row for row in prompts for _ in range(group_size)]
        tokens = [
            row[mask].tolist()
            for row, mask in zip(sampled.ids.cpu(), sampled.mask.cpu(), strict=True)
        ]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        return Rollouts(
            prompts=rows,
            completions=[
                decode(self.tokenizer, chosen, row["prompt"])
                for chosen, row in zip(tokens, rows, strict=True)
            ],
            groups=groups.to(sampled.ids.device),
            mask=sampled.mask,
            truncated=sampled.truncated,
            log_probs=sampled.log_probs,
            facts={
                "completion_ids": tokens,
                "kept_mass": sampled.kept.tolist(),
            },
            trajectory={
                "prompt_ids": [ids[group] for group in groups.tolist()],
                "completion_ids": sampled.ids,
            },
        )

    def _decoder(self) -> sampling.Decoder:
        return sampling.Decoder(
            hidden=self.hidden,
            logits=self.logits,
            new_cache=self.new_cache,
            filters=self._filters,
            ends=torch.tensor(self.ends, device=self.device),
            stop=self._stop,
            temperature=self.config.temperature,
            max_new_tokens=self.config.max_new_tokens,
            share_prompt=self.share_prompt,
        )

    # ---- log-probs

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """Log-probs and entropy [b, t] of completion tokens; prompts only give them context."""
        completions = rollouts.tensor("completion_ids")
        prompts = list(rollouts.trajectory["prompt_ids"])
        stop = decisions.indices(completions.shape[1])[1]
        ids = completions[:, :stop].to(self.device)
        mask = rollouts.mask[:, :stop].to(self.device)
        if self._shares_in_training:
            hidden = passes.shared(self, prompts, rollouts.groups, ids, mask)
        else:
            hidden = passes.plain(self, prompts, ids, mask)
        chosen = mask.flatten().nonzero().flatten()
        log_probs, entropy = self._likelihood(
            hidden.reshape(-1, hidden.shape[-1])[chosen], ids.flatten()[chosen]
        )
        shape = ids.numel()
        spread = [
            torch.zeros(shape, device=ids.device).index_put((chosen,), values).view_as(ids)
            for values in (log_probs, entropy)
        ]
        return LogProbs(log_probs=spread[0][:, decisions], entropy=spread[1][:, decisions])

    @property
    def _shares_in_training(self) -> bool:
        return self.share_prompt and not self.config.gradient_checkpointing

    def microbatches(
        self,
        rollouts: Rollouts,
        budget: int,
        *,
        cut_decisions: bool,
    ) -> Sequence[Microbatch]:
        """Rollouts of like length together, cut where padding would cost more than prompts do."""
        lengths = rollouts.lengths.cpu()
        order = lengths.argsort(descending=True, stable=True)
        prompts = torch.tensor([len(ids) for ids in rollouts.trajectory["prompt_ids"]])
        distinct = dict(zip(rollouts.groups.tolist(), prompts.tolist(), strict=True))
        parts = pack(
            lengths[order],
            prompts[order],
            once=sum(distinct.values()) if self._shares_in_training else 0,
            budget=budget,
            # What starting another pass is worth: a GPU needs thousands of tokens to be busy.
            overhead=64 if self.device.type == "cpu" else 4096,
        )
        return [
            (order[start:stop], slice(0, max(1, int(lengths[order[start]]))))
            for start, stop in parts
        ]

    def _likelihood(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.plain_head:
            head = self.causal.get_output_embeddings()
            bias = getattr(head, "bias", None)
            return log_probs_and_entropy(
                hidden, head.weight, bias, tokens, temperature=self.config.temperature
            )
        log_p = (hidden.float() / self.config.temperature).log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return log_p.gather(1, tokens.unsqueeze(1)).squeeze(1), entropy

    # ---- the model underneath

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def causal(self) -> Any:
        """The causal model whose weights answer, adapters unwrapped (they stay in its layers)."""
        model = self._answering
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def new_cache(self) -> DynamicCache:
        return DynamicCache(config=self.causal.config)

    def hidden(
        self,
        ids: Tensor,
        attention: Tensor,
        positions: Tensor,
        cache: DynamicCache | None,
        *,
        keep: int = 0,
    ) -> Tensor:
        """Last hidden states [n, t, h]; or logits [n, t, v], where the head is no plain product.

        keep: how many of the last positions are wanted, 0 for all; only logits are worth the cut.
        """
        inputs = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": cache is not None,
        }
        with self._autocast():
            if self.plain_head:
                hidden: Tensor = self.causal.base_model(**inputs).last_hidden_state
                return hidden[:, -keep:]
            if "logits_to_keep" in signature(self.causal.forward).parameters:
                inputs["logits_to_keep"] = keep
            logits: Tensor = self.causal(**inputs).logits
            return logits[:, -keep:]

    def logits(self, hidden: Tensor) -> Tensor:
        if not self.plain_head:
            return hidden.float()
        head = self.causal.get_output_embeddings()
        return project(hidden, head.weight, getattr(head, "bias", None))

    # ---- other weights, saving, memory

    def keep(self, name: str) -> None:
        """Keep the present weights as the reference; adapters need no copy."""
        if name == "reference" and self.config.lora is None:
            frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
            self._reference = [frozen]

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """ "reference": the kept copy, or the model with its adapters switched off."""
        if name != "reference":
            with super().using(name):
                yield
        elif self.config.lora is not None:
            with self.model.disable_adapter():
                yield
        else:
            if not self._reference:
                raise RuntimeError("using('reference') before keep('reference')")
            self._answering = self._reference[0].to(self.device)
            try:
                yield
            finally:
                self._answering = self.model

    def save_pretrained(self, path: Path) -> None:
        """A folder that `from_pretrained` of transformers (or of peft, with LoRA) reads."""
        save(self.model, self.tokenizer, path)

    @classmethod
    def estimate(
        cls, config: Settings, *, decisions: int, rollouts: int, training: bool
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the model's configuration alone."""
        tokens = min(decisions, rollouts * config.max_new_tokens)
        return estimate(config_of(config), config, decisions=tokens, training=training)
