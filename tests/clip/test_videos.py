"""Rewards for videos by models: CLIP's likeness of frames, and VideoReward with random weights."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tests.llm.vision import standins
from transformers import AutoProcessor, Qwen2VLForConditionalGeneration

from groupwise import testing
from groupwise_clip.frame_consistency import FrameConsistency
from groupwise_clip.video_reward import NORMS, TOKENS, VideoReward, merged, resized
from groupwise_messages.video import Video

PROMPTS = ["a red disk", "two dogs and a cat", "x"]
ROWS = [{"prompt": text} for text in PROMPTS]
INSTRUCTION = (
    "Is it clear? <|VQ_reward|> Does it move? <|MQ_reward|> Is it {text_prompt}? <|TA_reward|>"
)


def clip(seed, frames=4, size=(24, 40), rate=4.0):
    draw = np.random.default_rng(seed)
    return Video(draw.integers(0, 256, (frames, *size, 3), dtype=np.uint8), rate)


def still(frames=4):
    return Video(np.repeat(clip(0, 1).pixels, frames, axis=0))


# ---- frame_consistency


def consistency(folder, **options):
    return FrameConsistency(FrameConsistency.Config(model=str(folder), device="cpu", **options))


def test_consistency_is_the_mean_cosine_of_successive_frames(folder):
    reward, video = consistency(folder), clip(1, 3)
    features = reward.clip.image_features(list(video))
    expected = [float(a @ b) for a, b in pairwise(features)]
    values = reward(["p"] * 3, [video, still(), video[:1]])
    assert values == [pytest.approx(np.mean(expected)), pytest.approx(1.0), None]
    assert values[0] < 0.999
    (both_ends,) = consistency(folder, frames=2)(["p"], [video])
    assert both_ends == pytest.approx(float(features[0] @ features[2]))
    with pytest.raises(ValueError, match="completion 0: expected a video, found Image"):
        reward(["p"], [Image.new("RGB", (8, 8))])


def test_laws_of_frame_consistency(folder):
    """It is registered as "frame_consistency"."""
    clips = [clip(seed, 2 + seed % 3) for seed in range(6)]
    testing.check_reward(consistency(folder), ROWS, clips, group_size=2)


# ---- video_reward


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """(file, folder, model, head): a Qwen2-VL with three tokens more; in the file its LoRA is
    beside the weights, under PEFT's names and those of transformers of 2024."""
    folder = tmp_path_factory.mktemp("video")
    processor = AutoProcessor.from_pretrained(standins.folder("qwen2_vl"))
    model = Qwen2VLForConditionalGeneration.from_pretrained(standins.folder("qwen2_vl")).eval()
    processor.video_processor.patch_size = model.config.vision_config.patch_size
    processor.chat_template = processor.chat_template.replace("image", "video")
    processor.save_pretrained(folder)
    model.config.save_pretrained(folder)
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [*TOKENS]})
    model.resize_token_embeddings(len(processor.tokenizer))
    draw = torch.Generator().manual_seed(0)
    width = model.config.get_text_config().hidden_size
    head = torch.randn(3, width, generator=draw)
    state = {"base_model.model.rm_head.weight": head}
    for ours, weight in model.state_dict().items():
        name = ours.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        if name.endswith("q_proj.weight"):
            down, up = (
                0.1 * torch.randn(*size, generator=draw)
                for size in ((2, weight.shape[1]), (weight.shape[0], 2))
            )
            own = f"base_model.model.{name.removesuffix('.weight')}"
            state |= {f"{own}.lora_A.default.weight": down, f"{own}.lora_B.default.weight": up}
            state[f"{own}.base_layer.weight"] = weight.clone()
            weight.add_(2.0 * up @ down)  # in the model itself
        else:
            state[f"base_model.model.{name}"] = weight.clone()
    file = folder / "model.pth"
    torch.save(state, file)
    return file, folder, model, head


def video_reward(published, **options):
    file, folder, *_ = published
    settings = {"weights": str(file), "model": str(folder), "precision": "float32"}
    settings |= {"instruction": INSTRUCTION, "pixels": 56 * 56, "device": "cpu"}
    return VideoReward(VideoReward.Config.model_validate(settings | options))


def expected_scores(published, prompt, video):
    """By transformers' model with the LoRA in its weights, one video at a time."""
    _, folder, model, head = published
    processor = AutoProcessor.from_pretrained(folder)
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [*TOKENS]})
    text = INSTRUCTION.replace("{text_prompt}", prompt)
    chat = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": text}]}]
    inputs = processor(
        text=[processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)],
        videos=[torch.from_numpy(video.pixels.copy()).movedim(-1, 1)],
        return_tensors="pt",
        do_resize=False,
        do_sample_frames=False,
    )
    with torch.no_grad():
        states = model.model(**inputs).last_hidden_state[0]
    scores = {}
    for number, (aspect, (mean, std)) in enumerate(NORMS.items()):
        token = processor.tokenizer.convert_tokens_to_ids(f"<|{aspect}_reward|>")
        (state,) = states[inputs.input_ids[0] == token]
        scores[aspect] = (float(state @ head[number]) - mean) / std
    return scores


def test_scores_are_the_heads_numbers_at_its_tokens_and_the_lora_counts(published):
    videos = [clip(seed) for seed in range(3)]  # which are not resized
    expected = [expected_scores(published, *pair) for pair in zip(PROMPTS, videos, strict=True)]
    logged = {}
    for batch in (1, 3):
        reward = video_reward(published, batch=batch, pixels=24 * 40)
        values = reward(PROMPTS, videos, log_extra=logged.__setitem__)
        assert values == pytest.approx([sum(each.values()) for each in expected], abs=1e-3)
        for aspect in NORMS:
            assert logged[aspect] == pytest.approx([each[aspect] for each in expected], abs=1e-3)
    weighted = video_reward(published, aspects={"VQ": 1.0, "TA": 0.5}, pixels=24 * 40)
    assert weighted(PROMPTS[:1], videos[:1]) == [
        pytest.approx(expected[0]["VQ"] + 0.5 * expected[0]["TA"], abs=1e-3)
    ]
    without = video_reward(published, lora_scale=0.0, pixels=24 * 40)
    assert abs(without(PROMPTS[:1], videos[:1])[0] - sum(expected[0].values())) > 1e-2


def test_rewards_of_one_model_share_it_and_its_scores(published, monkeypatch):
    both = [video_reward(published, aspects={aspect: 1.0}) for aspect in ("VQ", "MQ")]
    for reward in both:
        reward.load()
    assert both[0]._scorer is both[1]._scorer
    videos = [clip(7), clip(8)]
    first = both[0](PROMPTS[:2], videos)
    monkeypatch.setattr(both[0]._scorer, "_scores", None)  # so that nothing can be computed
    assert both[1](PROMPTS[:2], videos) != first
    assert both[0](PROMPTS[:2], videos) == first
    assert both[0]([""], videos[:1]) == [None]


def test_laws_of_video_reward(published):
    """It is registered as "video_reward"."""
    clips = [clip(seed, 1 + seed, (24 + 8 * seed, 40)) for seed in range(6)]
    testing.check_reward(video_reward(published), ROWS, clips, group_size=2)


@pytest.mark.parametrize(
    ("frames", "rate", "seen"), [(53, 8, 14), (81, 16, 10), (5, 8, 4), (3, 8, 2), (1, 8, 1)]
)
def test_frames_are_two_a_second_an_even_number_from_four(published, frames, rate, seen):
    reward = video_reward(published)
    reward.load()
    shown = reward._scorer._frames(clip(0, frames, (24, 24), rate))
    assert len(shown) == seen


@pytest.mark.parametrize(
    ("size", "expected"),
    [((480, 832), (336, 588)), ((240, 416), (252, 420)), ((32, 32), (336, 336))],
)
def test_frames_are_resized_by_the_rule_of_qwen2_vl(size, expected):
    """As by qwen-vl-utils' `smart_resize` with 100,352 to 200,704 pixels."""
    assert resized(*size, 200_704) == expected
    assert resized(1, 1000, 200_704)[0] == 28  # no side vanishes


def test_what_is_no_video_reward_is_refused(published, tmp_path):
    with pytest.raises(ValueError, match=r"<\|VQ_reward\|>, .* once each, in this order"):
        video_reward(published, instruction="Rate {prompt}. <|VQ_reward|>")
    with pytest.raises(ValueError, match=r"a text with \{text_prompt\}"):
        video_reward(published, instruction="".join(TOKENS))
    save_file({"lm_head.weight": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"does not hold VideoReward: no rm_head"):
        video_reward(published, weights=str(tmp_path / "x.safetensors")).load()
    with pytest.raises(ValueError, match="completion 0: expected a video, found Image"):
        video_reward(published)(["p"], [Image.new("RGB", (8, 8))])


def test_a_state_without_a_lora_is_taken_as_it_is():
    weight = torch.ones(2, 2)
    assert merged({"model.x.weight": weight, "rm_head.weight": weight}, 2.0).keys() == {
        *("model.x.weight", "rm_head.weight")
    }
