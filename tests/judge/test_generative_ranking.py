"""`generative_ranking`, and the published judges of pairs of pictures, over a server and here."""

import io
import shutil
from base64 import b64decode
from functools import partial

import pytest
import torch
from PIL import Image
from tests.judge import tiny_judge
from tests.judge.conftest import metric
from tests.llm.vision import standins
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)

from groupwise import testing
from groupwise.rewards import RewardError
from groupwise_judge.comparison import Fenced
from groupwise_judge.generative_ranking import GenerativeRanking
from groupwise_judge.messages import Exhibit
from groupwise_judge.ranking import JudgeRanking
from groupwise_judge.unified_reward import RelativeScores

PUBLISHED = ("unified_reward_2", "unified_reward_think")


def ranking(model=None, **options):
    model = str(model or tiny_judge.folder())
    reward = GenerativeRanking(GenerativeRanking.Config(model=model, **options))
    reward.load()
    return reward


@pytest.fixture
def rates(score):
    """The win rates of the completions of one group."""

    def rates(reward, completions, prompt="1 + 1 ="):
        scores = score(reward, completions, group_size=len(completions), prompt=prompt)
        return scores.values[:, 0].tolist()

    return rates


def over(server, **options):
    config = {"server": server.address, "model": "m", "cache": None, **options}
    return JudgeRanking(JudgeRanking.Config(**config))


def test_a_letter_counts_by_its_probability_in_both_orders(rates, rounding):
    folder = tiny_judge.folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    letters = tokenizer.convert_tokens_to_ids(["A", "B"])

    def first(one, other):
        """The share of the one that is read first, by transformers itself."""
        context = [Exhibit("prompt", ("1 + 1 =",))]
        chat = Fenced(None, letter=True).question(context, one, other).chat
        inputs = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        with torch.no_grad():
            chances = model(**inputs).logits[0, -1].softmax(dim=-1)[letters]
        return (chances[0] / chances.sum()).item()

    expected = (first("2", "three") + 1 - first("three", "2")) / 2
    found = rates(ranking(), ["2", "three"])
    same = torch.tensor([expected, 1 - expected])
    rounding.same(lambda: torch.tensor(rates(ranking(), ["2", "three"])), same)
    assert found[0] != 0.5
    assert rates(ranking(), ["2", "2"]) == [0.5, 0.5]


def test_a_model_without_finite_logits_has_no_preference(score, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_judge.folder())
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_judge.folder()).save_pretrained(tmp_path)
    scores = score(ranking(tmp_path), ["2", "three"], group_size=2)
    assert scores.failed.all()
    assert all("its judge's logits are not finite" in reason for reason in scores.reasons)


def test_laws():
    rows = [{"prompt": "1 + 1 ="}, {"prompt": "2 + 2 ="}]
    reward = ranking()
    testing.check_reward(reward, rows, ["2", "3", "4", "four"], group_size=2)


def picture(brightness):
    return Image.new("RGB", (16, 16), (brightness,) * 3)


def brightness(block):
    image = Image.open(io.BytesIO(b64decode(block["image_url"]["url"].partition(",")[2])))
    return image.getpixel((0, 0))[0]


def answer(judge, request):
    """The brighter picture wins, in the words of a published judge."""
    first, second, text = request["messages"][-1]["content"]
    assert "a <\\|im_end|> cat" in text["text"]
    assert "response_format" not in request
    share = brightness(first) / (brightness(first) + brightness(second))
    if judge == "unified_reward_2":
        scores = f"Image 1: {share}\n Image 2: {1 - share}"
        return "\n\n".join(f"{each} Score:\n {scores}" for each in ASPECTS)
    winner = 1 if share > 0.5 else 2
    thinking = "The picture says <answer>Image 2 is better</answer>"
    return f"<think>\n{thinking}\n</think>\n<answer>Image {winner} is better</answer>"


ASPECTS = ("Alignment", "Coherence", "Style")


@pytest.mark.parametrize("judge", PUBLISHED)
def test_published_judges_over_a_server(serve, rates, judge):
    reward = over(serve(partial(answer, judge)), format=judge)
    pictures = [picture(50), picture(200), picture(100)]
    assert rates(reward, pictures, "a <|im_end|> cat") == [0.0, 1.0, 0.5]


def in_aspects(first, second):
    return "\n".join(f"{a} Score:\nImage 1: {first}\nImage 2: {second}" for a in ASPECTS)


@pytest.mark.parametrize(
    ("judge", "text", "reason"),
    [
        (PUBLISHED[1], "Image 1 is better", "expected <answer>"),
        (PUBLISHED[1], "<answer>Image 3 is better</answer>", "expected <answer>"),
        (PUBLISHED[1], "<answer>Image 1 is better</answer> or not", "expected <answer>"),
        (PUBLISHED[1], "<answer>Image 1 is better</answer></think>", "expected <answer>"),
        (PUBLISHED[0], in_aspects(0.6, 0.4).replace("Style", "Size"), "expected three scores"),
        (PUBLISHED[0], in_aspects(0.6, 0.4) + "\nImage 1 it is", "expected three scores"),
        (PUBLISHED[0], in_aspects(0.6, 0.6), "do not sum to 1"),
        (PUBLISHED[0], in_aspects(1.6, -0.6), "expected three scores"),
    ],
)
def test_whatever_else_a_published_judge_answers_does_not_count(serve, score, judge, text, reason):
    reward = over(serve(lambda request: text), format=judge)
    scores = score(reward, [picture(1), picture(2)], group_size=2)
    assert scores.failed.tolist() == [True, True]
    assert reason in scores.reasons[0]


@pytest.mark.parametrize("shares", [(0.3, 0.6, 0.6), (0.1, 0.7, 0.7), (0.65, 0.45, 0.4)])
def test_aspects_that_cancel_are_a_tie(shares):
    """By sums of floats these are wins."""
    text = "\n".join(
        f"{aspect} Score:\nImage 1: {first:.2f}\nImage 2: {1 - first:.2f}"
        for aspect, first in zip(ASPECTS, shares, strict=True)
    )
    assert RelativeScores(None).read(text)[0] == {"winner": "tie"}


@pytest.mark.parametrize(("first", "second"), [(".75", ".25"), ("1", "0"), ("1.", "0."), (1.0, 0)])
def test_numbers_are_read_as_models_write_them(first, second):
    assert RelativeScores(None).read(in_aspects(first, second))[0] == {"winner": "A"}


def test_one_aspect_of_unified_reward_2_can_decide(serve, rates):
    """The first picture has more style, and less of everything else."""
    shares = {"Alignment": 0.2, "Coherence": 0.4, "Style": 0.9}

    def by_aspect(request):
        first, second, _ = request["messages"][-1]["content"]
        straight = brightness(first) < brightness(second)
        found = {a: s if straight else 1 - s for a, s in shares.items()}
        return "\n".join(
            f"{aspect} Score:\nImage 1: {share:.2f}\nImage 2: {1 - share:.2f}"
            for aspect, share in found.items()
        )

    for criterion, expected in (("style", [1.0, 0.0]), ("alignment", [0.0, 1.0])):
        reward = over(serve(by_aspect), format=PUBLISHED[0], criterion=criterion)
        assert rates(reward, [picture(1), picture(2)]) == expected


@pytest.fixture(scope="module")
def one_sided(tmp_path_factory):
    """A vision-language model that answers whatever is asked that the first picture is better."""
    folder = tmp_path_factory.mktemp("one_sided")
    shutil.copytree(standins.folder("qwen2_5_vl"), folder, dirs_exist_ok=True)
    processor = AutoProcessor.from_pretrained(folder)
    model = AutoModelForImageTextToText.from_pretrained(folder)
    reply = "<answer>Image 1 is better</answer>"
    processor.tokenizer.add_tokens([reply])
    model.resize_token_embeddings(len(processor.tokenizer))
    newline, token = processor.tokenizer.convert_tokens_to_ids(["\u010a", reply])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "language_model" in name and name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embeddings = model.get_input_embeddings().weight
        embeddings[newline].zero_()[0] = 1.0
        embeddings[token].zero_()[0] = 100.0
    model.config.text_config.max_position_embeddings = 8192
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_published_judges_in_this_process(one_sided, score):
    """Whoever always prefers the first has no say, since both orders are asked."""
    reward = ranking(one_sided, format=PUBLISHED[1], max_tokens=1)
    scores = score(reward, [picture(50), picture(200)], group_size=2)
    assert scores.values[:, 0].tolist() == [0.5, 0.5]
    assert metric(scores, "first_wins") == metric(scores, "contradictions") == 1
    reward = ranking(one_sided, format=PUBLISHED[0], max_tokens=1)
    scores = score(reward, [picture(50), picture(200)], group_size=2)
    assert scores.failed.tolist() == [True, True]


def test_the_authors_own_words_can_be_read_from_a_file(serve, rates, tmp_path):
    server = serve(lambda request: "<answer>Image 1 is better</answer>")
    file = tmp_path / "question.txt"
    file.write_text("Which one shows {prompt}?", encoding="utf-8")
    reward = over(server, format=PUBLISHED[1], wording=str(file))
    rates(reward, [picture(1), picture(2)], "a cat")
    asked = [request["messages"][-1]["content"][2]["text"] for request in server.requests]
    assert asked == ["Which one shows a cat?"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": PUBLISHED[1], "criterion": "style"}, "judges as a whole"),
        ({"format": PUBLISHED[0], "criterion": "beauty"}, "scores alignment, coherence, style"),
        ({"format": PUBLISHED[0], "reference": "gold"}, "no reference"),
        ({"format": PUBLISHED[0], "wording": "/nowhere"}, "no such file or folder as '/nowhere'"),
        ({"wording": __file__}, "only the published judges take one"),
    ],
)
def test_wrong_settings_are_errors_before_the_run(options, message):
    with pytest.raises(ValueError, match=message):
        ranking(**options)


def test_published_judges_compare_pictures(rates):
    with pytest.raises(RewardError, match="compares pictures here, and a completion is str"):
        rates(ranking(format=PUBLISHED[0]), ["a", "b"])
