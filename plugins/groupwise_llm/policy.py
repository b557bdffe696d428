"""LanguageModel: a policy over any transformers causal language model; its decisions are tokens."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import StopStringCriteria

from groupwise.errors import UserError
from groupwise.policy import Microbatch, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise.sampler import Purpose, Sampler
from groupwise_llm.card import card_of
from groupwise_llm.characters import ends
from groupwise_llm.decoding import drawing, sampling
from groupwise_llm.estimates.memory import estimate
from groupwise_llm.files import sharding
from groupwise_llm.files.loading import (
    Loaded,
    config_of,
    dtype_of,
    end_tokens,
    load,
    outline,
    positions_of,
    tokenizer_of,
)
from groupwise_llm.files.saving import save
from groupwise_llm.model import adapters
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.probing import probes
from groupwise_llm.prompts import Prompts, as_answer, written
from groupwise_llm.settings import Settings
from groupwise_llm.training import passes
from groupwise_llm.training.packing import ENOUGH, pack
from groupwise_llm.training.passes import Sequences

CUTS = ("top_k", "top_p", "min_p", "repetition_penalty")
"""Settings by which tokens are drawn of another distribution than that of the log-probs."""


class LanguageModel(Policy):
    """Causal language models of transformers; decisions are tokens.

    Log-probs are those of the full softmax of logits / temperature, sampled or trained.

    trajectory: `prompt_ids`, a tensor of token ids each; `completion_ids` [B, T], all tokens that
        follow, a tool's among them; `attention` [B, T] bool, which places hold a token at all. What
        of them is the model's own says `Rollouts.mask`: the rest is attended to and never trained
        on.

    facts: `completion_ids`, the tokens of each completion; `kept_mass`, the share of probability
        that was left to draw from; for rewards that ask, `character_ends`, where in the text of its
        completion each token ends.
    """

    provides = frozenset({"log_probs", "entropy"})
    facts = frozenset({"completion_ids", "kept_mass"})
    optional_facts = frozenset({"character_ends"})
    logged = frozenset({"kept_mass"})
    unit = "tokens"
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.max_decisions = config.max_new_tokens
        self._loaded: Loaded | None = None
        self._ability: probes.Ability | None = None

    # ---- how this model may be run

    def shard(self, mesh: DeviceMesh) -> None:
        """Each process will hold its share of every weight, which `place` reads.

        Raises UserError for a model that cannot be read in parts.
        """
        sharding.check(self.config)
        model = config_of(self.config)
        sharding.check_config(model)
        self.scale_loss = dtype_of(self.config, model) == torch.float16
        self.mesh = mesh

    def place(self, device: torch.device | str) -> None:
        """Load, move there, and try what the model allows: a kernel may run on one device alone."""
        if self._loaded is None:
            self._load()
        if self.mesh is None:
            super().place(device)
        self._ability = probes.ability(
            self.causal,
            precision=self.config.precision,
            head=self.config.head_precision,
            share=self.config.share_prompt,
            name=str(self.config.model),
        )

    def _load(self) -> None:
        config = self.config
        share = None if self.mesh is None else sharding.Share(self.mesh)
        self._loaded = load(config, share)
        self.tokenizer = self._loaded.tokenizer
        self.causal = CausalModel(
            self._loaded.model,
            recompute=config.gradient_checkpointing,
            merge=config.lora is not None and config.lora.merge,
        )
        if share is not None:
            share.spread(self.causal, precision=config.precision, name=str(config.model))
        self.train(self.training)
        self._notes = list(self._loaded.notes)
        self.ends = end_tokens(self.model, self.tokenizer)
        self.prompts = Prompts(self.tokenizer, config, positions=positions_of(self.model.config))
        self._stop = StopStringCriteria(self.tokenizer, config.stop) if config.stop else None
        # Frozen weights in float16 pass gradients on in float16.
        self.scale_loss = any(p.dtype == torch.float16 for p in self.model.parameters())

    @property
    def ability(self) -> probes.Ability:
        """What the model allows where it lies; nothing can be asked of the policy before."""
        if self._ability is None:
            raise RuntimeError("LanguageModel: place(device) comes before its use")
        return self._ability

    @property
    def model(self) -> Any:
        """The model as transformers or peft made it."""
        return self.causal.model

    @property
    def device(self) -> torch.device:
        return self.causal.device

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """Of loading and of `check_prompts`, and what the model does not allow where it lies."""
        return [*self._notes, *self.ability.notes]

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """In float32: sampling and training are one function, and a batch changes its rounding."""
        return not self.causal.rounds(self.config.precision)

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError for another sampler, where tokens are drawn of a part of the softmax."""
        usual = Settings.model_fields
        cuts = [name for name in CUTS if getattr(self.config, name) != usual[name].default]
        if sampler is not self and cuts:
            chosen = ", ".join(f"policy.{name} {getattr(self.config, name)}" for name in cuts)
            raise UserError(
                f"{chosen}: {type(sampler).__name__} states log-probs of the distribution so cut, "
                f"and training is on those of the full one; leave {', '.join(cuts)} unset, or "
                f"leave out the section sampler"
            )

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
        decoder = self._decoder(purpose)
        ids = [self.prompts.encode(row) for row in prompts]
        draws = None
        if purpose != "greedy":
            draws = drawing.uniforms(seeds, self.config.max_new_tokens)
        with nullcontext() if self.mesh is None else sharding.gathered(self.causal):
            sampled = sampling.decode(decoder, ids, group_size, draws)
        rows = [row for row in prompts for _ in range(group_size)]
        tokens = [
            row[mask].tolist()
            for row, mask in zip(sampled.ids.cpu(), sampled.mask.cpu(), strict=True)
        ]
        groups = torch.arange(len(prompts)).repeat_interleave(group_size)
        completions, facts = self.stated(tokens, rows)
        return Rollouts(
            prompts=rows,
            completions=completions,
            groups=groups.to(sampled.ids.device),
            mask=sampled.mask,
            truncated=sampled.truncated,
            sampler_log_probs=sampled.log_probs,
            facts={**facts, "kept_mass": sampled.kept.tolist()},
            trajectory={
                "prompt_ids": [ids[group] for group in groups.tolist()],
                "completion_ids": sampled.ids,
                "attention": sampled.mask,
            },
        )

    def stated(
        self, tokens: Sequence[Sequence[int]], rows: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], dict[str, Sequence[Any]]]:
        """What rewards see of completions, whoever drew their tokens, and facts about them."""
        texts = [written(self.tokenizer, ids) for ids in tokens]
        completions = [
            as_answer(text, row["prompt"]) for text, row in zip(texts, rows, strict=True)
        ]
        facts: dict[str, Sequence[Any]] = {"completion_ids": tokens}
        if "character_ends" in self.requested:
            facts["character_ends"] = [
                ends(self.tokenizer, ids, text) for ids, text in zip(tokens, texts, strict=True)
            ]
        return completions, facts

    def _decoder(self, purpose: Purpose) -> sampling.Decoder:
        choice = self.config if purpose == "train" else self.config.for_evaluation()
        ability = self.ability
        return sampling.Decoder(
            model=self.causal,
            numerics=ability.numerics,
            way=ability.decoding,
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
        """Log-probs and entropy [b, t] of decisions; all else only gives them context."""
        sequences, placed = self.asked(rollouts, decisions)
        log_probs, entropy = passes.likelihood(
            self.causal,
            self.ability.numerics,
            sequences,
            groups=rollouts.groups if self.ability.shared_training else None,
            temperature=self.config.temperature,
        )
        return LogProbs(log_probs=placed(log_probs), entropy=placed(entropy))

    def asked(
        self, rollouts: Rollouts, decisions: slice
    ) -> tuple[Sequences, Callable[[Tensor], Tensor]]:
        """What a pass reads to answer about k decisions, and what puts its answers [k] in their
        places [b, t]."""
        stop = decisions.indices(rollouts.mask.shape[1])[1]
        ids, attention, mask = [
            tensor[:, :stop].to(self.device)
            for tensor in (
                rollouts.tensor("completion_ids"),
                rollouts.tensor("attention"),
                rollouts.mask,
            )
        ]
        places = mask.nonzero(as_tuple=True)  # once: a mask as an index is looked at at every use

        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(ids.shape).index_put(places, values)[:, decisions]

        prompts = list(rollouts.trajectory["prompt_ids"])
        return Sequences.of(prompts, ids, attention, places), placed

    def microbatches(
        self,
        rollouts: Rollouts,
        budget: int,
        *,
        cut_decisions: bool,
    ) -> Sequence[Microbatch]:
        """Rollouts of like length together; the budget counts all their tokens, prompts' too."""
        cpu = self.device.type == "cpu"
        lengths = rollouts.extents.cpu()
        prompts = torch.tensor([len(ids) for ids in rollouts.trajectory["prompt_ids"]])
        shared = self.ability.shared_training
        if cpu:
            budget = min(budget, ENOUGH + (int(prompts.max()) if shared and len(prompts) else 0))
        parts = pack(
            lengths,
            prompts,
            groups=rollouts.groups.cpu() if shared else None,
            budget=budget,
            # What starting another pass is worth: a GPU needs thousands of tokens to be busy.
            overhead=64 if cpu else 4096,
        )
        return [(rows, slice(0, max(1, int(lengths[rows].max())))) for rows in parts]

    # ---- other weights, saving, memory

    def keep(self, name: str) -> None:
        """As `Policy.keep`; but of a first reference that is the model without its adapters no
        copy."""
        first = name == "reference" and name not in self._kept
        if first and adapters.are_idle(self.model):
            self._kept[name] = {}
            self._changed(name)
        else:
            super().keep(name)

    def blend(self, name: str, decay: float) -> None:
        self._copy(name)
        super().blend(name, decay)

    def distance(self, name: str) -> float:
        self._copy(name)
        return super().distance(name)

    def _copy(self, name: str) -> None:
        """Where the model without its adapters is kept: adapters that add nothing, as a copy."""
        if not self._weights(name):
            self._kept[name] = adapters.idle_weights(self)

    def using(self, name: str) -> AbstractContextManager[None]:
        """The weights kept as `name`; where there is no copy of them, adapters switched off."""
        if self._weights(name):
            return super().using(name)
        off: AbstractContextManager[None] = self.model.disable_adapter()
        return off

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the whole model, named as in its checkpoints, for an engine to load.

        Adapters are merged, sharded weights gathered: all processes must iterate alike.
        """
        from groupwise_llm.files.weights import plain_weights  # peft takes a second to import

        dtype = torch.bfloat16 if self.config.precision == "bf16" else None
        return plain_weights(self.causal.causal, dtype)

    def save_pretrained(self, path: Path) -> None:
        """A folder that `from_pretrained` of transformers (or of peft, with LoRA) reads."""
        if self._loaded is None:
            raise RuntimeError("LanguageModel: place(device) comes before its use")
        save(self._loaded, path)

    @property
    def card(self) -> Mapping[str, Any]:
        """What the saved model's card says: the base model, and how to load the folder."""
        return card_of(self.config)

    @classmethod
    def estimate(
        cls,
        config: Settings,
        *,
        decisions: int,
        rollouts: int,
        group_size: int,
        sampled: int,
        training: bool,
        reference: bool,
        averages: int,
        shards: int = 1,
    ) -> Mapping[str, int]:
        """Bytes by purpose, from the model's configuration alone."""
        model = config_of(config)
        if shards > 1:
            sharding.check(config)
            sharding.check_config(model)
        return estimate(
            model,
            config,
            budget=decisions,
            rollouts=rollouts,
            group_size=group_size,
            sampled=sampled,
            training=training,
            reference=reference,
            averages=averages,
            shards=shards,
        )
