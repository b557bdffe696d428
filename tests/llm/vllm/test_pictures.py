"""A vision-language policy sampled by an engine: pictures, what the engine reads of them, turns."""

import base64
import io
import json
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from PIL import Image
from tests.llm.vision import standins

from groupwise.kit.errors import UserError
from groupwise_llm.settings import Lora
from groupwise_llm.vision_language_model import VisionLanguageModel
from groupwise_llm.vllm.launch import Launch
from groupwise_llm.vllm.prompt import prompt_of
from groupwise_llm.vllm.sampler import VLLM

GENERATE = "inference/v1/generate"
BLOCK = {"type": "image"}
PICTURES = [standins.picture(32, 16), standins.picture(16, 24, 1)]


def asked(*parts):
    """A row: texts, and a place for each of the pictures that follow."""
    blocks = [{"type": "text", "text": p} if isinstance(p, str) else BLOCK for p in parts]
    images = [p for p in parts if not isinstance(p, str)]
    return {"prompt": [{"role": "user", "content": blocks}], "images": images}


ROWS = [
    asked("What is it?", PICTURES[0]),
    asked(PICTURES[1], "and\n", PICTURES[0], PICTURES[0]),
    {"prompt": [{"role": "user", "content": "Nothing to see."}]},
]


@pytest.fixture(scope="module")
def policy():
    """policy(**settings) -> a new policy of the Qwen2.5-VL architecture; all have the ability that
    the first one has shown."""
    known = []

    def make(**settings):
        model = str(standins.folder("qwen2_5_vl"))
        torch.manual_seed(0)
        config = VisionLanguageModel.Config(model=model, **{"max_new_tokens": 3, **settings})
        made = VisionLanguageModel(config)
        with patch.object(made, "_probed", lambda: known[0]) if known else nullcontext():
            made.place("cpu")
        known.append(made.ability)
        return made

    return make


@pytest.fixture
def both(policy, engine, sampler):
    """both(policy={...}, facts={...}) -> a policy, a server, and a sampler that has sent the
    policy's weights to the server."""

    def make(settings=None, facts=None):
        own, server = policy(**(settings or {})), engine("qwen2_5_vl", **(facts or {}))
        vllm = sampler(own, server)
        vllm.follow(own, "policy", 0)
        return own, server, vllm

    return make


def same_log_probs(rounding, policy, rollouts):
    """The server's log-probs are the policy's."""
    expected = rollouts.sampler_log_probs * rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs * rollouts.mask, expected)


def change(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)


def test_completions_and_log_probs_are_those_of_the_policy(both, rounding):
    policy, server, vllm = both()
    greedy = {"group_size": 1, "seeds": [1, 2, 3], "purpose": "greedy"}
    assert vllm.sample(ROWS, **greedy).completions == policy.sample(ROWS, **greedy).completions
    rollouts = vllm.sample(ROWS, group_size=2, seeds=range(6))
    same_log_probs(rounding, policy, rollouts)
    body = next(
        b for p, b in server.calls if p == GENERATE and len(b.get("content_parts", [])) == 3
    )
    tokenizer = server.tokenizer
    assert body["token_ids"].count(tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 3
    assert max(body["token_ids"]) < len(tokenizer)
    for part, picture in zip(body["content_parts"], ROWS[1]["images"], strict=True):
        image = Image.open(io.BytesIO(base64.b64decode(part["url"].partition(",")[2])))
        assert image.tobytes() == picture.tobytes()


@pytest.mark.parametrize("kind", standins.STAND_INS)
def test_an_engine_gets_the_prompt_before_a_processor_expands_it(kind):
    if kind == "smolvlm":
        pytest.importorskip("num2words")
    folder = standins.folder(kind)
    config = VisionLanguageModel.Config(model=str(folder))
    codec = VisionLanguageModel.make_codec(config, None, [0], positions=None)
    family = codec.reader.family
    for row, context in zip(ROWS, codec.encode(ROWS), strict=True):
        prompt = prompt_of(context, family)
        text = family.processor.apply_chat_template(row["prompt"], add_generation_prompt=True)
        begin = {"add_special_tokens": kind == "llava_next"}  # its template does not
        assert [*prompt.ids] == family.processor.tokenizer(text, **begin)["input_ids"]
        assert len(prompt.pictures) == len(row.get("images", []))
        if prompt.pictures:
            images = [row["images"]]
            (whole,) = family.processor(text=[text], images=images, **begin)["input_ids"]
            assert [*prompt.expanded] == whole


def test_a_picture_is_written_once_for_all_turns_and_as_it_was_reduced(policy, monkeypatch):
    written, save = [], Image.Image.save

    def counting(image, *rest, **options):
        written.append(image.size)
        save(image, *rest, **options)

    monkeypatch.setattr(Image.Image, "save", counting)
    own = policy(max_pixels=512)
    large = {"prompt": ROWS[0]["prompt"], "images": [standins.picture(128, 32)]}
    (context,) = own.encode([large])
    before = prompt_of(context, own.causal.family)
    (turn,) = own.draw([context], seeds=[0], limits=[2])
    after = prompt_of(own.with_turn(context, turn), own.causal.family)
    assert before.pictures == after.pictures
    assert written == [(40, 8)]


def test_an_engine_that_reads_pictures_otherwise_is_refused(both):
    _, server, vllm = both()
    server.processor.image_processor.size = {"shortest_edge": 64, "longest_edge": 256}
    with pytest.raises(UserError, match=r"as 34 tokens, and the policy as 40: .*--mm-processor"):
        vllm.sample(ROWS[:1], group_size=1, seeds=[0])
    server.faults[GENERATE] = lambda _: (200, {"choices": []})
    with pytest.raises(UserError, match="does not say how it reads pictures"):
        vllm.sample(ROWS[:1], group_size=1, seeds=[0])
    with pytest.raises(UserError, match=r"takes no pictures; .*without --language-model-only"):
        both(facts={"text_only": True})


def test_tokens_of_pictures_are_never_drawn(both, rounding):
    """Though the model finds them likeliest."""
    policy, _, vllm = both()
    head = policy.model.get_output_embeddings().weight
    excluded = sorted(policy.causal.family.excluded)
    with torch.no_grad():
        head[excluded] = 30 * head[10]
    vllm.follow(policy, "policy", 1)
    rollouts = vllm.sample(ROWS, group_size=3, seeds=range(9))
    same_log_probs(rounding, policy, rollouts)
    assert not {*excluded} & {t for own in rollouts.facts["completion_ids"] for t in own}


@pytest.mark.slow
def test_features_of_an_older_tower_are_dropped(both, rounding):
    policy, _, vllm = both({"vision": "trained"})
    assert not vllm.follows_in_flight
    for version in (1, 2):
        change(policy, version)
        vllm.follow(policy, "policy", version)
        same_log_probs(rounding, policy, vllm.sample(ROWS, group_size=1, seeds=range(3)))


def test_pictures_of_all_turns_are_sent(both, rounding):
    policy, server, vllm = both({"max_new_tokens": 150}, {"max_tokens": 300})
    (context,) = vllm.encode(ROWS[:1])
    seeds, sent = iter(range(9)), []
    for picture in (PICTURES[1], PICTURES[0]):
        (turn,) = vllm.draw([context], seeds=[next(seeds)], limits=[4])
        content = [{"type": "image", "image": picture}, {"type": "text", "text": "and this?"}]
        context = vllm.extend(vllm.with_turn(context, turn), [{"role": "user", "content": content}])
        sent.append(len(server.calls[-1][1]["content_parts"]))
    (turn,) = vllm.draw([context], seeds=[next(seeds)], limits=[4])
    assert [*sent, len(server.calls[-1][1]["content_parts"])] == [1, 2, 3]
    rollouts = vllm.assemble(ROWS[:1], [vllm.with_turn(context, turn)])
    assert int(rollouts.mask.sum()) == 12
    same_log_probs(rounding, policy, rollouts)


@pytest.mark.slow
def test_adapters_are_sent_alone_unless_the_tower_has_some(
    policy, engine, sampler, capsys, rounding
):
    server = engine("qwen2_5_vl", lora_rank=8)
    for vision in ("frozen", "trained"):
        own = policy(lora=Lora(rank=2), vision=vision)
        change(own, 0)
        vllm = sampler(own, server)
        vllm.follow(own, "policy", 1)
        same_log_probs(rounding, own, vllm.sample(ROWS, group_size=1, seeds=range(3)))
        assert ("collective_rpc" in server.paths()) == (vision == "trained")
    assert "to the language model alone, and policy.vision is trained" in capsys.readouterr().err


def test_a_server_that_the_run_starts_has_the_limits_of_pictures(policy):
    config = VLLM.Config(start={})
    own = Launch(config.start, policy(max_pixels=512), config)
    options = own._arguments(1)
    limits = json.loads(options[options.index("--mm-processor-kwargs") + 1])
    assert limits == {"size": {"shortest_edge": 64, "longest_edge": 512}}
    assert "--mm-processor-kwargs" not in Launch(config.start, policy(), config)._arguments(1)
