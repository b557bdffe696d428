"""A vision-language model on both devices, and the waits of its passes with pictures."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from runs import in_own_memory, plain
from simulated import Device
from tests.llm.vision import standins
from torch import Tensor

from groupwise_llm.model.kernels import OnCpu
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

COUNTS = (0, 1, 2, 3)
"""Pictures of a prompt."""
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "trained tower": {"vision": "trained"},
    "frozen tower": {"feature_tokens": 0},
    "kept features": {},
}


def row(count: int) -> dict[str, Any]:
    pictures = [standins.picture(16 + 4 * number, 16, number) for number in range(count)]
    blocks = [*({"type": "image"} for _ in pictures), {"type": "text", "text": "What is it?"}]
    return {"prompt": [{"role": "user", "content": blocks}], "images": pictures}


def make(**settings: Any) -> VisionLanguageModel:
    model = str(standins.folder("qwen2_5_vl"))
    options = {"model": model, "max_new_tokens": 4, "cuda_graphs": False, **settings}
    policy = VisionLanguageModel(VisionSettings(**options))
    policy.place("cpu")  # which loads it
    in_own_memory(policy)
    return policy


def results(policy: VisionLanguageModel) -> Mapping[str, Tensor]:
    """Tokens that are drawn, their log-probs, and the gradient of these."""
    rollouts = policy.sample([row(2), row(0)], group_size=2, seeds=range(4))
    log_probs = policy(rollouts).log_probs
    assert log_probs is not None
    log_probs.sum().backward()
    gradient = {name: p.grad for name, p in policy.named_parameters() if p.requires_grad}
    tokens = rollouts.tensor("completion_ids")
    return {"tokens": tokens, "log-probs": log_probs.detach(), **gradient}


def measure(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Whether the results on the device are those of the CPU, bit for bit; and the waits of a
    forward pass over a prompt of each number of pictures."""
    policy, waits = make(**settings), []
    with plain():
        expected = results(policy)
    policy.zero_grad()
    ability = policy.ability
    with Device() as device, plain():
        with (
            patch("groupwise_llm.probing.probes.ability", lambda *_, **__: ability),
            patch("groupwise_llm.vision_language_model.check", lambda *_, **__: None),
        ):
            policy.place("cuda")
        actual = {name: (value.is_cuda, value.cpu()) for name, value in results(policy).items()}
        for count in COUNTS:
            rollouts = policy.sample([row(count)], group_size=2, seeds=range(2))
            waits.append(device.during(partial(policy, rollouts)).waits)
    assert actual.keys() == expected.keys()
    equal = {name: own[0] and torch.equal(own[1], expected[name]) for name, own in actual.items()}
    return {"equal": equal, "waits": waits}


def main(folder: Path) -> None:
    # The kernels of packed rows that a GPU has are not simulated.
    with patch("groupwise_llm.model.attention.kernel_of", lambda states: OnCpu()):
        result = {name: measure(settings) for name, settings in VARIANTS.items()}
    (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
