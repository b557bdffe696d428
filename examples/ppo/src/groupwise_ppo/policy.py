"""LanguageModelWithCritic: Groupwise's language model with a critic."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import Field
from torch.distributed.device_mesh import DeviceMesh

from groupwise import LogProbs, Rollouts
from groupwise.kit.errors import UserError
from groupwise.kit.memory import Workload
from groupwise.kit.options import PathOrName
from groupwise.policy import Outputs
from groupwise_llm.files.folder import config_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_ppo import critic
from groupwise_ppo.critic import Critic

WITHOUT_HEAD = frozenset({"log_probs", "entropy"})


class LanguageModelWithCritic(LanguageModel):
    """As `language_model`, with the extra `value` [b, t]: the critic's value before each token.

    All of the critic's weights are trained, even if the policy has adapters. It is saved in the
    subfolder `critic`, which transformers ignores. It is loaded only for algorithms that need
    values.
    """

    provides = LanguageModel.provides | {"value"}
    unkept = ("critic.",)

    class Config(Settings):
        critic: PathOrName | None = Field(
            None,
            description="initial weights of the critic: a saved critic, or a reward model with "
            "this tokenizer; the policy's own model, with values of 0, if unset",
        )
        critic_rate: float = Field(
            1.0, gt=0, description="the critic's learning rate, as a factor of train.learning_rate"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.critic: Critic | None = None
        self._values = True
        self.rates = {"critic.": config.critic_rate}

    def shard(self, mesh: DeviceMesh) -> None:
        raise UserError(
            "train.shard: the critic of language_model_with_critic cannot be sharded; leave "
            "train.shard out, and each process holds the whole of both models"
        )

    def prepare(self, *, outputs: Outputs, facts: frozenset[str]) -> None:
        """Load no critic where no pass reads values."""
        super().prepare(outputs=outputs, facts=facts)
        self._values = "value" in outputs

    def place(self, device: torch.device | str) -> None:
        super().place(device)
        if self.critic is None and self._values:
            own = self.config.critic is None
            self.critic = critic.load(
                self.config.critic or self.config.model,
                {"trust_remote_code": False, **(self.config.loading if own else {})},
                recompute=self.config.gradient_checkpointing,
            )
            self._check(self.critic)
            self.critic.to(device)

    def _check(self, critic: Critic) -> None:
        """Raise UserError for a critic with a smaller vocabulary than the policy's."""
        ours, theirs = (
            model.causal.config.get_text_config().vocab_size for model in (self.causal, critic.body)
        )
        if theirs < ours:
            raise UserError(
                f"policy.critic: it has {theirs} tokens, and the policy's model {ours}; use a "
                f"critic with the same tokenizer"
            )

    def forward(
        self, rollouts: Rollouts, decisions: slice = slice(None), outputs: Outputs | None = None
    ) -> LogProbs:
        """Log-probs, entropy and values [b, t]; only values where nothing else is asked for."""
        if self.critic is None or (outputs is not None and "value" not in outputs):
            return super().forward(rollouts, decisions, outputs)
        alone = outputs is not None and not outputs & WITHOUT_HEAD
        output = LogProbs(log_probs=None)
        if not alone:
            output = super().forward(rollouts, decisions, outputs)
        sequences, placed = self.pass_inputs(rollouts, decisions)
        # Prompt sharing was probed on the policy's architecture only, so others go row by row.
        alike = type(self.critic.body.causal.config) is type(self.causal.causal.config)
        value = self.critic(
            sequences,
            replace(self.ability.numerics, plain_head=True, head=None),
            by=self.ability.training if alike else "plain",
        )
        return replace(output, extra={**output.extra, "value": placed(value)})

    def save_pretrained(self, path: Path) -> None:
        super().save_pretrained(path)
        if self.critic is not None:
            self.critic.save(path / "critic")

    @classmethod
    def estimate(cls, config: Settings, load: Workload) -> Mapping[str, int]:
        """Bytes of the language model and of the critic: weights, gradients, optimizer state, and
        the same activations again."""
        sizes = dict(super().estimate(config, load))
        assert isinstance(config, LanguageModelWithCritic.Config)
        begins = config.model_copy(update={"model": config.critic or config.model})
        weights = 4 * critic.size(config_of(begins))
        sizes["critic"] = weights
        if load.training:
            sizes["critic's gradients and optimizer"] = 3 * weights
            if "activations" in sizes:
                sizes["critic's activations"] = sizes["activations"]
        return sizes
