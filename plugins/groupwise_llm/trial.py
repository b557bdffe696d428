"""Trial: the few short rows that a model is tried on, and the plain truth about them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise_llm import passes
from groupwise_llm.body import Body

STEPS = 6
"""Tokens of a completion."""


@dataclass(frozen=True)
class Trial:
    """Two short prompts of different length, each with two completions [4, t] of random tokens."""

    prompts: Sequence[Tensor]
    ids: Tensor
    mask: Tensor

    @staticmethod
    def of(body: Body) -> "Trial":
        generator = torch.Generator().manual_seed(0)
        size = body.causal.config.get_text_config().vocab_size

        def tokens(*shape: int) -> Tensor:
            return torch.randint(size, shape, generator=generator)

        mask = torch.ones(4, STEPS, dtype=torch.bool)
        mask[1, STEPS // 2 :] = False
        return Trial([tokens(5), tokens(3)], tokens(4, STEPS).to(body.device), mask.to(body.device))

    @property
    def rows(self) -> list[Tensor]:
        return [self.prompts[0]] * 2 + [self.prompts[1]] * 2


@torch.no_grad()
def truth(body: Body, prompts: Sequence[Tensor], ids: Tensor, mask: Tensor) -> Tensor:
    """Log-probs [k] of the mask's tokens by the model's own forward, called on each row alone."""
    answers = []
    for prompt, row, own in zip(prompts, ids, mask, strict=True):
        completion = row[own]
        whole = torch.cat([prompt.to(body.device), completion]).unsqueeze(0)
        with body.computing():
            logits = body.causal(input_ids=whole, use_cache=False).logits[0].float()
        scores = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
        answers.append(scores.gather(1, completion.unsqueeze(1)).squeeze(1))
    return torch.cat(answers)


def log_probs(body: Body, trial: Trial, *, share: bool) -> Tensor:
    """The same [k] by the passes of training."""
    prompts, groups = trial.rows, torch.tensor([0, 0, 1, 1])
    if share:
        hidden = passes.shared(body, prompts, groups, trial.ids, trial.mask)
    else:
        hidden = passes.plain(body, prompts, trial.ids, trial.mask)
    return body.likelihood(hidden, trial.ids[trial.mask], temperature=1.0)[0]


@contextmanager
def scaled(body: Body) -> Iterator[Tensor]:
    """A factor of 1 on every channel of every embedded token, whose gradient sums up a pass's."""
    embedding = body.causal.get_input_embeddings()
    scale = torch.ones(embedding.weight.shape[1], device=body.device, requires_grad=True)
    hook = embedding.register_forward_hook(lambda _, __, output: output * scale.to(output.dtype))
    try:
        yield scale
    finally:
        hook.remove()


def gap_of(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).abs().nan_to_num(nan=torch.inf).max())
