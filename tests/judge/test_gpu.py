"""A judge on a CUDA device gives the values of the CPU, and leaves it between uses if asked to."""

import pytest
import torch
from tests.judge import tiny_judge
from tests.llm.vision import standins

from groupwise_judge.generative import GenerativeJudge
from groupwise_judge.in_process.loading import weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("offload", [False, True])
def test_values_and_places(offload):
    pictures = [standins.picture(16, 16), standins.picture(32, 16)]
    cases = [
        (tiny_judge.folder(), "Is {completion} right for {prompt}?", ["2", "a longer answer"]),
        (standins.folder("qwen2_5_vl"), "Is the picture right for {prompt}?", pictures),
    ]
    for folder, question, completions in cases:
        options = {
            "model": str(folder),
            "question": question,
            "answers": {"1": 1, "2": 0},
        }
        config = GenerativeJudge.Config(**options, offload=offload)
        reward = GenerativeJudge(config)
        reward.load()
        on_cpu = GenerativeJudge(GenerativeJudge.Config(**options, device="cpu"))
        expected = on_cpu(["1 + 1 =", "x"], completions)
        assert reward(["1 + 1 =", "x"], completions) == pytest.approx(expected, abs=1e-3)
        assert weights(config).model.device.type == ("cpu" if offload else "cuda")
