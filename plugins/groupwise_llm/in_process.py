"""InProcess: samples with the model itself, in this process."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from transformers import LogitsProcessorList, StopStringCriteria

from groupwise.rollouts import Rollouts
from groupwise.sampler import Purpose
from groupwise_llm.codec.contexts import Context, Turn
from groupwise_llm.decoding import batches, drawing
from groupwise_llm.decoding.decoder import Decoder
from groupwise_llm.decoding.prefixes import PrefixCache
from groupwise_llm.decoding.work import Work
from groupwise_llm.files import sharding
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.probing.probes import Ability
from groupwise_llm.sampler import TextSampler
from groupwise_llm.settings import Settings


class InProcess(TextSampler):
    """The sampling of `LanguageModel`: `sample` is `encode`, `draw` and `assemble` in one.

    config, tokenizer, causal, ends, ability, mesh: of the policy.
    """

    config: Settings
    tokenizer: Any
    causal: CausalModel
    ends: Sequence[int]
    mesh: DeviceMesh | None

    _prefixes: PrefixCache | None = None
    """What the draws of a session keep; None outside one, and for models whose cache does not keep
    every token."""
    _sessions: int = 0

    @property
    @abstractmethod
    def ability(self) -> Ability: ...

    def sample(
        self,
        prompts: Sequence[Mapping[str, Any]],
        *,
        group_size: int,
        seeds: Sequence[int],
        purpose: Purpose = "train",
    ) -> Rollouts:
        """Completions of text prompts or chat messages; see `Sampler.sample`."""
        decoder = self._decoder(purpose)
        owners = [number for number in range(len(prompts)) for _ in range(group_size)]
        contexts, limits = self.encode(prompts), [self.config.max_new_tokens] * len(owners)
        turns = self._turns(decoder, contexts, owners, limits=limits, seeds=seeds, purpose=purpose)
        finished = [contexts[own].with_turn(turn) for own, turn in zip(owners, turns, strict=True)]
        return self.assemble([prompts[own] for own in owners], finished, groups=owners)

    def draw(
        self,
        contexts: Sequence[Context],
        *,
        seeds: Sequence[int],
        limits: Sequence[int],
        purpose: Purpose = "train",
        stop: Sequence[str] = (),
    ) -> list[Turn]:
        """The next turn in each context; see `TextSampler.draw`."""
        decoder = self._decoder(purpose)
        if not contexts:
            return []
        self.check_draw(contexts, limits)
        if stop:
            decoder = replace(decoder, stop=self._stopping((*self.config.stop, *stop)))
        if self._prefixes is not None:
            self._prefixes.follow(self.causal.weights_in_use())
            decoder = replace(decoder, prefixes=self._prefixes)
        numbers: dict[tuple[int, ...], int] = {}
        owners = [numbers.setdefault(tuple(own.ids.tolist()), len(numbers)) for own in contexts]
        different = [contexts[owners.index(number)] for number in range(len(numbers))]
        return self._turns(decoder, different, owners, limits=limits, seeds=seeds, purpose=purpose)

    @contextmanager
    def session(self) -> Iterator[None]:
        """Draws within it keep a KV cache of at most `cache_tokens` between them; a sharded
        policy's weights stay gathered, so that processes may draw different numbers of times. See
        `TextSampler.session`."""
        outer, self._prefixes = self._prefixes, None
        with self._gathered():
            self._sessions += 1
            if self.ability.continues:
                self._prefixes = PrefixCache(self.config.cache_tokens)
            try:
                yield
            finally:
                self._prefixes = outer
                self._sessions -= 1

    def _gathered(self) -> AbstractContextManager[None]:
        """The context in which this process has all weights."""
        if self.mesh is None or self._sessions:
            return nullcontext()
        return sharding.gathered(self.causal)

    def _turns(
        self,
        decoder: Decoder,
        contexts: Sequence[Context],
        owners: Sequence[int],
        *,
        limits: Sequence[int],
        seeds: Sequence[int],
        purpose: Purpose,
    ) -> list[Turn]:
        """A turn for each row, in the context that owns it."""
        work = Work(
            contexts=[context.ids for context in contexts],
            owners=owners,
            limits=limits,
            draws=None if purpose == "greedy" else drawing.uniforms(seeds, limits),
            drawn=[context.drawn for context in contexts],
        )
        with self._gathered():
            sampled = batches.decode(decoder, work)
        columns = (
            sampled.ids,
            sampled.log_probs,
            sampled.mask.sum(dim=1),
            *(sampled.truncated, sampled.broken, sampled.kept, sampled.entropy),
        )
        return [
            Turn(
                ids=tuple(ids[:length]),
                text=self.codec.completions.text(ids[:length]),
                ended="failed" if broken else "length" if truncated else "stop",
                log_probs=tuple(log_probs[:length]),
                sampled_mass=mass,
                entropy=entropy,
            )
            for ids, log_probs, length, truncated, broken, mass, entropy in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]

    def _decoder(self, purpose: Purpose) -> Decoder:
        choice = self.config if purpose == "train" else self.config.for_evaluation()
        ability = self.ability
        return Decoder(
            model=self.causal,
            numerics=ability.numerics,
            way=ability.decoding,
            filters=drawing.filters_for(choice),
            ends=torch.tensor(self.ends, device=self.device),
            stop=self._stopping(tuple(self.config.stop)),
            temperature=self.config.temperature,
            sampling_temperature=choice.temperature,
            cache_tokens=self.config.cache_tokens,
            check_every=batches.check_interval(self.device),
            joins=ability.continues and ability.decoding.padded,
        )

    def _filters(self) -> LogitsProcessorList:
        """The filters of training and those of evaluations."""
        choices = self.config, self.config.for_evaluation()
        return LogitsProcessorList([own for c in choices for own in drawing.filters_for(c)])

    def _stopping(self, strings: tuple[str, ...]) -> StopStringCriteria | None:
        """Tells which rows end with one of the strings."""
        if strings and strings not in self._stops:
            self._stops[strings] = StopStringCriteria(self.tokenizer, list(strings))
        return self._stops.get(strings)

    @cached_property
    def _stops(self) -> dict[tuple[str, ...], StopStringCriteria]:
        return {}
