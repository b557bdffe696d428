"""Prompts: their length limit, longer ones skipped or cut, chat prefixes, messages in parts."""

import shutil

import pytest
from tests.effort import Effort
from tests.llm.conftest import placed
from transformers import AutoTokenizer, LlamaTokenizerFast

from groupwise.kit.errors import UserError
from groupwise.prompt_source import PlacedRow
from groupwise_llm.codec.prompts import Prompts
from groupwise_llm.policy import LanguageModel
from groupwise_llm.settings import Settings

LONG = {"prompt": "The start of it. " + "x" * 110}
SHORT = {"prompt": "Hi"}


def chat(text, *, reply=None):
    messages = [{"role": "user", "content": text}]
    return {
        "prompt": messages
        if reply is None
        else [*messages, {"role": "assistant", "content": reply}]
    }


# ---- too long


@pytest.mark.parametrize("row", [LONG, chat("x" * 110)], ids=["text", "chat"])
def test_a_prompt_that_is_too_long_ends_the_run_before_it_starts(make, saved, row):
    policy = make()
    with pytest.raises(UserError) as raised:
        policy.check_prompts(iter([SHORT, row]))
    message = str(raised.value)
    length = len(policy.tokenizer("user:" + "x" * 110 + "<|turn|>assistant:")["input_ids"])
    expected = {
        "text": f"a prompt of {17 + 110} tokens is longer than the 116 that max_new_tokens=12 "
        "leaves of the 128 positions",
        "chat": f"a prompt of {length} tokens",
    }["text" if row is LONG else "chat"]
    assert message.startswith(expected)
    for option in ("policy.long_prompts: skip", "policy.long_prompts: cut", "max_new_tokens"):
        assert option in message
    assert str(row["prompt"])[:20].strip("[]{'") in message
    # `examine` gives the same error from the tokenizer and the configuration.
    with pytest.raises(UserError) as examined:
        LanguageModel.examine(policy.config, [SHORT, row])
    assert str(examined.value) == message


@pytest.mark.parametrize(("kind", "action"), [("skip", "left out"), ("cut", "cut to their last")])
def test_rows_that_are_skipped_or_cut_are_counted(make, kind, action):
    policy = make(long_prompts=kind)
    rows = [SHORT, LONG, chat("x" * 110), SHORT]
    expected = f"2 of 4 prompts are longer than 116 tokens and are {action}"
    policy.check_prompts(rows)
    assert any(note.startswith(expected) for note in policy.notes)
    placed = [PlacedRow(row, f"prompts, row {n}") for n, row in enumerate(rows)]
    (note,) = LanguageModel.examine(policy.config, placed)
    assert note.startswith(expected)
    assert note.endswith(": prompts, row 1, prompts, row 2")
    assert [policy.skips(row) for row in rows] == [kind == "skip" and r != SHORT for r in rows]


def test_a_prompt_that_is_cut_keeps_its_last_tokens(make):
    policy = make(long_prompts="cut", max_prompt_tokens=20)
    rollouts = policy.sample([LONG, SHORT], group_size=1, seeds=[1, 2])
    complete = policy.tokenizer(LONG["prompt"])["input_ids"]
    ids = [ids.tolist() for ids in rollouts.trajectory["prompt_ids"]]
    assert ids == [complete[-20:], policy.tokenizer("Hi")["input_ids"]]


def test_the_error_names_max_prompt_tokens(make):
    with pytest.raises(UserError, match=r"127 tokens is longer than policy.max_prompt_tokens: 100"):
        make(max_prompt_tokens=100).check_prompts([LONG])


def test_max_new_tokens_that_leave_no_room_for_prompts_are_refused(make):
    with pytest.raises(UserError, match=r"leaves no room for a prompt: .* has 128 positions"):
        make(max_new_tokens=128)


def test_an_empty_prompt_is_refused_before_the_run(make):
    with pytest.raises(UserError, match="a prompt has no tokens"):
        make().check_prompts([SHORT, {"prompt": ""}])


@pytest.mark.parametrize("prompt", [None, 7, ["Hi"]])
def test_a_prompt_that_is_neither_text_nor_messages_is_refused(make, prompt):
    with pytest.raises(UserError, match="a text or a list of messages, found"):
        make().check_prompts([SHORT, {"prompt": prompt}])


def test_half_of_a_surrogate_pair_is_encoded_as_the_replacement_character(make):
    """Tokenizers refuse it, and a tool may have cut its answer within an emoji."""
    policy, half = make(), "\ud83d"
    for row, same in (({"prompt": half}, {"prompt": "\ufffd"}), (chat(half), chat("\ufffd"))):
        rollouts = [policy.sample([own], group_size=1, seeds=[1]) for own in (row, same)]
        ours, theirs = (own.trajectory["prompt_ids"][0].tolist() for own in rollouts)
        assert ours == theirs
    assert policy.prompts.lengths([{"prompt": half * 200}]) == [600]  # a token a byte


def test_checking_many_short_prompts_needs_no_tokenizer(make):
    tokenizer = make().tokenizer
    prompts = Prompts(tokenizer, Settings(model="m", max_new_tokens=8), positions=4096)
    calls = []

    def counted(texts, **options):
        calls.append(len(texts))
        return tokenizer(texts, **options)

    counted.chat_template = None
    prompts.tokenizer = counted
    rows = [{"prompt": f"What is {n} + {n}?"} for n in range(50_000)]
    rows += [{"prompt": "word " * 500} for _ in range(5)]
    with Effort() as effort:
        assert prompts.check(rows) == []
    # Prompts with few characters fit in any case, so only the long ones are tokenized.
    assert sum(calls) == 5
    assert effort.cpu < 2.0


# ---- tokens that the tokenizer adds


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("begin", [True, False])
def test_a_text_is_not_ended_before_it_is_continued(tmp_path, begin, end):
    """`add_eos_token: true`, as in some Llama and CodeLlama checkpoints."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    LlamaTokenizerFast(
        vocab=vocabulary, merges=[("\u2581", "a")], add_bos_token=begin, add_eos_token=end
    ).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    prompts = Prompts(tokenizer, Settings(model="m"), positions=None)
    first = [1] * begin
    assert tokenizer("ab")["input_ids"] == [*first, 6, 5, *[2] * end]
    assert prompts.encode({"prompt": "ab"}).tolist() == [*first, 6, 5]
    # An end token that the prompt itself contains is left as it is.
    assert prompts.encode({"prompt": "ab</s>"}).tolist() == [*first, 6, 5, 2]
    assert prompts.encode(chat("ab")).tolist() == [6, 5]


@pytest.mark.parametrize("count", [1, 2])
def test_a_text_that_begins_already_gets_no_second_beginning(tmp_path, count):
    """As one that a chat template has written."""
    prompts = beginning(tmp_path)
    assert prompts.encode({"prompt": "ab"}).tolist() == [1, 6, 5]
    row = {"prompt": "<s>" * count + "ab" * 20}
    ids = prompts.encode(row).tolist()
    assert ids == prompts.tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
    assert ids[: count + 1].count(1) == count
    assert prompts.lengths([row]) == [len(ids)]


def beginning(folder):
    """Prompts of a tokenizer that begins every text with <s>."""
    vocabulary = {
        p: n for n, p in enumerate(["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a"])
    }
    merges = [("\u2581", "a")]
    LlamaTokenizerFast(vocab=vocabulary, merges=merges, add_bos_token=True).save_pretrained(folder)
    return Prompts(AutoTokenizer.from_pretrained(folder), Settings(model="m"), positions=600)


# ---- tokens that the model has no embedding for


@pytest.fixture
def larger(make, saved, tmp_path):
    """A policy whose tokenizer has two tokens more than its model, as after `add_tokens` alone."""
    folder = tmp_path / "larger"
    shutil.copytree(saved("qwen2"), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<|more|>", "<|other|>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    return LanguageModel(Settings(model=str(folder), max_new_tokens=12))


@pytest.mark.parametrize(
    "prompt", ["Say <|other|>", [{"role": "user", "content": "Say <|other|>"}]]
)
def test_a_token_without_an_embedding_is_refused_with_its_row(larger, prompt):
    """Also in prompts so short that their length needs no tokenizer; others are allowed."""
    rows = [
        PlacedRow(row, f"prompts, row {n}") for n, row in enumerate([SHORT, {"prompt": prompt}])
    ]
    message = r"prompts, row 1: the prompt has the token '<\|other\|>', \d+, for which"
    with pytest.raises(UserError, match=message):
        LanguageModel.examine(larger.config, rows)
    assert LanguageModel.examine(larger.config, rows[:1]) == []
    placed(larger, "cpu")
    with pytest.raises(UserError, match=message):
        larger.check_prompts(rows)
    larger.check_prompts(rows[:1])


# ---- a chat prefix to continue


def test_a_final_assistant_message_is_continued(make):
    policy = make()
    rollouts = policy.sample([chat("3+4?", reply="The sum")], group_size=2, seeds=[1, 2])
    ids = rollouts.trajectory["prompt_ids"][0].tolist()
    assert ids == policy.tokenizer("user:3+4?<|turn|>assistant:The sum")["input_ids"]
    # Rewards get the sampled text without the prefix, as in TRL.
    (message,) = rollouts.completions[0]
    written = rollouts.facts["completion_ids"][0]
    assert message["role"] == "assistant"
    assert message["content"] == policy.completions.text(written)


def test_chat_template_options_can_start_a_new_message_instead(make):
    options = {"continue_final_message": False, "add_generation_prompt": True}
    policy = make(chat_template=options)
    rollouts = policy.sample([chat("3+4?", reply="No.")], group_size=1, seeds=[1])
    ids = rollouts.trajectory["prompt_ids"][0].tolist()
    expected = "user:3+4?<|turn|>assistant:No.<|turn|>assistant:"
    assert ids == policy.tokenizer(expected)["input_ids"]


# ---- messages in parts

JOINED = "{% for m in messages %}{{ 'user:' + m['content'] }}{% endfor %}"
PRINTED = "{% for m in messages %}user:{{ m['content'] }}{% endfor %}"
IN_PARTS = (
    "{% for m in messages %}user:{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}"
)
PARTS = [{"type": "text", "text": "3+"}, {"type": "text", "text": "4?"}]


@pytest.mark.parametrize("template", [JOINED, PRINTED, IN_PARTS])
def test_text_parts_of_a_message_are_joined(make, template):
    policy = make(model={"template": template})
    row = {"prompt": [{"role": "user", "content": PARTS}]}
    policy.check_prompts([row])
    rollouts = policy.sample([row], group_size=1, seeds=[1])
    ids = rollouts.trajectory["prompt_ids"][0].tolist()
    assert ids == policy.tokenizer("user:3+4?")["input_ids"]


@pytest.mark.parametrize("template", [JOINED, IN_PARTS])
def test_parts_that_are_not_text_are_refused(make, template):
    row = {"prompt": [{"role": "user", "content": [*PARTS, {"type": "image", "url": "a.png"}]}]}
    with pytest.raises(UserError, match=r"reads text alone: .*found {'type': 'image'"):
        make(model={"template": template}).check_prompts([row])


def test_a_template_that_fails_is_a_user_error(make):
    with pytest.raises(UserError, match="its chat template refuses the prompt: "):
        make(model={"template": "{{ messages[0]['content'] + 1 }}"}).check_prompts([chat("Hi")])


def test_counting_the_tokens_of_a_chat_renders_it_once(make, monkeypatch):
    policy, rendered = make(), []
    render = policy.tokenizer.apply_chat_template

    def counted(messages, **options):
        rendered.append(messages)
        return render(messages, **options)

    monkeypatch.setattr(policy.tokenizer, "apply_chat_template", counted)
    assert policy.prompts.lengths([chat("x" * 90)]) == [len("user:assistant:") + 90 + 1]
    assert len(rendered) == 1
