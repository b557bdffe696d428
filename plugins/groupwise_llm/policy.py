"""LanguageModel: a policy over any transformers causal language model; its decisions are tokens."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from transformers import StopStringCriteria

from groupwise.policy import Microbatch, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose
from groupwise_llm import drawing, modes, passes, probes, sampling
from groupwise_llm.body import Body
from groupwise_llm.card import card_of
from groupwise_llm.loading import (
    checkpoint_activations,
    config_of,
    end_tokens,
    load,
    outline,
    positions_of,
    save,
    tokenizer_of,
)
from groupwise_llm.memory import estimate
from groupwise_llm.packing import pack
from groupwise_llm.prompts import Prompts, decode
from groupwise_llm.settings import Settings


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
        self._loaded = load(config)
        self.model, self.tokenizer = self._loaded.model, self._loaded.tokenizer
        self._notes = list(self._loaded.notes)
        self.ends = end_tokens(self.model, self.tokenizer)
        self.max_decisions = config.max_new_tokens
        self.prompts = Prompts(self.tokenizer, config, positions=positions_of(self.model.config))
        self._stop = StopStringCriteria(self.tokenizer, config.stop) if config.stop else None
        if config.gradient_checkpointing:
            checkpoint_activations(self.model)
        self.body = Body(self.model, precision=config.precision)
        # Frozen weights in float16 pass gradients on in float16.
        self.scale_loss = any(p.dtype == torch.float16 for p in self.model.parameters())
        self._answering = self.body
        self._reference: Body | None = None
        self._ability: tuple[torch.device, probes.Ability] | None = None

    # ---- how this model may be run

    @property
    def ability(self) -> probes.Ability:
        """What the model allows where it lies; tried at the first use there."""
        if self._ability is None or self._ability[0] != self.device:
            tried = probes.ability(
                self.body,
                share=self.config.share_prompt,
                checkpoints=self.config.gradient_checkpointing,
                name=str(self.config.model),
            )
            modes.set_training(self.model, self.training)
            self._ability = (self.device, tried)
        return self._ability[1]

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """Of loading and of `check_prompts`, and what the model does not allow where it lies."""
        return [*self._notes, *self.ability.notes]

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._notes += self.prompts.check(rows)

    def skips(self, row: Mapping[str, Any]) -> bool:
        return self.config.long_prompts == "skip" and self.prompts.too_long(row)

    @classmethod
    def examine(cls, config: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """What loading and `check_prompts` would say, from the tokenizer and the configuration."""
        model = config_of(config)
        outline(config, model)
        positions = positions_of(model)
        return Prompts(tokenizer_of(config), config, positions=positions).check(rows)

    def train(self, mode: bool = True) -> Self:
        """Dropout stays off; only gradient checkpointing needs the model's training mode."""
        super().train(mode)
        modes.set_training(self.model, mode)
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
        ids = [self.prompts.encode(row) for row in prompts]
        draws = None
        if purpose != "greedy":
            draws = drawing.uniforms(seeds, self.config.max_new_tokens)
        decoder = self._decoder(purpose)
        training = self.training
        self.train(False)  # in training mode gradient checkpointing drops the cache
        sampled = sampling.decode(decoder, ids, group_size, draws)
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
            sampler_log_probs=sampled.log_probs,
            facts={
                "completion_ids": tokens,
                "kept_mass": sampled.kept.tolist(),
            },
            trajectory={
                "prompt_ids": [ids[group] for group in groups.tolist()],
                "completion_ids": sampled.ids,
            },
        )

    def _decoder(self, purpose: Purpose) -> sampling.Decoder:
        choice = self.config if purpose == "train" else self.config.for_evaluation()
        return sampling.Decoder(
            way=self.ability.decoding,
            body=self._answering,
            filters=drawing.filters_for(choice),
            ends=torch.tensor(self.ends, device=self.device),
            stop=self._stop,
            temperature=self.config.temperature,
            drawn_at=choice.temperature,
            max_new_tokens=self.config.max_new_tokens,
            cache_tokens=self.config.cache_tokens,
            looks=sampling.look_every(self.device),
        )

    # ---- log-probs

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """Log-probs and entropy [b, t] of completion tokens; prompts only give them context."""
        completions = rollouts.tensor("completion_ids")
        prompts = list(rollouts.trajectory["prompt_ids"])
        stop = decisions.indices(completions.shape[1])[1]
        ids = completions[:, :stop].to(self.device)
        mask = rollouts.mask[:, :stop].to(self.device)
        shares, body = self.ability.shared_training, self._answering
        if shares:
            hidden = passes.shared(body, prompts, rollouts.groups, ids, mask)
        else:
            hidden = passes.plain(body, prompts, ids, mask)
        places = mask.nonzero(as_tuple=True)  # once: a mask as an index is looked at at every use
        answers = body.likelihood(hidden, ids[places], temperature=self.config.temperature)
        log_probs, entropy = [
            torch.zeros(ids.shape, device=ids.device).index_put(places, values)
            for values in answers
        ]
        return LogProbs(log_probs=log_probs[:, decisions], entropy=entropy[:, decisions])

    def microbatches(
        self,
        rollouts: Rollouts,
        budget: int,
        *,
        cut_decisions: bool,
    ) -> Sequence[Microbatch]:
        """Rollouts of like length together; the budget counts their prompts' tokens, too."""
        lengths = rollouts.lengths.cpu()
        prompts = torch.tensor([len(ids) for ids in rollouts.trajectory["prompt_ids"]])
        parts = pack(
            lengths,
            prompts,
            groups=rollouts.groups.cpu() if self.ability.shared_training else None,
            budget=budget,
            # What starting another pass is worth: a GPU needs thousands of tokens to be busy.
            overhead=64 if self.device.type == "cpu" else 4096,
        )
        return [(rows, slice(0, max(1, int(lengths[rows].max())))) for rows in parts]

    # ---- other weights, saving, memory

    @property
    def device(self) -> torch.device:
        return self.body.device

    def keep(self, name: str) -> None:
        """Keep the present weights as the reference; adapters need no copy."""
        if name == "reference" and self.config.lora is None:
            frozen = copy.deepcopy(self.model).eval().requires_grad_(False)
            # A body is no module, so nn.Module does not count its weights.
            self._reference = Body(frozen, precision=self.config.precision)

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
            if self._reference is None:
                raise RuntimeError("using('reference') before keep('reference')")
            self._reference.model.to(self.device)
            self._reference.plain_head = self.body.plain_head
            self._answering = self._reference
            try:
                yield
            finally:
                self._answering = self.body

    def save_pretrained(self, path: Path) -> None:
        """A folder that `from_pretrained` of transformers (or of peft, with LoRA) reads."""
        save(self._loaded, path)

    @property
    def card(self) -> Mapping[str, Any]:
        """What the saved model's card says: the base model, and how to load the folder."""
        return card_of(self.config)

    @classmethod
    def estimate(
        cls, config: Settings, *, decisions: int, rollouts: int, sampled: int, training: bool
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the model's configuration alone."""
        return estimate(
            config_of(config), config, budget=decisions, rollouts=sampled, training=training
        )
