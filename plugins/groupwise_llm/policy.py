"""LanguageModel: a policy over any transformers causal language model; its decisions are tokens."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from groupwise.errors import UserError
from groupwise.policy import Policy, Purpose
from groupwise.rollouts import LogProbs, Rollouts
from torch import Tensor
from transformers import DynamicCache, StopStringCriteria

from groupwise_llm import sampling
from groupwise_llm.likelihood import log_probs_and_entropy, project
from groupwise_llm.loading import config_of, load, save
from groupwise_llm.memory import estimate
from groupwise_llm.settings import Settings


class LanguageModel(Policy):
    """Log-probs are those of the full softmax of logits / temperature, sampled or trained."""

    provides = frozenset({"log_probs", "entropy", "reference"})
    unit = "tokens"
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.model, self.tokenizer = load(config)
        self._reference: list[Any] = []  # in a list, so that nn.Module does not count its weights
        self._answering = self.model
        self.notes: list[str] = []
        self.ends = end_tokens(self.model, self.tokenizer)
        self.max_decisions = config.max_new_tokens
        self._stop = StopStringCriteria(self.tokenizer, config.stop) if config.stop else None
        self._filters = sampling.filters_for(config)
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.plain_head = self._head_is_plain()
        self.share_prompt = config.share_prompt and self._can_share()

    def train(self, mode: bool = True) -> LanguageModel:
        """Dropout stays off; only gradient checkpointing needs the model's training mode."""
        super().train(mode)
        self.model.train(mode and self.config.gradient_checkpointing)
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
        ids = [self.encode(row["prompt"]) for row in prompts]
        draws = None
        if purpose != "greedy":
            draws = sampling.uniforms(seeds, self.config.max_new_tokens)
        training = self.model.training
        self.model.eval()
        sampled = sampling.decode(self._decoder(), ids, group_size, draws)
        self.model.train(training)
        rows = [row for row in prompts for _ in range(group_size)]
        tokens = [
            row[mask].tolist()
            for row, mask in zip(sampled.ids.cpu(), sampled.mask.cpu(), strict=True)
        ]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        return Rollouts(
            prompts=rows,
            completions=[self.decode(t, row["prompt"]) for t, row in zip(tokens, rows, strict=True)],
            groups=groups.to(sampled.ids.device),
            mask=sampled.mask,
            truncated=sampled.truncated,
            log_probs=sampled.log_probs,
            facts={
                "completion_ids": tokens,
                "truncated": sampled.truncated.tolist(),
                "kept_mass": sampled.kept.tolist(),
            },
            trajectory={
                "prompt_ids": [ids[group] for group in groups.tolist()],
                "completion_ids": sampled.ids,
            },
        )

    def encode(self, prompt: Any) -> Tensor:
        """Token ids of a text, or of chat messages under the model's own template.

        Raises UserError when prompt and completion do not fit into the model's context.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer(prompt)["input_ids"]
        elif self.tokenizer.chat_template is None:
            raise UserError(
                f"{self.config.model}: the prompt is a list of messages, but this model's "
                f"tokenizer has no chat template; give a plain string"
            )
        else:
            ids = self.tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_dict=True, **self.config.chat_template
            )["input_ids"]
        limit = getattr(self.model.config, "max_position_embeddings", None)
        if limit is not None and len(ids) + self.config.max_new_tokens > limit:
            raise UserError(
                f"a prompt of {len(ids)} tokens and max_new_tokens={self.config.max_new_tokens} "
                f"exceed the {limit} positions of {self.config.model}: {prompt!r}"[:500]
            )
        if not ids:
            raise UserError(f"a prompt has no tokens: {prompt!r}")
        return torch.tensor(ids, dtype=torch.int64)

    def decode(self, ids: Sequence[int], prompt: Any) -> Any:
        """What rewards see: text for a text prompt, a list of one message for a chat prompt."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]

    def _decoder(self) -> sampling.Decoder:
        return sampling.Decoder(
            hidden=self._hidden,
            logits=self._logits,
            new_cache=self._new_cache,
            filters=self._filters,
            ends=torch.tensor(self.ends, device=self._device),
            stop=self._stop,
            temperature=self.config.temperature,
            max_new_tokens=self.config.max_new_tokens,
            share_prompt=self.share_prompt,
        )

    # ---- log-probs

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """Log-probs and entropy [b, t] of completion tokens; prompts only give them context."""
        completions = rollouts.trajectory["completion_ids"]
        prompts = rollouts.trajectory["prompt_ids"]
        assert isinstance(completions, Tensor)
        stop = decisions.indices(completions.shape[1])[1]
        ids = completions[:, :stop].to(self._device)
        mask = rollouts.mask[:, :stop].to(self._device)
        groups = rollouts.groups if self.share_prompt else torch.arange(len(rollouts))
        hidden = self._completion_hidden(list(prompts), groups, ids, mask)
        chosen = mask.flatten()
        log_probs, entropy = self._likelihood(
            hidden.reshape(-1, hidden.shape[-1])[chosen], ids.flatten()[chosen]
        )
        shape = ids.numel()
        spread = [
            torch.zeros(shape, device=ids.device).index_put((chosen,), values).view_as(ids)
            for values in (log_probs, entropy)
        ]
        return LogProbs(log_probs=spread[0][:, decisions], entropy=spread[1][:, decisions])

    def _completion_hidden(
        self, prompts: Sequence[Tensor], groups: Tensor, ids: Tensor, mask: Tensor
    ) -> Tensor:
        """Hidden states [b, t, h] from which each completion token is predicted.

        Each group's prompt runs once; its keys and values, gradients included, are repeated for
        the group. With a group of one this is an ordinary causal pass in two parts, so the plain
        path goes through `_plain_hidden` instead.
        """
        if not self.share_prompt:
            return self._plain_hidden(prompts, ids, mask)
        _, which = groups.unique(return_inverse=True)
        which = which.to(ids.device)
        first = {int(group): row for row, group in reversed(list(enumerate(which.tolist())))}
        heads = [prompts[first[group]] for group in range(len(first))]
        prompt_ids, attention, positions = sampling.left_padded(heads, ids.device)
        cache = self._new_cache()
        last = self._hidden(prompt_ids, attention, positions, cache)[:, -1:][which]
        if ids.shape[1] == 1:
            return last
        cache.batch_select_indices(which)
        attention = torch.cat([attention[which], mask[:, :-1].to(attention.dtype)], dim=1)
        start = positions[which, -1:] + 1
        steps = torch.arange(ids.shape[1] - 1, device=ids.device)
        rest = self._hidden(ids[:, :-1], attention, start + steps, cache)
        return torch.cat([last, rest], dim=1)

    def _plain_hidden(self, prompts: Sequence[Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        """The same by one pass over prompt and completion, for each rollout by itself."""
        prompt_ids, attention, positions = sampling.left_padded(prompts, ids.device)
        steps = torch.arange(1, ids.shape[1], device=ids.device)
        hidden = self._hidden(
            torch.cat([prompt_ids, ids[:, :-1]], dim=1),
            torch.cat([attention, mask[:, :-1].to(attention.dtype)], dim=1),
            torch.cat([positions, positions[:, -1:] + steps], dim=1),
            None,
        )
        return hidden[:, prompt_ids.shape[1] - 1 :]

    def _likelihood(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.plain_head:
            head = self._causal.get_output_embeddings()
            bias = getattr(head, "bias", None)
            return log_probs_and_entropy(
                hidden, head.weight, bias, tokens, temperature=self.config.temperature
            )
        log_p = (hidden.float() / self.config.temperature).log_softmax(dim=-1)
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return log_p.gather(1, tokens.unsqueeze(1)).squeeze(1), entropy

    # ---- the model underneath

    @property
    def _device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def _causal(self) -> Any:
        """The causal model whose weights answer, adapters unwrapped (they stay in its layers)."""
        model = self._answering
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)

    def _new_cache(self) -> DynamicCache:
        return DynamicCache(config=self._causal.config)

    def _hidden(
        self, ids: Tensor, attention: Tensor, positions: Tensor, cache: DynamicCache | None
    ) -> Tensor:
        """Last hidden states [n, t, h]; or logits [n, t, v], where the head is no plain product."""
        inputs = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions,
            "past_key_values": cache,
            "use_cache": cache is not None,
        }
        with self._autocast():
            if not self.plain_head:
                logits: Tensor = self._causal(**inputs).logits
                return logits
            hidden: Tensor = self._causal.base_model(**inputs).last_hidden_state
            return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        if not self.plain_head:
            return hidden.float()
        head = self._causal.get_output_embeddings()
        return project(hidden, head.weight, getattr(head, "bias", None))

    # ---- what the model can do, tried at start

    def _probe(self) -> Rollouts:
        """Two short prompts of different length with two random completions each."""
        size = int(self._causal.get_output_embeddings().weight.shape[0])
        generator = torch.Generator().manual_seed(0)
        prompts = [torch.randint(size, (n,), generator=generator) for n in (5, 3)]
        ids = torch.randint(size, (4, 6), generator=generator)
        return Rollouts(
            prompts=[{}] * 4,
            completions=[""] * 4,
            groups=torch.tensor([0, 0, 1, 1]),
            mask=torch.ones(4, 6, dtype=torch.bool),
            truncated=torch.zeros(4, dtype=torch.bool),
            trajectory={
                "prompt_ids": [prompts[0], prompts[0], prompts[1], prompts[1]],
                "completion_ids": ids,
            },
        )

    @torch.no_grad()
    def _head_is_plain(self) -> bool:
        """Whether logits are the output embedding times the last hidden state and nothing more."""
        self.plain_head = True
        ids = torch.arange(8, device=self._device).unsqueeze(0)
        ones = torch.ones_like(ids)
        try:
            ours = self._logits(self._hidden(ids, ones, ids, None)[0])
            with self._autocast():
                theirs = self._causal(input_ids=ids, attention_mask=ones, position_ids=ids).logits
        except (AttributeError, TypeError) as error:
            self.notes.append(f"logits are computed by the model's own head ({error})")
            return False
        if torch.allclose(ours, theirs[0].float(), rtol=1e-3, atol=1e-3):
            return True
        self.notes.append(
            "this model does more than multiply by its output embedding: its own logits are "
            "used, which takes more memory"
        )
        return False

    @torch.no_grad()
    def _can_share(self) -> bool:
        """Whether the shared-prompt path agrees with the plain one on this very model."""
        if self.config.gradient_checkpointing:
            self.notes.append("prompts are not shared: gradient checkpointing drops the cache")
            return False
        probe, answers = self._probe(), []
        tolerance = 1e-3 if self.config.precision == "float32" else 0.2
        try:
            for share in (False, True):
                self.share_prompt = share
                answers.append(self.forward(probe).log_probs)
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            self.notes.append(f"prompts are not shared: this model's cache refused ({error})")
            return False
        gap = float((answers[0] - answers[1]).abs().max())  # type: ignore[operator]
        if gap <= tolerance:
            return True
        self.notes.append(f"prompts are not shared: log-probs differ by {gap:.2g} with this cache")
        return False

    # ---- other weights, saving, memory

    def keep(self, name: str) -> None:
        """Keep the present weights as the reference; adapters need no copy."""
        if name == "reference" and self.config.lora is None:
            frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
            self._reference = [frozen]

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """"reference": the kept copy, or the model with its adapters switched off."""
        if name != "reference":
            with super().using(name):
                yield
        elif self.config.lora is not None:
            with self.model.disable_adapter():
                yield
        else:
            if not self._reference:
                raise RuntimeError("using('reference') before keep('reference')")
            self._answering = self._reference[0].to(self._device)
            try:
                yield
            finally:
                self._answering = self.model

    def save_pretrained(self, path: Path) -> None:
        """A folder that `from_pretrained` of transformers (or of peft, with LoRA) reads."""
        save(self.model, self.tokenizer, path)

    @classmethod
    def estimate(cls, config: Settings, *, decisions: int, training: bool) -> Mapping[str, int]:
        """Bytes by purpose, from the model's configuration alone."""
        return estimate(config_of(config), config, decisions=decisions, training=training)


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion: a model may have several, and states them in three places."""
    ends: set[int] = set()
    for value in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        ends.update(value if isinstance(value, list) else [] if value is None else [value])
    if not ends:
        raise UserError("the model states no end token, neither in its configuration nor tokenizer")
    return sorted(ends)
