"""LanguageModel: a policy over any transformers causal language model; its decisions are tokens."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from groupwise.kit import progress
from groupwise.kit.memory import Workload
from groupwise.policy import Outputs, Policy, Uncopied
from groupwise.sampler import Sampler
from groupwise_llm.card import card_of
from groupwise_llm.codec.codec import OBSERVED, Codec
from groupwise_llm.estimates.memory import estimate
from groupwise_llm.files import sharding
from groupwise_llm.files.folder import config_of, positions_of
from groupwise_llm.files.loading import Loaded, dtype_of, end_tokens, load, vocabulary_of
from groupwise_llm.files.saving import save, try_saving
from groupwise_llm.in_process import InProcess
from groupwise_llm.log_probs import TokenLogProbs
from groupwise_llm.model import adapters, rotary
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.preflight import (
    check_teacher,
    check_uncut,
    examine,
    examine_tools,
    examine_turns,
)
from groupwise_llm.probing import probes
from groupwise_llm.probing.capturing import with_fusion, with_graphs
from groupwise_llm.rehearsal import TextRehearsal
from groupwise_llm.settings import Settings


class LanguageModel(InProcess, TokenLogProbs):
    """Causal language models of transformers; decisions are tokens.

    Log-probs are log softmax(logits / temperature)[token] over the full vocabulary, in sampling as
    in training.

    trajectory: `prompt_ids`, one tensor of token ids per rollout; `completion_ids` [B, T], all
        tokens after the prompt, including those that a tool returned; `attention` [B, T] bool,
        True for tokens, False for padding. `Rollouts.mask` is True for the tokens that the model
        sampled: only these are trained on, the others are context. `observations` [B, T] bool, only
        where their log-probs are read: see the method of this name.

    facts: `completion_ids`, the tokens of each completion, those of a tool's answer included, which
        decode to its text; `thinking_prefix`, the text from the tag on with which the prompt has
        begun the completion's thinking, "" if it has not; `sampled_mass`, the mass of the softmax
        that top_k, top_p and the like left to sample from; `entropy`, that of the softmax, in
        nats, mean over the sampled tokens. Only for rewards that have them in their signature:
        `character_ends`, the character of the text at which each sampled token ends;
        `completion_mask`, for each of `completion_ids` whether the model sampled it.
    """

    provides = frozenset({"log_probs", "entropy", OBSERVED})
    facts = frozenset({"completion_ids", "sampled_mass", "entropy", "thinking_prefix"})
    optional_facts = frozenset({"character_ends", "completion_mask"})
    logged = frozenset({"sampled_mass", "entropy"})
    diversity = "a higher temperature"
    unit = "tokens"
    Config: ClassVar[type[Settings]] = Settings

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.config = config
        self.max_decisions = config.max_new_tokens
        self.factored = config.lora is not None
        self.requested: frozenset[str] = frozenset()
        self._loaded: Loaded | None = None
        self._ability: probes.Ability | None = None

    # ---- loading and probing

    def shard(self, mesh: DeviceMesh) -> None:
        """Divide every weight among the processes; `place` reads this process's shard.

        Raises UserError for a model that cannot be loaded shard by shard.
        """
        sharding.check(self.config)
        model = config_of(self.config)
        sharding.check_config(model)
        self.scale_loss = dtype_of(self.config, model) == torch.float16
        self.mesh = mesh

    def prepare(self, *, outputs: Outputs, facts: frozenset[str]) -> None:
        """Note what `assemble` adds; log-probs and entropy are always computed together."""
        self.requested = facts | (outputs & {OBSERVED})

    def place(self, device: torch.device | str) -> None:
        """Load the model, move it to the device, and probe there which fast paths give the right
        log-probs: a kernel may exist for one device only.

        Adapters have random values meanwhile, so what is right then is right after any update, and
        in a resumed run.
        """
        if self._loaded is None:
            self._load()
        if self.mesh is None:
            super().place(device)
        drawn = nullcontext() if self.config.lora is None else adapters.perturbed(self.model)
        with progress.doing("checking what the model supports"), drawn:
            self._ability = self._probed()

    def _probed(self) -> probes.Ability:
        ability = probes.ability(
            self.causal,
            precision=self.config.precision,
            head=self.config.head_precision,
            share=self.config.share_prompt,
            longest=self.prompts.longest,
            name=str(self.config.model),
        )
        if self.config.cuda_graphs and self.device.type == "cuda":
            with self._gathered():
                ability = with_graphs(ability, self.causal, self._filters())
                if self.config.compile:
                    ability = with_fusion(ability, self.causal, self._filters())
        return ability

    def _load(self) -> None:
        config = self.config
        share = None if self.mesh is None else sharding.Share(self.mesh)
        loaded = self._loaded = load(config, share)
        self.tokenizer = loaded.tokenizer
        self.ends = end_tokens(loaded.model, self.tokenizer)
        positions = positions_of(loaded.model.config)
        self.codec = self.make_codec(config, self.tokenizer, self.ends, positions=positions)
        self.prompts, self.completions = self.codec.prompts, self.codec.completions
        self.causal = self.make_causal(
            loaded.model,
            recompute=config.gradient_checkpointing,
            merge=config.lora is not None and config.lora.merge,
        )
        if share is not None:
            share.shard_model(self.causal, precision=config.precision, name=str(config.model))
        self.train(self.training)
        self._notes = [*loaded.notes, *rotary.fix(self.model, self.prompts.longest)]
        # Gradients that pass through frozen float16 weights are float16 too, and may underflow.
        self.scale_loss = any(p.dtype == torch.float16 for p in self.model.parameters())

    @classmethod
    def make_codec(
        cls, config: Settings, tokenizer: Any, ends: Collection[int], *, positions: int | None
    ) -> Codec:
        """What reads the rows of a run and writes its rollouts."""
        return Codec(tokenizer, config, ends, positions=positions)

    def make_causal(self, model: Any, **options: Any) -> CausalModel:
        """The model as passes see it."""
        return CausalModel(model, **options)

    @property
    def ability(self) -> probes.Ability:
        """What probing on the device showed. Raises RuntimeError before `place`."""
        if self._ability is None:
            raise RuntimeError("LanguageModel: place(device) comes before its use")
        return self._ability

    @property
    def model(self) -> Any:
        """The transformers model, or peft's wrapper of it."""
        return self.causal.model

    @property
    def device(self) -> torch.device:
        return self.causal.device

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        """Notes of loading, of `check_prompts`, and on fast paths that this model cannot take."""
        return [*self._notes, *self.ability.notes]

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """True in float32: sampler and training log-probs then differ by rounding alone."""
        return not self.causal.rounds(self.config.precision)

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise UserError for another sampler with top_k and the like: its log-probs are then those
        of the truncated distribution, not of the softmax that is trained."""
        if sampler is not self:
            check_uncut(self.config, type(sampler).__name__)

    @classmethod
    def check_teacher(cls, config: Settings, teacher: type[Policy], teacher_config: Any) -> None:
        """Raise UserError for a teacher with another vocabulary: it reads the policy's tokens."""
        super().check_teacher(config, teacher, teacher_config)
        check_teacher(config, teacher_config)

    def check_prompts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._notes += self.prompts.check(rows, vocabulary_of(self.model))

    def skips(self, row: Mapping[str, Any]) -> bool:
        return self.prompts.skips(row)

    @classmethod
    def examine(cls, config: Settings, rows: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        """The errors and notes of loading and `check_prompts`, without loading any weights."""
        return examine(config, cls.make_codec, rows)

    @classmethod
    def examine_turns(cls, config: Settings) -> Sequence[str]:
        return examine_turns(config, cls.make_codec)

    @classmethod
    def rehearsal(cls, config: Settings) -> TextRehearsal:
        """Prompts and answers by the model's tokenizer and chat template, with placeholders for
        what it writes."""
        return TextRehearsal(config, cls.make_codec)

    @classmethod
    def examine_tools(cls, config: Settings) -> None:
        examine_tools(config, cls.make_codec)

    @classmethod
    def least_rate(cls, config: Settings) -> float:
        """1e-5 for LoRA, whose adapters start at 0 and usually take 1e-5 to 1e-3."""
        return 0.0 if config.lora is None else 1e-5

    # ---- other weights, saving, memory

    def uncopied(self) -> Uncopied | None:
        """The model with its adapters switched off, if they add nothing yet.

        A copy is of adapters that add nothing.
        """
        if not adapters.are_idle(self.model):
            return None
        return Uncopied(self.model.disable_adapter, partial(adapters.idle_weights, self))

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight of the whole model, named as in its checkpoints, for an engine to load.

        Adapters are merged and sharded weights gathered, a collective: every rank must iterate
        over all of them.
        """
        from groupwise_llm.files.weights import plain_weights  # peft takes a second to import

        dtype = torch.bfloat16 if self.config.precision == "bf16" else None
        return plain_weights(self.causal.causal, dtype)

    def save_pretrained(self, path: Path) -> None:
        """Write a folder that transformers' (with LoRA peft's) `from_pretrained` reads."""
        if self._loaded is None:
            raise RuntimeError("LanguageModel: place(device) comes before its use")
        save(self._loaded, path)

    def try_saving(self) -> None:
        """Write all but the weights into a folder that is then removed."""
        if self._loaded is None:
            raise RuntimeError("LanguageModel: place(device) comes before its use")
        try_saving(self._loaded)

    @property
    def card(self) -> Mapping[str, Any]:
        """Facts for the saved model's card: the base model, and the code that loads the folder."""
        return card_of(self.config)

    @classmethod
    def estimate(cls, config: Settings, load: Workload) -> Mapping[str, int]:
        """Bytes by purpose, from the model's configuration alone; see `estimates.memory`."""
        model = config_of(config)
        if load.shards > 1:
            sharding.check(config)
            sharding.check_config(model)
        return estimate(model, config, load)
