"""TokenLogProbs: the log-probs of tokens, and how an update is cut into passes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from groupwise.policy import Microbatch, Outputs, Policy
from groupwise.rollouts import LogProbs, Rollouts
from groupwise_llm.codec.codec import OBSERVED
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.probing.probes import Ability
from groupwise_llm.settings import Settings
from groupwise_llm.training import passes
from groupwise_llm.training.packing import ENOUGH, pack
from groupwise_llm.training.passes import Sequences, distinct


class TokenLogProbs(Policy):
    """The training passes of `LanguageModel`.

    config, causal, device, ability: of the policy.
    """

    config: Settings
    causal: CausalModel

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def ability(self) -> Ability: ...

    def forward(
        self,
        rollouts: Rollouts,
        decisions: slice = slice(None),
        outputs: Outputs | None = None,
        *,
        temperature: float | None = None,
    ) -> LogProbs:
        """Log-probs and entropy [b, t] of the policy's tokens, always both; of an environment's
        tokens `observation_log_probs` [b, t], where these are asked for. All others are context.

        temperature: that of the policy if unset.
        """
        observed = outputs is None or OBSERVED in outputs
        places = self.observations(rollouts) | rollouts.mask if observed else rollouts.mask
        sequences, placed = self.pass_inputs(rollouts, decisions, places)
        log_probs, entropy = passes.likelihood(
            self.causal,
            self.ability.numerics,
            sequences,
            by=self.ability.training,
            temperature=self.config.temperature if temperature is None else temperature,
        )
        every, entropy = placed(log_probs), placed(entropy)
        if not observed:
            return LogProbs(log_probs=every, entropy=entropy)
        others = ~rollouts.mask[:, decisions].to(self.device)
        return LogProbs(
            log_probs=every.masked_fill(others, 0.0),
            entropy=entropy.masked_fill(others, 0.0),
            extra={OBSERVED: every.masked_fill(~others, 0.0)},
        )

    def observations(self, rollouts: Rollouts) -> Tensor:
        """[B, T] bool: the tokens of what the environment said, without those that the chat
        template put around it; all tokens that were not drawn, if a sampler does not tell."""
        if "observations" in rollouts.trajectory:
            return rollouts.tensor("observations")
        return rollouts.tensor("attention") & ~rollouts.mask

    def pass_inputs(
        self, rollouts: Rollouts, decisions: slice, places: Tensor | None = None
    ) -> tuple[Sequences, Callable[[Tensor], Tensor]]:
        """Inputs of a pass over k tokens, and the function that scatters its results [k] to [b, t].

        places: [b, T] bool, the tokens whose log-probs are computed; the decisions if unset.
        """
        stop = decisions.indices(rollouts.mask.shape[1])[1]
        ids, attention, mask = [
            tensor[:, :stop].to(self.device)
            for tensor in (
                rollouts.tensor("completion_ids"),
                rollouts.tensor("attention"),
                rollouts.mask if places is None else places,
            )
        ]
        # Once, since each use of a mask as index would synchronise.
        chosen = mask.nonzero(as_tuple=True)

        def placed(values: Tensor) -> Tensor:
            return values.new_zeros(ids.shape).index_put(chosen, values)[:, decisions]

        prompts = list(rollouts.trajectory["prompt_ids"])
        return Sequences.of(prompts, ids, attention, chosen), placed

    def costs(self, rollouts: Rollouts) -> Tensor:
        """Tokens, with those of the prompt; where rows share a pass of it, each has a part."""
        ids = list(rollouts.trajectory["prompt_ids"])
        which = torch.tensor(distinct(ids)[1])
        rows = which.bincount()[which] if self.ability.shared_training else 1
        return rollouts.extents.cpu() + torch.tensor([len(own) for own in ids]) / rows

    def microbatches(
        self,
        rollouts: Rollouts,
        budget: int,
        *,
        cut_decisions: bool,
    ) -> Sequence[Microbatch]:
        """Pack rollouts of similar length together; the budget counts prompt tokens, too."""
        cpu = self.device.type == "cpu"
        lengths = rollouts.extents.cpu()
        ids = list(rollouts.trajectory["prompt_ids"])
        prompts = torch.tensor([len(own) for own in ids])
        shared = distinct(ids)[1] if self.ability.shared_training else None
        if cpu:
            budget = min(budget, ENOUGH + (int(prompts.max()) if shared else 0))
        parts = pack(
            lengths,
            prompts,
            shared=shared,
            padded=self.ability.training != "packed",
            budget=budget,
            # What one more pass costs, in tokens: a GPU is busy only with thousands of them.
            overhead=64 if cpu else 4096,
        )
        return [(rows, slice(0, max(1, int(lengths[rows].max())))) for rows in parts]
