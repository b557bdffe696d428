"""Trial: a few short rows to probe a model on, and their true log-probs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from textwrap import shorten

import torch
from torch import Tensor

from groupwise.kit.errors import first_line
from groupwise_llm.model.causal import CausalModel, Hidden
from groupwise_llm.model.copies import Numerics
from groupwise_llm.training.passes import Pass, Sequences, likelihood

STEPS = 6
"""Tokens of a completion."""
TOLERANCE = (1e-4, 1e-3)
"""Smallest and largest tolerance, in nats, within which float32 log-probs count as equal."""


@dataclass(frozen=True)
class Trial:
    """Two short prompts of different lengths, each with two completions of random tokens.

    ids, mask: [4, t] of the completions.
    """

    model: CausalModel
    prompts: Sequence[Tensor]
    ids: Tensor
    mask: Tensor

    @staticmethod
    def of(model: CausalModel) -> "Trial":
        generator = torch.Generator().manual_seed(0)
        vocabulary = torch.arange(model.causal.config.get_text_config().vocab_size)
        if model.excluded is not None:
            vocabulary = vocabulary[model.excluded[: len(vocabulary)].cpu() == 0]

        def tokens(*shape: int) -> Tensor:
            return vocabulary[torch.randint(len(vocabulary), shape, generator=generator)]

        mask = torch.ones(4, STEPS, dtype=torch.bool)
        mask[1, STEPS // 2 :] = False
        prompts = [model.trial_ids(tokens(5)), tokens(3)]
        return Trial(model, prompts, tokens(4, STEPS).to(model.device), mask.to(model.device))

    @property
    def rows(self) -> list[Tensor]:
        return [self.prompts[0]] * 2 + [self.prompts[1]] * 2

    def truth(self, numerics: Numerics) -> Tensor:
        """True log-probs [k] of the completions' tokens; see `truth`."""
        return truth(self.model, numerics, self.rows, self.ids, self.mask)

    def log_probs(self, numerics: Numerics, *, by: Pass) -> Tensor:
        """The same log-probs by the training passes."""
        places = self.mask.nonzero(as_tuple=True)
        sequences = Sequences.of(self.rows, self.ids, self.mask, places)
        return likelihood(self.model, numerics, sequences, by=by, temperature=1.0)[0]

    def beside_the_farthest(
        self, numerics: Numerics, right: Tensor, longest: int
    ) -> tuple[Tensor, Tensor]:
        """Log-probs [k] of the first row's tokens beside a row that ends at position longest - 1,
        and those among `right`, the true ones of the trial."""
        prompt, own = self.prompts[0].to(self.model.device), self.ids[0, self.mask[0]]
        whole = torch.cat([prompt, own]).repeat(2, 1)
        near = torch.arange(whole.shape[1], device=whole.device)
        counts = torch.stack([near, near + max(0, longest - whole.shape[1])])

        def run(hidden: Hidden) -> Tensor:
            positions = self.model.positions(whole, counts)
            return hidden(whole, positions=positions)[0, len(prompt) - 1 : -1]

        return self.model(run, numerics, own, temperature=1.0)[0], right[: len(own)]

    def log_probs_and_gradient(self, numerics: Numerics, *, by: Pass) -> tuple[Tensor, Tensor]:
        """The same, and the gradient of a weighted sum of them with respect to `scaled`'s factor.

        One backward pass to the embeddings compares the gradient of the whole model.
        """
        with self.scaled() as scale:
            values = self.log_probs(numerics, by=by)
            weights = torch.linspace(-1, 1, len(values), device=values.device)
            (gradient,) = torch.autograd.grad((weights * values).sum(), scale)
        return values.detach(), gradient

    @contextmanager
    def scaled(self) -> Iterator[Tensor]:
        """A factor of 1 on every channel of the embedded tokens; its gradient depends on all
        layers."""
        embedding = self.model.causal.get_input_embeddings()
        scale = torch.ones(embedding.weight.shape[1], device=self.ids.device, requires_grad=True)
        hook = embedding.register_forward_hook(
            lambda _, __, states: states * scale.to(states.dtype)
        )
        try:
            yield scale
        finally:
            hook.remove()


@torch.no_grad()
def truth(
    model: CausalModel, numerics: Numerics, prompts: Sequence[Tensor], ids: Tensor, mask: Tensor
) -> Tensor:
    """Log-probs [k] of the masked tokens by the model's own forward on each row alone, without
    padding, cache or mask."""
    numerics = replace(numerics, plain_head=False)
    answers = []
    for prompt, row, own in zip(prompts, ids, mask, strict=True):
        whole = torch.cat([prompt.to(model.device), row[own]]).unsqueeze(0)
        positions = model.positions(whole, None)
        run = partial(_alone, whole=whole, positions=positions, first=len(prompt))
        answers.append(model(run, numerics, row[own], temperature=1.0)[0])
    return torch.cat(answers)


def _alone(hidden: Hidden, whole: Tensor, positions: Tensor | None, first: int) -> Tensor:
    """[k, v] logits that predict the tokens of a row [1, t] from `first` on."""
    return hidden(whole, positions=positions)[0, first - 1 : -1]


def gap_of(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference; infinite if any value is NaN."""
    return float((ours - theirs).abs().nan_to_num(nan=torch.inf).max())


def short(error: Exception) -> str:
    """The first line of an error that a trial raised, cut to 120 characters, for messages."""
    return shorten(first_line(error), 120, placeholder=" ...")
