"""Split: the prompts of a run that it trains on, or those that it holds out, each once."""

from collections.abc import Iterator
from typing import Literal

import torch

from groupwise.building.parts import Parts
from groupwise.kit.errors import UserError
from groupwise.prompt_source import Row
from groupwise.prompts.draws import SCAN, Prompts
from groupwise.prompts.identity import identity
from groupwise.record import Group
from groupwise.record.seeds import seed_for

Split = Literal["train", "held-out"]


def prompts_of(parts: Parts, split: Split, count: int | None) -> Iterator[Group]:
    """The first `count` prompts of the split, all if None: held-out ones in the order of an
    evaluation, training ones in an order by the run's seed.

    Raises UserError if there are none, and for all prompts of a source that generates them.
    """
    held, number, names = split == "held-out", 0, set[tuple[str, str]]()
    prompts = parts.evaluation_prompts if held else parts.prompts
    if count is None and len(prompts.source) > SCAN:
        raise UserError(
            f"--prompts: set a number, since the run's source generates "
            f"{len(prompts.source):,} of them"
        )
    for row in prompts.rows() if held else _shuffled(prompts):
        question, is_held = prompts.side(row)
        if is_held != held:
            continue
        name = ("" if prompts.key == "prompt" else identity(prompts.prompt(row)), question)
        if name in names or prompts.skips(row):
            continue
        yield Group(number, row)
        number += 1
        if number == count:
            return
        names.add(name)
    if not number:
        share = f"prompts.held_out is {parts.config.prompts.held_out:g}"
        raise UserError(f"--split {split}: the run has no such prompts ({share})")


def _shuffled(prompts: Prompts) -> Iterator[Row]:
    """All rows in an order by the run's seed, different from that of training."""
    count = len(prompts.source)
    generator = torch.Generator().manual_seed(seed_for(prompts.seed, "order of samples", 0, 0))
    order = torch.randperm(count, generator=generator) if prompts.shuffle else torch.arange(count)
    for index in map(int, order):
        yield prompts.row(index)
