"""Critic: a separate transformer with a head that outputs one value per token."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging

from groupwise.kit import trust
from groupwise.kit.errors import UserError
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.model.copies import Numerics
from groupwise_llm.training.passes import Pass, Sequences, run_over


class Critic(nn.Module):
    """The value of the state before each token, by a transformers sequence classifier with one
    label, whose head is applied at every token."""

    def __init__(self, classifier: Any, *, recompute: bool = False) -> None:
        super().__init__()
        self.body = CausalModel(classifier, recompute=recompute)

    @property
    def head(self) -> nn.Linear:
        head: nn.Linear = self.body.causal.score
        return head

    def forward(self, sequences: Sequences, numerics: Numerics, *, by: Pass) -> Tensor:
        """Values [k] in float32 of the states before the decisions."""
        hidden = self.body.hidden(run_over(self.body, sequences, by), numerics)
        values: Tensor = self.head(hidden.float()).squeeze(-1)
        return values

    def save(self, path: Path) -> None:
        """Save as transformers saves a classifier; `policy.critic` can load it."""
        self.body.model.save_pretrained(path)


def load(model: str | Path, options: Mapping[str, Any], *, recompute: bool) -> Critic:
    """A critic initialised from a reward model, or from a language model with a head of zeros, so
    that values are 0 at first. Raises UserError where loading fails.

    options: of transformers' from_pretrained. Weights are in float32.
    """
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # no warning about the head that a language model lacks
    try:
        classifier, report = AutoModelForSequenceClassification.from_pretrained(
            model,
            **{trust.SAFETENSORS: True, **options, "dtype": torch.float32},
            num_labels=1,
            output_loading_info=True,
        )
    except Exception as error:  # transformers and safetensors raise a dozen kinds
        reason = trust.reason_of_policy(error)
        raise UserError(
            f"policy.critic: cannot load a critic from {str(model)!r}: {reason}"
        ) from error
    finally:
        logging.set_verbosity(level)
    if not isinstance(getattr(classifier, "score", None), nn.Linear):
        raise UserError(
            f"policy.critic: {type(classifier).__name__} has no linear head `score` to apply at "
            f"every token; use a model of another architecture"
        )
    missing = sorted(report["missing_keys"])
    if missing:
        if not all(name.startswith("score.") for name in missing):
            raise UserError(
                f"policy.critic: {str(model)!r} has no weights for {missing[0]!r} of the critic"
            )
        with torch.no_grad():
            for parameter in classifier.score.parameters():
                parameter.zero_()
    return Critic(classifier, recompute=recompute)


def size(config: Any) -> int:
    """Number of weights of a critic with this transformers configuration."""
    config = deepcopy(config)
    config.num_labels = 1
    with torch.device("meta"):
        classifier = AutoModelForSequenceClassification.from_config(config)
    return sum(parameter.numel() for parameter in classifier.parameters())
