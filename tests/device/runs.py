"""Shared by the jobs: a run on the CPU and on the simulated device, and the waits of calls."""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, GradientState
from simulated import Device
from torch.nn.attention import SDPBackend, sdpa_kernel

import groupwise
from groupwise import Policy, Rollouts
from groupwise.algorithm import Algorithm
from groupwise.rewards import Scores
from groupwise.testing import updater_of

Module = TypeVar("Module", bound=torch.nn.Module)

TRAIN = {
    "groups_per_step": 2,
    "group_size": 4,
    "updates_per_rollout": 2,
    "learning_rate": 1e-3,
    "max_grad_norm": 0.05,
    "ema": 0.8,
    "sample_batch": 8,
}


def conftest_of(name: str) -> ModuleType:
    """The conftest of another folder of tests, which makes tiny models."""
    path = Path(__file__).parents[1] / name / "conftest.py"
    spec = importlib.util.spec_from_file_location(f"{name}_conftest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_on_both(folder: Path, make: Callable[[], Policy], config: Mapping[str, Any]) -> None:
    """Runs of two steps and a resumed third one, in folder/cpu and folder/device."""
    for place in ("cpu", "device"):
        for steps in (2, 3):
            # Loaded outside of the device, as loading uses torch's own `meta` tensors.
            policy = make()
            with nullcontext() if place == "cpu" else Device(), plain(), launched(place):
                groupwise.train(
                    policy=policy,
                    **{**config, "train": {**TRAIN, **config["train"], "steps": steps}},
                    output=str(folder / place),
                    evaluation={"prompts": 2, "every": 2},
                    resume=steps > 2,
                    quiet=True,
                )


def in_own_memory(module: Module) -> Module:
    """The module with each weight in memory that torch allocated, as a copy to a device has it.

    Loaded weights lie where their file puts them, at any multiple of 8 bytes, and MKL chooses its
    kernels by the alignment: on some processors, products then differ in the last digit.
    """
    for weight in (*module.parameters(), *module.buffers()):
        weight.data = weight.data.clone()
    return module


def plain() -> AbstractContextManager[Any]:
    """Attention by plain operations, as the CPU's fused kernel sums in another order."""
    return sdpa_kernel(SDPBackend.MATH)


@contextmanager
def launched(place: str) -> Iterator[None]:
    """Resets accelerate, as in a new process, for the CPU or the simulated device."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with patch.dict(os.environ, {"ACCELERATE_USE_CPU": str(place == "cpu").lower()}):
        yield


def per_microbatch(
    device: Device,
    policy: Policy,
    algorithm: Algorithm,
    rollouts: Rollouts,
    *,
    reference: Mapping[str, Any],
    budgets: tuple[int, int],
) -> float:
    """Waits per micro-batch: an update split by two budgets, difference by difference."""
    measured = []
    scores = Scores(
        names=("reward",),
        weights=(1.0,),
        values=torch.arange(len(rollouts), dtype=torch.float64).unsqueeze(1),
        failed=torch.zeros(len(rollouts), dtype=torch.bool),
    )
    for budget in budgets:
        passes: list[Any] = []
        hook = policy.register_forward_hook(lambda *_, passes=passes: passes.append(None))
        with launched("device"):
            updater = updater_of(policy, algorithm, budget)
            answers = {"old_log_probs": rollouts.sampler_log_probs.cpu(), **reference}
            update = {"scores": scores, "rollouts": rollouts, "outputs": answers}
            cost = device.during(partial(updater.backward, **update))
        hook.remove()
        measured.append((len(passes), cost.waits))
    (few, few_waits), (many, many_waits) = measured
    assert many > few
    return (many_waits - few_waits) / (many - few)
