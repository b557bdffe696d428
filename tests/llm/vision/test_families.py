"""Families: ids, sampled and trained log-probs of each are those of transformers' own code."""

from functools import cache
from importlib.util import find_spec
from unittest.mock import patch

import pytest
import torch
from tests.llm.vision import reference, standins
from tests.llm.vision.configurations import TILE
from transformers import AutoModelForImageTextToText, AutoProcessor

from groupwise.kit.errors import UserError
from groupwise_llm.files.folder import config_of
from groupwise_llm.files.loading import outline
from groupwise_llm.probing import probes
from groupwise_llm.settings import Settings
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

EXPERTS = {"qwen3_vl_moe": "qwen3_vl", "qwen3_5_moe": "qwen3_5"}
"""Mixtures of experts, and the models that they are like otherwise."""
ONE_SIZE = {"gemma3", "llava_next"}
"""Families that choose the size of pictures themselves."""
TEXT_TOO = {"gemma3", "qwen3_5"}
"""Families whose checkpoints transformers also loads as models of text alone."""
TOKENS = 4
"""Of a tile."""

QWEN = {"<|image_pad|>", "<|video_pad|>"}
EXCLUDED = {
    **{name: QWEN for name in PASSES if name.startswith("qwen")},
    "gemma3": {"<start_of_image>", "<image_soft_token>"},
    "internvl": {"<IMG_CONTEXT>", "<video>"},
}
"""Tokens that are never sampled, where there are others than `<image>`."""
NOW, IMAGE = {"type": "text", "text": "Now "}, {"type": "image"}

smolvlm = pytest.mark.skipif(
    find_spec("num2words") is None, reason="SmolVLM's processor needs num2words"
)
families = pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=smolvlm if name == "smolvlm" else ()) for name in PASSES],
)


@cache
def policy(family):
    folder = str(standins.folder(family))
    settings = VisionSettings(model=folder, max_new_tokens=256, temperature=0.8)
    made = VisionLanguageModel(settings)
    made.place("cpu")
    return made


def like(policy, **settings):
    """A policy of the same model with other settings, which is not probed again."""
    other = VisionLanguageModel(policy.config.model_copy(update=settings))
    with patch.object(probes, "ability", lambda *_, **__: policy.ability):
        other.place("cpu")
    return other


@cache
def rollouts(family):
    """Two completions of each of the reference's rows."""
    return drawn(policy(family), [row for row in reference.rows() for _ in range(2)])


def drawn(policy, rows, purpose="train"):
    """Rollouts of at most six tokens."""
    contexts, size = policy.encode(rows), len(rows)
    turns = policy.draw(contexts, seeds=range(size), limits=[6] * size, purpose=purpose)
    whole = [own.with_turn(turn) for own, turn in zip(contexts, turns, strict=True)]
    return policy.assemble(rows, whole)


@families
@pytest.mark.slow(after=3)
def test_ids_are_those_of_the_processor_with_ids_of_pictures_for_image_tokens(family):
    ours = policy(family)
    rows, sampled = reference.rows(), rollouts(family)
    for row, prompt in zip(rows, sampled.trajectory["prompt_ids"][::2], strict=True):
        theirs = reference.inputs(reference.loaded(family)[0], row)["input_ids"][0]
        ids = [n for picture in map(ours.causal.family.picture, row["images"]) for n in picture.ids]
        theirs[theirs == ours.causal.family.image_id] = torch.tensor(ids, dtype=torch.int64)
        assert prompt.tolist() == theirs.tolist()


@families
@pytest.mark.slow(after=3)
def test_sampled_and_trained_log_probs_are_those_of_transformers(family, rounding):
    ours = policy(family)
    compare(rounding, ours, rollouts(family))
    assert ours.ability.training == PASSES[family], ours.notes


@pytest.mark.parametrize("family", EXPERTS)
def test_so_are_those_of_mixtures_of_experts(family, rounding):
    ours = like(policy(EXPERTS[family]), model=str(standins.folder(family)))
    compare(rounding, ours, drawn(ours, reference.rows()))


def compare(rounding, ours, sampled, pictures=None):
    """pictures: PIL images of each rollout, those of its row if unset."""
    pictures = pictures or [row["images"] for row in sampled.prompts]
    rounding.same(
        lambda: reference.of_rollouts(ours, sampled, pictures),
        *(sampled.sampler_log_probs, ours(sampled).log_probs * sampled.mask),
    )


@pytest.mark.slow(after=2)
@families
def test_pictures_of_replies_are_read_as_transformers_reads_them(family, rounding):
    """Three episodes of different lengths at once, in a session that may keep keys and values."""
    ours, rows = policy(family), reference.rows()[:3]
    replies = [standins.picture(20 + 12 * number, 20, seed=9) for number in range(3)]
    with ours.session():
        contexts = ours.encode(rows)
        for number in range(3):
            turns = ours.draw(contexts, seeds=range(3), limits=[4, 2, 3])
            contexts = [own.with_turn(each) for own, each in zip(contexts, turns, strict=True)]
            if number < 2:
                contexts = [
                    ours.extend(
                        own, [{"role": "user", "content": [NOW, {**IMAGE, "image": shown}]}]
                    )
                    for own, shown in zip(contexts, replies, strict=True)
                ]
    pictures = [[*row["images"], own, own] for row, own in zip(rows, replies, strict=True)]
    compare(rounding, ours, ours.assemble(rows, contexts), pictures)


def test_attention_both_ways_is_noticed_without_sliding_windows_too(tmp_path):
    """A packed row has no mask that lets a picture's tokens attend to later ones."""
    standins.save("gemma3", tmp_path, layer_types=["full_attention"] * 2)
    ours = VisionLanguageModel(VisionSettings(model=str(tmp_path), max_new_tokens=6))
    ours.place("cpu")
    assert ours.ability.training == "cached", ours.notes


@families
def test_the_tower_learns_only_where_it_is_to(family):
    sampled = rollouts(family)
    frozen = policy(family)
    text = [frozen.causal.family.text_model(frozen.model), frozen.model.get_output_embeddings()]
    learned = {id(p) for p in frozen.model.parameters() if p.requires_grad}
    assert learned == {id(p) for part in text for p in part.parameters()}
    trained = like(frozen, vision="trained")
    (trained(sampled).log_probs * sampled.mask).sum().backward()
    assert not [
        n for n, p in trained.model.named_parameters() if p.requires_grad and p.grad is None
    ]


@families
def test_tokens_that_stand_for_pictures_and_videos_are_excluded(family):
    """From sampling as from the softmax: log-probs are compared among all others."""
    ours = policy(family)
    tokens = ours.tokenizer.convert_ids_to_tokens(sorted(ours.causal.family.excluded))
    assert set(tokens) == EXCLUDED.get(family, {"<image>"})


@families
def test_what_is_saved_generates_in_transformers_what_is_sampled_here(family, tmp_path):
    ours, row = policy(family), reference.rows()[2]
    ours.save_pretrained(tmp_path)
    inputs = reference.inputs(AutoProcessor.from_pretrained(tmp_path), row)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    never = sorted(ours.causal.family.excluded)
    answer = model.generate(**inputs, max_new_tokens=6, do_sample=False, suppress_tokens=never)
    ids = drawn(ours, [row], purpose="greedy").trajectory["completion_ids"][0].tolist()
    assert ids == answer[0, inputs["input_ids"].shape[1] :].tolist()


@families
def test_checkpoints_of_some_also_load_as_models_of_text(family):
    settings = Settings(model=str(standins.folder(family)))
    if family in TEXT_TOO:
        assert outline(settings, config_of(settings)).get_output_embeddings() is not None
        return
    with pytest.raises(UserError, match=r"policy\.model: cannot build a causal language model"):
        outline(settings, config_of(settings))


@families
def test_pictures_have_at_most_max_pixels(family):
    reader, picture = policy(family).causal.family, standins.picture(64, 32)
    if family in ONE_SIZE:
        with pytest.raises(UserError, match=r"policy\.max_pixels: models of the type"):
            reader.limits(None, TILE**2)
        return
    limits = reader.limits(None, TILE**2)
    assert len(reader.picture(picture, **limits)) <= TOKENS < len(reader.picture(picture))


@pytest.mark.parametrize("family", ["idefics3", "internvl"])
def test_less_than_a_tile_is_refused(family):
    reader = policy(family).causal.family
    with pytest.raises(UserError, match=r"policy\.max_pixels: 255 .* has 256 pixels"):
        reader.limits(None, TILE**2 - 1)
