"""Probe: whether passes read pictures as the model's own code does, tried on the loaded model."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise_llm.model.causal import Hidden
from groupwise_llm.model.copies import Numerics
from groupwise_llm.probing.probes import ROUNDED
from groupwise_llm.probing.trial import TOLERANCE, short
from groupwise_llm.vision.model import PicturedModel
from groupwise_llm.vision.tokenizer import PictureTokenizer


@torch.no_grad()
def check(model: PicturedModel, numerics: Numerics, limits: Any, *, name: str) -> None:
    """Compare log-probs after the sample with those of transformers' own forward of its pixels.

    limits: arguments of the image processor. Raises UserError where they differ: transformers may
    have changed what the family is written for.
    """
    numerics = replace(numerics, plain_head=False)
    tokenizer, family = PictureTokenizer(model.family), model.family
    with tokenizer.showing([model.sample]):
        (ids,) = tokenizer([family.placeholder])["input_ids"]
    row = torch.tensor([ids], device=model.device)

    def ours(hidden: Hidden) -> Tensor:
        return hidden(row, positions=model.positions(row, None))[0, -1:]

    def theirs(_: Hidden) -> Tensor:
        inputs = family.processor(
            text=[family.placeholder],
            images=[model.sample.image],
            return_tensors="pt",
            images_kwargs=dict(limits),
        )
        logits: Tensor = model.causal(**inputs.to(model.device)).logits[0, -1:]
        return logits

    try:
        pair = [model(run, numerics).log_softmax(dim=-1) for run in (ours, theirs)]
        gap = float((pair[0] - pair[1]).abs().max())
        reason = f"log-probs after a picture differ by {gap:.2g} nats"
    except Exception as error:
        model.recover()
        gap, reason = torch.inf, f"a pass with a picture fails ({short(error)})"
    if not gap <= (ROUNDED if model.rounds(numerics.precision) else TOLERANCE[1]):
        raise UserError(
            f"{name}: this model does not read pictures as its family {type(family).__name__} "
            f"has it: {reason} from transformers' own; try another version of transformers"
        )
