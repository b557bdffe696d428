"""LanguageModelWithCritic: the language model of Groupwise, and beside it a critic."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch.distributed.device_mesh import DeviceMesh

from groupwise import LogProbs, Rollouts
from groupwise.errors import UserError
from groupwise.options import PathOrName
from groupwise_llm.files.loading import config_of
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings
from groupwise_ppo import critic
from groupwise_ppo.critic import Critic

WITHOUT_HEAD = frozenset({"log_probs", "entropy"})


class LanguageModelWithCritic(LanguageModel):
    """As `language_model`, with `value` [b, t]: what the critic makes of the state before a token.

    The critic is trained whole, also beside adapters, and lies in `critic` of the saved folder,
    where transformers does not look when it loads the model. An algorithm that asks for no value
    has none loaded.
    """

    provides = LanguageModel.provides | {"value"}
    unkept = ("critic.",)

    class Config(Settings):
        critic: PathOrName | None = Field(
            None,
            description="what the critic begins as: a saved critic, or a reward model with this "
            "tokenizer; the policy's own model, with values of 0, if unset",
        )
        critic_rate: float = Field(
            1.0, gt=0, description="factor of train.learning_rate for the critic"
        )

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.critic: Critic | None = None
        self.rates = {"critic.": config.critic_rate}

    def shard(self, mesh: DeviceMesh) -> None:
        raise UserError(
            "train.shard: the critic of language_model_with_critic cannot be sharded; leave "
            "train.shard out, and each process holds the whole of both models"
        )

    def place(self, device: torch.device | str) -> None:
        super().place(device)
        if self.critic is None and (self.needed is None or "value" in self.needed):
            own = self.config.critic is None
            self.critic = critic.load(
                self.config.critic or self.config.model,
                {"trust_remote_code": False, **(self.config.loading if own else {})},
                recompute=self.config.gradient_checkpointing,
            )
            self._check(self.critic)
            self.critic.to(device)

    def _check(self, critic: Critic) -> None:
        """Raise UserError for a critic that does not know the policy's tokens."""
        ours, theirs = (
            model.causal.config.get_text_config().vocab_size for model in (self.causal, critic.body)
        )
        if theirs < ours:
            raise UserError(
                f"policy.critic: it knows {theirs} tokens, and the policy's model {ours}; take one "
                f"with the same tokenizer"
            )

    def forward(self, rollouts: Rollouts, decisions: slice = slice(None)) -> LogProbs:
        """Log-probs, entropy and values [b, t]; the values alone where nothing else is needed."""
        if self.critic is None or (self.needed is not None and "value" not in self.needed):
            return super().forward(rollouts, decisions)
        alone = self.needed is not None and not self.needed & WITHOUT_HEAD
        answer = LogProbs(log_probs=None) if alone else super().forward(rollouts, decisions)
        sequences, placed = self.asked(rollouts, decisions)
        # What the model allows was tried on it alone: another architecture is passed over plainly.
        alike = type(self.critic.body.causal.config) is type(self.causal.causal.config)
        value = self.critic(
            sequences,
            replace(self.ability.numerics, plain_head=True, head=None),
            rollouts.groups if alike and self.ability.shared_training else None,
        )
        return replace(answer, extra={"value": placed(value)})

    def save_pretrained(self, path: Path) -> None:
        super().save_pretrained(path)
        if self.critic is not None:
            self.critic.save(path / "critic")

    @classmethod
    def estimate(cls, config: Settings, *, training: bool, **more: Any) -> Mapping[str, int]:
        """Those of the language model, and of the critic: its weights, their gradients and the
        optimizer's state, and as many activations."""
        sizes = dict(super().estimate(config, training=training, **more))
        assert isinstance(config, LanguageModelWithCritic.Config)
        begins = config.model_copy(update={"model": config.critic or config.model})
        weights = 4 * critic.size(config_of(begins))
        sizes["critic"] = weights
        if training:
            sizes["critic's gradients and optimizer"] = 3 * weights
            if "activations" in sizes:
                sizes["critic's activations"] = sizes["activations"]
        return sizes
