"""Suffixes: what templates put after a turn, as ids, also where they rewrite earlier turns."""

import re
from importlib import resources

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from groupwise.kit.errors import UserError
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.codec.suffixes import Suffixes
from groupwise_llm.settings import Settings

FUNCTION = {
    "name": "add",
    "description": "adds",
    "parameters": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER = {"role": "user", "content": "3+4?"}
REPLY = {"role": "tool", "name": "add", "content": "7"}
ROW = {"prompt": [USER], "tools": TOOLS}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ '<|begin|>' }}{% for m in messages %}{{ '<|header|>' + m['role'] + '<|/header|>\n\n' + "
    "m['content'] | trim + '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"
)
REWRITES = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
NUMBERED = CHATML.replace("'<|im_start|>'", "'<|im_start|>' + (messages | length) | string")
LEAVES_OUT = CHATML.replace(
    "%}{{ '<|im_start|>'", "%}{% if m['role'] != 'tool' %}{{ '<|im_start|>'", 1
)
LEAVES_OUT = LEAVES_OUT.replace("{% endfor %}", "{% endif %}{% endfor %}")
OTHER_END = CHATML.replace("'<|im_end|>\n'", "('<|end|>' if loop.last else '<|im_end|>') + '\n'")
FORGETS_OPENING = CHATML.replace("assistant\n'", "assistant\n<think>\n\n</think>\n\n'").replace(
    "m['content']", "m['content'].replace('<think>\n\n</think>\n\n', '')"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>"]
DEEPSEEK = "<｜end▁of▁sentence｜>"  # noqa: RUF001
SPECIAL += [DEEPSEEK, "<|call|>", "<|return|>", "<|observation|>", "<|user|>", "<|assistant|>"]


@pytest.fixture
def codec(make):
    """codec(template, *ends, **options) -> a codec; ends: of the texts that end a turn."""
    tokenizer = make().tokenizer

    def build(template, *ends, **options):
        file = resources.files("trl") / "chat_templates" / f"{template}.jinja"
        tokenizer.chat_template = template if "{" in template else file.read_text()
        tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
        ids = tokenizer.convert_tokens_to_ids(["<|end|>", *ends])
        settings = Settings(model="m", chat_template=options, max_new_tokens=1000)
        return Codec(tokenizer, settings, ids, positions=None)

    return build


def turn(codec, text):
    (ids,) = codec.tokenizer([text], add_special_tokens=False)["input_ids"]
    return Turn(ids=tuple(ids), text=codec.completions.text(ids), ended="stop")


def extended(codec, text, replies=(REPLY,), row=ROW):
    """The text of a conversation whose turn is this text, before the next turn."""
    (context,) = codec.encode([row])
    context = codec.extend(context.with_turn(turn(codec, text)), list(replies))
    return codec.tokenizer.decode(context.ids), context


# ---- the same text as by rendering everything


@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "<|eot|>")])
@pytest.mark.parametrize("ended", [True, False])
def test_the_conversation_is_the_template_s_own(codec, template, end, ended):
    own = codec(template, end)
    text, context = extended(own, "I add." + end * ended)
    messages = [USER, {"role": "assistant", "content": "I add."}, REPLY]
    expected = own.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, tools=TOOLS
    )
    assert text == expected
    assert context.messages == tuple(messages)
    assert context.decisions.count(True) == len("I add.") + ended
    whole = own.tokenizer(expected, add_special_tokens=False)["input_ids"]
    assert context.ids.tolist() == whole
    # And another turn, then a user, and several replies.
    context = own.extend(context.with_turn(turn(own, "Seven." + end)), [USER])
    context = own.extend(context.with_turn(turn(own, "Again")), [REPLY, {**REPLY, "content": "8"}])
    assert own.tokenizer.decode(context.ids) == own.tokenizer.apply_chat_template(
        list(context.messages), tokenize=False, add_generation_prompt=True, tools=TOOLS
    )


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("qwen2_5", "<|im_end|>"),
        ("qwen3_instruct_2507", "<|im_end|>"),
        ("qwen3_5_think", "<|im_end|>"),
        ("lfm2", "<|im_end|>"),
        ("nemotron_3_nano", "<|im_end|>"),
        ("llama3_2", "<|eot_id|>"),
    ],
)
def test_published_templates(codec, template, end):
    SPECIAL.append(end)
    own = codec(template, end)
    (context,) = own.encode([ROW])
    opened = "<think>\n" if own.tokenizer.decode(context.ids).endswith("<think>\n") else ""
    drawn = ("Sum.\n</think>\n\n" if opened else "") + "Seven"
    text, context = extended(own, drawn + end)
    messages = [USER, {"role": "assistant", "content": opened + drawn}, REPLY]
    assert text == own.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, tools=TOOLS
    )


def test_drawn_ids_are_never_encoded_again(codec):
    own = codec(CHATML, "<|im_end|>")
    own.tokenizer.add_tokens(["ab"])
    (context,) = own.encode([ROW])
    letters = own.tokenizer("a")["input_ids"] + own.tokenizer("b")["input_ids"]
    assert own.tokenizer("ab")["input_ids"] != letters
    context = context.with_turn(Turn(ids=tuple(letters), text="ab", ended="length"))
    later = own.extend(context, [REPLY])
    assert later.completion_ids[:2] == letters
    assert later.ids.tolist()[: len(context.ids)] == context.ids.tolist()
    assert later.drawn == len(context.ids)


def test_another_end_token_stands_for_the_template_s(codec):
    """A model may end a turn by a token that its template does not write there."""
    own = codec(CHATML, "<|im_end|>")
    text, _ = extended(own, "Seven<|end|>")
    assert "Seven<|end|>\n<|im_start|>tool" in text


def test_where_the_next_role_ends_the_turn(codec):
    own = codec("glm4moe", "<|observation|>", "<|user|>")
    for drawn in ("Sum.</think>7<|observation|>", "Sum.</think>7"):
        text, _ = extended(own, drawn)
        assert text.count("7<|observation|>\n<tool_response>") == 1


def test_a_template_that_requires_calls(codec):
    own = codec("gptoss", "<|call|>", "<|return|>")
    text, _ = extended(own, "{}<|call|>")
    assert "{}<|call|><|start|>functions.add to=assistant" in text


def test_a_reply_cannot_pass_for_the_end_of_the_turn(codec):
    own = codec(CHATML, "<|eot|>")  # an end token that the template does not write
    reply = {**REPLY, "content": "a<|eot|>b"}
    text, _ = extended(own, "Seven<|eot|>", [reply])
    assert text.endswith(
        "Seven<|eot|><|im_end|>\n<|im_start|>tool\na<|eot|>b<|im_end|>\n<|im_start|>assistant\n"
    )


# ---- templates that change earlier turns


@pytest.mark.parametrize(
    ("template", "change"),
    [
        (REWRITES, "drops the assistant's thinking before replies of tools and drops"),
        (FORGETS_OPENING, "begins the assistant's turn with .*, but not an earlier turn before"),
        ("qwen3", "template drops the assistant's thinking before replies of users, so"),
        ("deepseek_r1_distill", "drops the assistant's thinking before replies of"),
    ],
)
def test_a_context_keeps_what_a_template_would_drop(codec, template, change):
    end = DEEPSEEK if template == "deepseek_r1_distill" else "<|im_end|>"
    own = codec(template, end)
    (note,) = own.suffixes.notes()
    assert re.search(change, note)
    row = {"prompt": [USER]}
    (context,) = own.encode([row])
    prompt = own.tokenizer.decode(context.ids)
    thought = "<think>\nSum.\n</think>\n\nSeven"
    text, context = extended(own, thought + end, [USER], row)
    assert text.startswith(prompt + thought + end)
    # What follows is the template's own.
    later = [USER, {"role": "assistant", "content": "Seven"}, USER]
    expected = own.prompts.template.render(later)
    assert text[-60:].rpartition("Seven")[2] == expected[-60:].rpartition("Seven")[2]
    assert context.completion[0]["content"] == thought


def test_nothing_is_said_of_a_template_that_keeps_earlier_turns(codec):
    assert codec(CHATML, "<|im_end|>").suffixes.notes() == []
    assert codec(NUMBERED, "<|im_end|>").suffixes.notes() == []
    own = codec(CHATML)
    own.tokenizer.chat_template = None
    assert own.suffixes.notes() == []


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (
            NUMBERED,
            "'tool', its .* writes an earlier turn of the assistant otherwise than the last",
        ),
        (OTHER_END, "'tool', its .* writes an earlier turn of the assistant otherwise than"),
        (LEAVES_OUT, "before messages of the role 'tool', its chat template leaves them out"),
        ("gemma4", "before messages of the role 'tool', its chat template leaves them out"),
        ("gemma3", "refuses the prompt: Conversation roles must alternate"),
    ],
)
def test_templates_without_a_suffix_are_refused(codec, template, fault):
    own = codec(template, "<|im_end|>")
    with pytest.raises(UserError, match=f"m: .*{fault}"):
        extended(own, "Seven", row={"prompt": [USER]})


def test_a_template_is_examined_once(codec, monkeypatch):
    own = codec(CHATML, "<|im_end|>")
    calls, examine = [], own.suffixes._change
    monkeypatch.setattr(own.suffixes, "_change", lambda *a: calls.append(a) or examine(*a))
    for _ in range(3):
        extended(own, "Seven<|im_end|>")
    assert len(calls) == 1


WORDS = ("Placeholder", "Placeholder1", "Consideration", "Observation", "Observation2", "Question?")
WORDS += ("<think>", "</think>", "<|im_end|>", "<|im_start|>assistant\n", "{}", "{{ x }}", "{% if")
TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=6).map(" ".join)


@pytest.mark.parametrize(
    "template",
    [
        *(CHATML, REWRITES, "qwen3", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "lfm2_2_5"),
        *("nemotron_3_nano", "llama3_1", "llama3_2", "deepseek_r1_distill"),
    ],
)
@pytest.mark.slow(after=4)
def test_what_follows_a_turn_is_the_same_for_any_text_of_tools(codec, template):
    ends = {"llama3_1": "<|eot_id|>", "llama3_2": "<|eot_id|>", "deepseek_r1_distill": DEEPSEEK}
    SPECIAL.append(end := ends.get(template, "<|im_end|>"))
    known = codec(template, end).suffixes
    drawn = known.tokenizer.convert_tokens_to_ids([end])

    def parts(suffixes, replies, texts):
        """The ids, and the texts around contents."""
        others = [
            {
                "type": "function",
                "function": {**FUNCTION, "name": f"of {text}", "description": text},
            }
            for text in texts
        ]
        arguments = drawn, replies, [*TOOLS, *others]
        return suffixes.after(*arguments), suffixes.around(*arguments)

    both = ([REPLY], [USER])
    expected = [parts(known, replies, ["plain"]) for replies in both]

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(TEXTS)
    @example(" ".join(WORDS))
    @example("Placeholder text of a form field")
    def check(text):
        fresh = Suffixes(known.template, known.ends)
        for suffixes in (known, fresh):
            assert [parts(suffixes, replies, [text]) for replies in both] == expected

    check()


@pytest.mark.parametrize("name", ["Observation", "Placeholder1 Observation1"])
def test_contents_are_told_from_the_names_of_tools(codec, name):
    own = codec(CHATML.replace("m['role']", "m['role'] + m.get('name', '')"), "<|im_end|>")
    replies = [{**REPLY, "name": name}] * 2
    tool = f"<|im_end|>\n<|im_start|>tool{name}\n"
    expected = [tool, tool, "<|im_end|>\n<|im_start|>assistant\n"]
    assert own.suffixes.around([5], replies, TOOLS) == expected


def test_misuse(codec):
    own = codec(CHATML, "<|im_end|>")
    (context,) = own.encode([ROW])
    with pytest.raises(ValueError, match="replies follow a turn"):
        own.extend(context, [REPLY])
    with pytest.raises(ValueError, match="replies follow a turn"):
        own.extend(extended(own, "Seven")[1], [REPLY])
    (text,) = own.encode([{"prompt": "3+4="}])
    with pytest.raises(ValueError, match="continued by a text, not messages"):
        own.extend(text.with_turn(turn(own, "7")), [REPLY])
    with pytest.raises(UserError, match="the column tools must be a list of functions"):
        own.encode([{**ROW, "tools": "add"}])
    assert own.encode([{"prompt": "3+4=", "tools": "add"}])


def test_tools_are_in_the_prompt(codec):
    own = codec("qwen2_5", "<|im_end|>")
    (context,) = own.encode([ROW])
    text = own.tokenizer.decode(context.ids)
    assert '"name": "add"' in text
    assert own.prompts.thinking_prefix(ROW) == ""
    assert own.prompts.lengths([{**ROW, "prompt": [{**USER, "content": "3" * 99}]}])[0] > 0
