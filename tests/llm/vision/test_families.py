"""Families: ids, sampled and trained log-probs of each are those of transformers' own code."""

from functools import cache
from importlib.util import find_spec

import pytest
import torch
from tests.llm.vision import reference, standins

from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings

PASSES = {
    "qwen2_vl": "packed",
    "qwen2_5_vl": "packed",
    "qwen3_vl": "packed",
    "qwen3_5": "plain",
    "gemma3": "cached",
    "idefics3": "packed",
    "smolvlm": "packed",
    "llava_next": "packed",
    "internvl": "packed",
}
"""The pass by which each is trained: Qwen3.5 has recurrent states, Gemma 3 attends both ways within
a picture."""

smolvlm = pytest.mark.skipif(
    find_spec("num2words") is None, reason="SmolVLM's processor needs num2words"
)
families = pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=smolvlm if name == "smolvlm" else ()) for name in PASSES],
)


@cache
def policy(family, **settings):
    folder = str(standins.folder(family))
    made = VisionLanguageModel(VisionSettings(model=folder, max_new_tokens=6, **settings))
    made.place("cpu")
    return made


@cache
def rollouts(family):
    """Two completions of each of the reference's rows."""
    return policy(family, temperature=0.8).sample(reference.rows(), group_size=2, seeds=range(8))


@families
def test_ids_are_those_of_the_processor_with_ids_of_pictures_for_image_tokens(family):
    ours = policy(family, temperature=0.8)
    rows, sampled = reference.rows(), rollouts(family)
    for row, prompt in zip(rows, sampled.trajectory["prompt_ids"][::2], strict=True):
        theirs = reference.inputs(family, row)["input_ids"][0]
        ids = [n for picture in map(ours.family.picture, row["images"]) for n in picture.ids]
        theirs[theirs == ours.family.image_id] = torch.tensor(ids, dtype=torch.int64)
        assert prompt.tolist() == theirs.tolist()


@families
def test_sampled_and_trained_log_probs_are_those_of_transformers(family):
    ours = policy(family, temperature=0.8)
    sampled = rollouts(family)
    trained = ours(sampled).log_probs.detach()
    expected = torch.zeros_like(trained)
    for number, row in enumerate(sampled.prompts):
        tokens = sampled.trajectory["attention"][number]
        completion = sampled.trajectory["completion_ids"][number, tokens]
        expected[number, tokens] = reference.log_probs(
            family, row, completion, excluded=ours.family.excluded, temperature=0.8
        )
    torch.testing.assert_close(sampled.sampler_log_probs, expected, rtol=0, atol=2e-4)
    torch.testing.assert_close(trained, expected, rtol=0, atol=2e-4)
    assert ours.ability.training == PASSES[family], ours.notes
