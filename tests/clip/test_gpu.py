"""Rewards on a CUDA device are those on the CPU, in float32 and bf16."""

import pytest
import torch

from groupwise_clip.aesthetic import Aesthetic
from groupwise_clip.preference import Preference
from groupwise_clip.similarity import ClipSimilarity

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PRECISIONS = {"float32": 1e-2, "bf16": 0.1}  # cuDNN's convolutions are TF32 by default


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["folder", "transformers_folder"])
def test_rewards_on_the_gpu_are_those_on_the_cpu(
    kind, precision, request, *, head, pictures, pil, texts
):
    settings = {"model": str(request.getfixturevalue(kind))}
    images = pictures(0, 1, 2, 3, height=64, width=80)
    path = str(head(24, 1))

    def rewards(**more):
        yield ClipSimilarity(ClipSimilarity.Config(**settings, **more))
        yield Preference(Preference.Config(**settings, **more, scale=1))
        yield Aesthetic(Aesthetic.Config(**settings, **more, head=path))

    for on_cpu, on_gpu in zip(rewards(device="cpu"), rewards(precision=precision), strict=True):
        expected = on_cpu(texts, pil(images))
        close = pytest.approx(expected, abs=PRECISIONS[precision] * (1 + max(map(abs, expected))))
        # CUDA tensors and PIL images are computed on the GPU, tensors on the CPU stay there.
        assert on_gpu(texts, [None] * 4, pixels=[image.cuda() for image in images]) == close
        assert on_gpu.clip._device.type == "cuda"
        assert on_gpu(texts, pil(images)) == close
        assert on_gpu.clip._device.type == "cuda"
        assert on_gpu(texts, [None] * 4, pixels=images) == close
        assert on_gpu.clip._device.type == "cpu"


def test_features_stay_on_the_device(folder, pictures, texts):
    clip = ClipSimilarity(ClipSimilarity.Config(model=str(folder), device="cuda")).clip
    assert clip.image_features(pictures(0)).is_cuda
    assert clip.text_features(texts).is_cuda
    assert all(parameter.is_cuda for parameter in clip._encoder.module.parameters())
