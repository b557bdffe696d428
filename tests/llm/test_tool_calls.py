"""Calls of tools in turns: each model's form, by its own template; nothing that a model writes is
an error here."""

import json
import random
from importlib import resources

import pytest
from trl.chat_template_utils import add_response_schema

from groupwise import ToolCall
from groupwise.kit.errors import UserError
from groupwise.tool_call import assistant_message
from groupwise_llm.codec.calls.arguments import typed
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.settings import Settings

# As Mistral's templates write calls; the texts around them are shortened.
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{% if tools %}[AVAILABLE_TOOLS]"
    "{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m['content'] }}[/INST]"
    "{% elif m['tool_calls'] is defined %}CALLS</s>"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>"
    "{% else %}[TOOL_RESULTS]{{ m['content'] }}[/TOOL_RESULTS]{% endif %}{% endfor %}"
)
LISTED = MISTRAL.replace(
    "CALLS",
    "[TOOL_CALLS][{% for c in m['tool_calls'] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('nine') }}{% endif %}{{ (c.function | tojson)[:-1] }}, "
    '"id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]',
)
NAMED = MISTRAL.replace(
    "CALLS",
    "{{ m['content'] }}{% for c in m['tool_calls'] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
    "{{ c.function.arguments | tojson }}{% endfor %}",
)
ENDS = ["<|im_end|>", "<|eot_id|>", "<|call|>", "<|return|>", "<|end|>", "</s>", "<|user|>"]
SPECIAL = [*ENDS, "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|channel|>", "<|message|>"]
TYPES = {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}}
PARAMETERS = {"type": "object", "properties": {**TYPES, "exact": {"type": "boolean"}}}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER = {"role": "user", "content": "Rain?"}
ROW = {"prompt": [USER], "tools": TOOLS}
CALL = ToolCall("weather", {"city": 'São "Paulo"\n2', "days": 3, "tags": ["a", 1], "exact": True})
OTHER = ToolCall("weather", {"city": "17", "days": -1})
HALF = "an argument has an incomplete character"
ONE_CALL = {"llama3_1", "llama3_2", "gptoss"}
TEMPLATES = {
    **dict.fromkeys(["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"], "hermes"),
    **dict.fromkeys(["qwen3_5_think", "qwen3_8", "nemotron_3_nano"], "qwen3_coder"),
    "glm4moe": "glm",
    LISTED: "mistral",
    NAMED: "mistral",
    "gptoss": "gpt_oss",
    "llama3_1": "llama",
    "llama3_2": "llama",
}


@pytest.fixture
def codec(make):
    """codec(template, **settings) -> a codec."""
    tokenizer = make().tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.bos_token, tokenizer.eos_token = "<|end|>", "</s>"

    def build(template, **settings):
        file = resources.files("trl") / "chat_templates" / f"{template}.jinja"
        tokenizer.chat_template = template if "{" in template else file.read_text()
        ends = tokenizer.convert_tokens_to_ids(ENDS)
        return Codec(tokenizer, Settings(model="m", **settings), ends, positions=None)

    return build


def drawn(codec, text, row=ROW):
    """The turn with this text after a row, read."""
    (context,) = codec.encode([row])
    return codec.calls.read(context, turn(codec, text))


def turn(codec, text):
    (ids,) = codec.tokenizer([text], add_special_tokens=False)["input_ids"]
    return Turn(ids=tuple(ids), text=codec.completions.text(ids), ended="stop")


def written(codec, message, row=ROW):
    """What the template writes for an assistant's message after its prompt."""
    render = codec.prompts.template.render
    options = {"add_generation_prompt": False, "continue_final_message": False}
    prompt, whole = (
        render(row["prompt"], TOOLS),
        render([*row["prompt"], message], TOOLS, **options),
    )
    same = next(n for n in range(len(prompt), -1, -1) if whole.startswith(prompt[:n]))
    return whole[same:].rstrip("\n")


@pytest.mark.parametrize("template", TEMPLATES, ids=[own[:20] for own in TEMPLATES])
def test_what_a_template_writes_is_read_again(codec, template):
    own = codec(template)
    own.calls.check()
    calls = [CALL] if template in ONE_CALL else [CALL, OTHER]
    calls = [ToolCall(call.name, call.arguments, id=f"{n:09d}") for n, call in enumerate(calls)]
    for content in ("", "Let me see."):
        text = written(own, assistant_message(content, calls))
        read = drawn(own, text)
        assert [(call.name, call.arguments, call.fault) for call in read.calls] == [
            (call.name, call.arguments, None) for call in calls
        ]
        beside = template not in {"llama3_1", "llama3_2", LISTED}  # these write calls alone
        assert (read.content or "").rpartition("</think>")[2].strip() == content * beside
        if template == LISTED:
            assert [call.id for call in read.calls] == [call.id for call in calls]
    # And by name, whatever the template.
    named = codec(template, tool_calls={"format": TEMPLATES[template]})
    assert [call.arguments for call in drawn(named, text).calls] == [c.arguments for c in calls]


@pytest.mark.parametrize("template", TEMPLATES, ids=[own[:20] for own in TEMPLATES])
@pytest.mark.slow(after=4)
def test_nothing_that_a_model_writes_is_an_error(codec, template):
    own, generator = codec(template), random.Random(3)
    text = written(own, assistant_message("", [ToolCall(CALL.name, CALL.arguments, id="0" * 9)]))
    marks = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "{", '"', "[" * 5000, "<think>", "\x00"]
    marks += ["<|python_tag|>", "<|channel|>", "<|message|>", "[ARGS]", "1" * 5000, "to=functions."]
    for _ in range(60):
        pieces = [text[: generator.randrange(len(text))], *generator.choices(marks, k=3)]
        generator.shuffle(pieces)
        read = drawn(own, "".join(pieces))
        assert all(isinstance(call, ToolCall) for call in read.calls)
    for cut in range(0, len(text), 3):
        assert all(c.fault or c.name == "weather" for c in drawn(own, text[:cut]).calls)


HERMES = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
ROME = ToolCall("weather", {"city": "Rome"})
THINKS = ToolCall("weather", {"city": "<think>"})
ANALYSIS = "<|channel|>analysis<|message|>Rain, to=functions.weather?<|end|><|start|>assistant"
CONSTRAINED = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
JSON = '{"name": "weather", "parameters": {"city": "Rome"}}'
FUNCTION_JSON = (
    '{"type": "function", "function": {"name": "weather", "parameters": {"city": "Rome"}}}'
)


@pytest.mark.parametrize(
    ("template", "text", "calls", "content"),
    [
        ("qwen3", f"A.\n{HERMES}\nB.{HERMES}<|im_end|>", [ROME, ROME], "A.\nB."),
        ("qwen3", f"<think>\nI could {HERMES}.\n</think>\n\nNo.", [], None),
        ("qwen3", f"<think>\nI could {HERMES}.", [], None),
        ("qwen3", f"<think>Hm.</think>{HERMES}", [ROME], "<think>Hm.</think>"),
        ("qwen3_5_think", f"I could {HERMES}.", [], None),
        (
            "qwen3",
            HERMES.replace("Rome", "<think>"),
            [ToolCall("weather", {"city": "<think>"})],
            "",
        ),
        ("qwen3", HERMES.replace('{"city": "Rome"}', '"{\\"city\\": \\"Rome\\"}"'), [ROME], ""),
        ("qwen3", "No call.", [], None),
        ("llama3_2", f"{JSON}<|eot_id|>", [ROME], ""),
        (
            "llama3_2",
            f"<|python_tag|>{JSON}; {FUNCTION_JSON}",
            [ROME, ROME],
            "",
        ),
        ("llama3_2", '{"name": "Rome", "rain": 3}', [], None),
        ("llama3_2", 'It is {"name": "weather", "parameters": {}}', [], None),
        (
            "llama3_2",
            '<|python_tag|>weather.call(city="Rome", days="3")',
            [ToolCall("weather", {"city": "Rome", "days": "3"})],
            "",
        ),
        ("llama3_2", "<|python_tag|>1+1", [ToolCall("code_interpreter", {"code": "1+1"})], ""),
        (
            NAMED,
            'Hm. [TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Rome"}',
            [ToolCall("weather", {"city": "Rome"}, id="abcdefghi")],
            "Hm.",
        ),
        (
            "gptoss",
            f'{ANALYSIS}{CONSTRAINED}{{"city": "Rome"}}<|call|>',
            [ROME],
            "Rain, to=functions.weather?",
        ),
        ("gptoss", "<|channel|>final<|message|>It rains.<|return|>", [], None),
    ],
)
def test_forms_that_models_write(codec, template, text, calls, content):
    read = drawn(codec(template), text)
    assert list(read.calls) == calls
    assert read.content == content


@pytest.mark.parametrize(
    ("template", "text", "name", "fault"),
    [
        ("qwen3", '<tool_call>{"name": "weather", "arguments": {</tool_call>', "", "valid JSON"),
        ("qwen3", f"{HERMES[:-12]}", "", "not closed by </tool_call>"),
        ("qwen3", '<tool_call>{"arguments": {}}</tool_call>', "", "names no function"),
        ("qwen3", '<tool_call>{"name": "f", "arguments": 3}</tool_call>', "f", "not a JSON object"),
        ("qwen3", "<tool_call>[]</tool_call>", "", "names no function"),
        ("qwen3", '<tool_call>{"name": "f", "args": {}}</tool_call>', "f", "no 'arguments'"),
        (LISTED, '[TOOL_CALLS][{"name": "f", "parameters": {"a": 1}}]', "f", "no 'arguments'"),
        (
            "qwen3_8",
            "</think><tool_call>\n<function=f>\n<parameter=a>\n1",
            "f",
            "write <tool_call>",
        ),
        ("qwen3_8", "</think><tool_call>weather</tool_call>", "", "write <tool_call>"),
        ("glm4moe", "<think></think><tool_call>f\n<arg_key>a</arg_key>", "f", "write <tool"),
        (NAMED, "[TOOL_CALLS]weather[ARGS]{", "weather", "valid JSON"),
        (LISTED, '[TOOL_CALLS][{"name": 3}]', "", "names no function"),
        ("llama3_2", '{"name": "weather", "parameters": {', "", "valid JSON"),
        ("llama3_2", "<|python_tag|>", "", "nothing follows"),
        ("gptoss", " to=functions.f<|channel|>commentary json<|message|>{<|call|>", "f", "JSON"),
        ("gptoss", " to=functions.f<|channel|>commentary json<|message|>{}{}<|call|>", "f", "text"),
        ("qwen3", r'<tool_call>{"name": "f", "arguments": {"a": "\ud83d"}}</tool_call>', "f", HALF),
        ("llama3_2", r'{"name": "f", "parameters": {"a": "\ud83d"}}', "f", HALF),
        (NAMED, r'[TOOL_CALLS]f[ARGS]{"a": "\ud83d"}', "f", HALF),
        (
            "qwen3_8",
            r'</think><tool_call><function=f><parameter=a>["\ud83d"]</parameter></function></tool_call>',
            "f",
            HALF,
        ),
    ],
)
def test_a_malformed_call_says_to_the_model_what_is_wrong(codec, template, text, name, fault):
    read = drawn(codec(template), text)
    (call,) = read.calls
    assert call.name == name
    assert fault in call.fault
    assert read.content is None  # it stays in the message


DEFINED = {
    "Code": {"type": "string"},
    "Loop": {"$ref": "#/$defs/Loop"},
    "a/b": {"allOf": [{"$ref": "#/$defs/Code"}, {"minLength": 1}]},
}
STRINGS = (
    *({"type": "string"}, {"type": ["string", "null"]}, {"type": "string", "nullable": True}),
    *({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"$ref": "#/$defs/Code"}),
    *({"allOf": [{"$ref": "#/$defs/a~1b"}], "description": "a code"}, {"oneOf": [DEFINED["Code"]]}),
    *({"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]}, {"type": ["string", "object"]}),
)


def parameters(schema, form):
    """The schema of arguments of which one, `city`, has this schema, written in one of the forms in
    which servers write it."""
    own = {"type": "object", "properties": {"city": schema}}
    if form == "plain":
        return {**own, "$defs": DEFINED}
    if form == "further":
        return {"type": "object", "additionalProperties": schema, "$defs": DEFINED}
    if form == "referred":
        return {"$ref": "#/$defs/Own", "$defs": {**DEFINED, "Own": own}}
    return {"allOf": [own, {"properties": {"other": {"type": "integer"}}}], "$defs": DEFINED}


@pytest.mark.parametrize("template", ["qwen3_8", "glm4moe"])
@pytest.mark.parametrize("form", ["plain", "further", "referred", "joined"])
def test_an_argument_is_of_the_type_that_its_schema_names(codec, template, form):
    own = codec(template)
    cases = [(schema, text) for schema in STRINGS for text in ("5", "02", "1e3", "true", '"q"')]
    cases += [({"enum": ["5", "x"]}, "5"), ({"const": "5"}, "5"), ({"enum": [1, "5"]}, "5")]
    cases += [
        ({"enum": [5, "x"]}, 5),
        ({"const": True}, True),
        ({"type": ["string", "null"]}, None),
    ]
    cases += [({"type": ["string", "integer"]}, 5), ({"type": "boolean"}, False), (True, [1, "a"])]
    cases += [({"$ref": "#/$defs/Loop"}, 5), ({"$ref": "https://other"}, 5), ({"type": "str"}, 5)]
    cases += [({"anyOf": [{"type": "array"}, {"type": "string"}]}, "NaN"), ({}, "NaN"), ({}, 1.5)]
    for schema, value in cases:
        function = {**FUNCTION, "parameters": parameters(schema, form)}
        row = {**ROW, "tools": [{"type": "function", "function": function}]}
        text = written(own, assistant_message("", [ToolCall("weather", {"city": value})]))
        (call,) = drawn(own, text, row).calls
        assert (call.arguments, call.fault) == ({"city": value}, None), (schema, value)
        assert type(call.arguments["city"]) is type(value)


@pytest.mark.parametrize(
    "tools",
    [
        [],
        [{"type": "function", "function": {"name": "weather"}}],
        *(
            [{"type": "function", "function": {"name": "weather", "parameters": own}}]
            for own in (None, 3, [], {"properties": 3}, {"properties": {"city": {"type": 3}}})
        ),
        *(
            [{"type": "function", "function": {"name": "weather", "parameters": own}}]
            for own in ({"$ref": 3}, {"$ref": "#/$defs/x/y"}, {"enum": 3}, {"anyOf": {}})
        ),
        *(
            [{"type": "function", "function": {"name": "weather", "parameters": own}}]
            for own in (
                {"properties": 3, "additionalProperties": {"type": "integer"}},
                {"properties": "city", "additionalProperties": {"type": "integer"}},
            )
        ),
        [
            {
                "function": {
                    "name": "weather",
                    "parameters": {
                        "$ref": "#/$defs/0",
                        "$defs": {
                            str(n): {"allOf": [{"$ref": f"#/$defs/{m}"} for m in range(30)]}
                            for n in range(30)
                        },
                    },
                }
            }
        ],
    ],
)
def test_no_schema_of_others_is_an_error(tools):
    assert typed("weather", [("city", "5"), ("x", "[" * 9999)], tools) == {
        "city": 5,
        "x": "[" * 9999,
    }


def test_good_calls_beside_a_malformed_one(codec):
    read = drawn(codec("qwen3"), f"{HERMES}<tool_call>oops</tool_call>{HERMES}")
    assert [call.fault is None for call in read.calls] == [True, False, True]
    assert read.content == "<tool_call>oops</tool_call>"


def test_tags_of_ones_own(codec):
    tags = {"format": "tags", "begin": "<call>", "end": "</call>"}
    plain = {"prompt": "Rain? "}
    own = codec("qwen3", tool_calls=tags)
    assert drawn(own, '<call>{"name": "f"}</call> ok', plain).calls == (ToolCall("f"),)
    own = codec("qwen3", tool_calls={**tags, "tool": "calculator", "argument": "sum"})
    read = drawn(own, "So <call> 1+1</call> and <call>2", plain)
    assert read.calls[0] == ToolCall("calculator", {"sum": "1+1"})
    assert "not closed: write <call>...</call>" in read.calls[1].fault
    for prompt in ("Think <think>", [USER, {"role": "assistant", "content": "<think>"}]):
        assert drawn(own, "<call>1</call>", {"prompt": prompt}).calls == ()


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"format": "tags", "begin": "<call>"}, "needs begin and end"),
        ({"format": "hermes", "begin": "<call>"}, "options of format: tags"),
        ({"format": "tags", "begin": "a", "end": "b", "tool": "f"}, "belong together"),
    ],
)
def test_options_that_do_not_fit(settings, fault):
    with pytest.raises(ValueError, match=fault):
        Settings(model="m", tool_calls=settings)


def test_tools_may_be_the_text_of_a_column(codec):
    """As JSON, in a table that has no lists."""
    encode = codec("qwen2_5").prompts.encode
    assert encode({**ROW, "tools": json.dumps(TOOLS)}).equal(encode(ROW))
    for empty in ("", " ", "[]", "null", None):
        assert encode({**ROW, "tools": empty}).equal(encode({"prompt": [USER]}))
    for text in ("add", '{"name": "add"}', '["add"]', "[" * 100_000):
        with pytest.raises(UserError, match="the column tools must be a list of functions' JSON"):
            encode({**ROW, "tools": text})


def test_without_tools_nothing_is_read(codec):
    own = codec("qwen3")
    assert drawn(own, HERMES, {"prompt": [USER]}).calls == ()
    assert drawn(own, HERMES, {"prompt": "Rain?"}).calls == ()


def test_markers_are_read_where_texts_leave_them_out(codec):
    own = codec(LISTED, keep_special_tokens=False)
    text = 'Hm.<|channel|>[TOOL_CALLS][{"name": "weather", "arguments": {}}]</s>'
    read = drawn(own, text)
    assert "[TOOL_CALLS]" not in read.text
    assert [call.name for call in read.calls] == ["weather"]
    assert len(read.calls[0].id) == 9  # which the template needs
    assert read.content == "Hm."


def test_the_tokenizers_own_parser(codec):
    own = codec("qwen3")
    own.tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|im_end\|>"},
        },
    }
    read = drawn(own, f"<think>Hm. {HERMES}</think>A.{HERMES}<|im_end|>")
    assert read.calls == (ROME,)
    assert read.content == "A."
    read = drawn(own, f"{HERMES}<tool_call>oops</tool_call>")
    assert [call.fault is None for call in read.calls] == [True, False]
    assert drawn(own, "It rains.<|im_end|>").calls == ()


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("llama3", "does not show tools to the model"),
        (MISTRAL, "not known in which form this model calls tools"),
    ],
)
def test_tools_that_a_model_could_not_call_are_refused(codec, template, fault):
    own = codec(template)
    with pytest.raises(UserError, match=fault):
        own.calls.check()
    codec(template, tool_calls={"format": "hermes"}).calls.check()


def test_several_parts_of_a_turn_are_one_message(codec):
    own = codec("qwen3")
    (context,) = own.encode([ROW])
    for text in (f"A.{HERMES}", HERMES):
        context = context.with_turn(own.calls.read(context, turn(own, text)))
        context = own.extend(context, " B. ")
    (message,) = context.completion
    assert message["content"] == "A. B.  B. "
    assert message["tool_calls"] == [ROME.chat, ROME.chat]
    assert json.dumps(message)


@pytest.mark.parametrize("template", TEMPLATES, ids=[own[:20] for own in TEMPLATES])
def test_a_conversation_goes_on_after_calls_as_the_template_writes_it(codec, template):
    own = codec(template)
    count = 1 if template in ONE_CALL else 2
    calls = [ToolCall("weather", {"city": city}, id=f"{n:09d}") for n, city in enumerate("AB")]
    calls = calls[:count]
    answers = [
        {"role": "tool", "name": "weather", "tool_call_id": call.id, "content": f"{call.id[-1]} C"}
        for call in calls
    ]
    text = written(own, assistant_message("", calls))
    (context,) = own.encode([ROW])
    context = context.with_turn(own.calls.read(context, turn(own, text)))
    (message,) = context.completion
    assert [call["function"] for call in message["tool_calls"]] == [
        call.chat["function"] for call in calls
    ]
    later = own.extend(context, answers)
    # Some templates write thinking, or close it, in the last turn alone.
    messages = [USER, assistant_message("", calls), *answers]
    expected = own.prompts.template.render(messages, TOOLS)
    suffix = own.tokenizer.decode(later.completion_ids[len(context.completion_ids) :])
    assert expected.endswith(text.rpartition("</think>")[2].lstrip() + suffix)
    assert all(answer["content"] in suffix for answer in answers)
    assert later.completion == (message, *answers)


@pytest.mark.parametrize(
    "template",
    ["qwen2_5", "qwen3", "qwen3_5_think", "glm4moe", "gptoss", "llama3_1", "gemma4", "lfm2_2_5"],
)
def test_response_templates_as_published(codec, template):
    own = codec(template)
    add_response_schema(own.tokenizer)
    assert type(own.calls.format).__name__ == "Templated"
    own.calls.check()
    calls = [ToolCall("weather", {"city": city, "days": 3}) for city in ("Rome", "Oslo")]
    calls = calls[:1] if template in ONE_CALL else calls
    read = drawn(own, written(own, assistant_message("", calls)))
    assert list(read.calls) == calls
    assert read.content == ""
    assert drawn(own, "It rains.").calls == ()
    generator = random.Random(3)
    text = written(own, assistant_message("", calls))
    for _ in range(20):
        piece = text[generator.randrange(len(text)) :] + text[: generator.randrange(len(text))]
        assert all(isinstance(call, ToolCall) for call in drawn(own, piece).calls)
