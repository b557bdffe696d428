"""The laws of saving: what a run trains can be written, and is read back by diffusers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from groupwise.kit.errors import UserError
from groupwise.testing import compare, law
from groupwise_flow.files.messages import quiet
from groupwise_flow.files.saving import save, try_saving
from groupwise_flow.model.lora import add_lora
from groupwise_flow.settings import Lora
from groupwise_flow.testing.case import LIMIT, Case

LEVELS = (0.95, 0.5)
"""Of noise: of two transformers one runs at high levels, the other at low ones."""


@law(
    "what is trained can be saved, and is read back",
    hint="`save_lora`, and `lora_code`, by which diffusers reads what it wrote; and the "
    "pipeline's components, which diffusers writes",
)
def saving(case: Case) -> str | None:
    try:
        try_saving(case.adapter, lora=False)
    except UserError as error:
        return str(error)
    return _lora_problem(case) if case.kind.targets else None


def _lora_problem(case: Case) -> str | None:
    plain = _velocities(case)
    with TemporaryDirectory() as folder:
        with _lora(case) as adapter:
            trained = _velocities(case)
            if compare.gap(trained, plain) < LIMIT:
                return "the trained LoRA weights change nothing"
            try:
                try_saving(adapter, lora=True)
            except UserError as error:
                return str(error)
            save(adapter, Path(folder), lora=True, mesh=None)
        try:
            with quiet():
                for line in adapter.lora_code:
                    exec(line.format(path=folder), {"pipeline": case.pipeline})
            read = _velocities(case)
        finally:
            _remove(adapter)
    gap = compare.gap(read, trained)
    return (
        f"read by `lora_code` they give velocities that differ by {gap:.2g}"
        if gap > LIMIT
        else None
    )


def _velocities(case: Case) -> Tensor:
    levels = [case.velocity(case.start, case.conditions, sigma=level) for level in LEVELS]
    return torch.stack(levels, dim=1)


@contextmanager
def _lora(case: Case) -> Iterator[Any]:
    """The adapter with random LoRA weights on each of its models, which are then removed."""
    adapter = case.adapter
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for model in adapter.models.values():
                add_lora(model, Lora(rank=2), adapter.targets)
                with torch.no_grad():
                    for name, weight in model.named_parameters():
                        if ".lora_" in name:
                            weight.normal_(std=0.3)
        yield adapter
    finally:
        _remove(adapter)


def _remove(adapter: Any) -> None:
    for model in adapter.models.values():
        if getattr(model, "peft_config", None):
            model.unload_lora()
            model.requires_grad_(False)
