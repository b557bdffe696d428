"""A reward model for text that is trained together with the policy."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from groupwise.learned import Learned, Learning
from groupwise.rollouts import Rollouts
from groupwise_verifiable.models import for_use, loading
from groupwise_verifiable.text.reward_model import RewardModel, check_whole, outputs


class LearnedText(Learned, RewardModel):
    """The probability that a verifier accepts a completion, learned while the policy trains.

    It starts from a sequence classification model with one output, or from a language model, which
    gets a new head with zero weights: probability 0.5 for every text. Dropout stays off.
    """

    name: ClassVar[str] = "learned_text"

    class Config(RewardModel.Config, Learning):
        """Settings of the reward `learned_text`."""

        precision: Literal["float32"] = Field(
            default="float32", description="Precision of weights and computation."
        )

    config: Config

    def __init__(self, config: Config) -> None:
        RewardModel.__init__(self, config)
        Learned.__init__(self)

    def _check_folder(self, folder: str) -> None:
        """No check: any language model will do, and loading shows what is missing."""

    def _load(self) -> tuple[Any, Any]:
        """Model and tokenizer."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        name, verbosity = self.config.model, logging.get_verbosity()
        with (
            loading(f"`model`: {name!r}", name),
            torch.random.fork_rng(devices=[]),
            ExitStack() as stack,
        ):
            # transformers warns about the missing head.
            stack.callback(logging.set_verbosity, verbosity)
            logging.set_verbosity_error()
            torch.manual_seed(self.config.seed)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model, report = AutoModelForSequenceClassification.from_pretrained(
                name,
                dtype=torch.float32,
                num_labels=1,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
        body = f"{model.base_model_prefix}."
        missing = sorted(report["missing_keys"])
        check_whole(name, [key for key in missing if key.startswith(body)])
        for key in missing:
            if len(weight := model.get_parameter(key)) == 1:  # of the output
                torch.nn.init.zeros_(weight)
        return for_use(model, self.config.device), tokenizer

    @property
    def network(self) -> nn.Module:
        model: nn.Module = self.loaded()[0]
        return model

    def inputs(self, rollouts: Rollouts) -> Sequence[Tensor | None]:
        """Token ids of prompt and completion; None where they are too long for the model."""
        model, tokenizer = self.loaded()
        limit = self._limit(model, tokenizer)
        tokens = [
            self._tokens(tokenizer, row.get("prompt"), completion)
            for row, completion in zip(rollouts.prompts, rollouts.completions, strict=True)
        ]
        return [torch.tensor(ids) if limit is None or len(ids) <= limit else None for ids in tokens]

    def logits(self, inputs: Sequence[Tensor]) -> Tensor:
        logits: Tensor = outputs(self.network, [ids.tolist() for ids in inputs])
        return logits

    def _values(self, model: Any, tokens: Sequence[list[int]]) -> list[float]:
        with torch.inference_mode():
            values: list[float] = outputs(model, tokens).sigmoid().tolist()
        return values
