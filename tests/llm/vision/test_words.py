"""Words that others write: the names of special tokens in them stand for no picture."""

from io import BytesIO
from unittest.mock import Mock

import pytest
from tests.llm.vision import standins

from groupwise.kit.errors import UserError
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.files.folder import tokenizer_of
from groupwise_llm.vision.picture import BEYOND
from groupwise_llm.vision_language_model import VisionLanguageModel, VisionSettings
from groupwise_messages import images

families = pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "internvl"])
PICTURE = {"type": "image", "image": standins.picture(32, 32)}


def codec(family, **settings):
    config = VisionSettings(model=str(standins.folder(family)), **settings)
    ends = {tokenizer_of(config).eos_token_id}
    return VisionLanguageModel.make_codec(config, None, ends, positions=None)


def names(own):
    """Those of tokens that stand for pictures and videos."""
    return own.tokenizer.convert_ids_to_tokens(sorted(own.reader.family.excluded))


def attacks(own):
    """Texts with such a name, or from which one remains once another is taken out."""
    every = names(own)
    return " ".join([*every, *(f"{a[:3]}{b}{a[3:]}" for a in every for b in every)])


def special(own, ids):
    """The tokens of pictures, and all others that stand for some."""
    return [token for token in ids if token >= BEYOND or token in own.reader.family.excluded]


def part(text):
    return {"type": "text", "text": text}


def begun(own):
    """A context in which one turn is drawn."""
    (context,) = own.encode([{"prompt": [{"role": "user", "content": "q"}]}])
    return context.with_turn(Turn(ids=(65,), text="a", ended="length"))


@families
def test_prompts_and_replies_have_their_own_pictures_alone(family):
    own = codec(family)
    context = begun(own)

    def prompt(*parts):
        row = {"prompt": [{"role": "user", "content": [*parts]}]}
        return special(own, own.encode([row])[0].prompt_ids.tolist())

    def reply(*parts):
        longer = own.extend(context, [{"role": "user", "content": [*parts]}])
        return special(own, longer.segments[-1].ids)

    for read in (prompt, reply):
        assert read(part(attacks(own))) == []
        assert read(part(attacks(own)), PICTURE) == read(part("words"), PICTURE) != []
        for name in names(own):  # templates write parts side by side, and Gemma's strips them
            assert read(part(name[:4] + " "), part(" " + name[4:])) == []


@families
def test_texts_have_their_own_pictures_alone(family):
    own = codec(family)
    mark = own.reader.family.placeholder
    others = " ".join(name for name in names(own) if name != mark)

    def prompt(text):
        row = {"prompt": text, "image": PICTURE["image"]}
        return special(own, own.encode([row])[0].prompt_ids.tolist())

    assert prompt(f"{others} {mark} {others}") == prompt(f"words {mark} words")
    longer = own.extend(begun(own), attacks(own))
    assert special(own, longer.segments[-1].ids) == []


def test_names_and_tools_have_no_pictures():
    processor = codec("qwen2_5_vl").reader.family.processor
    named = processor.chat_template.replace("message['role']", "message['role'] + message.name")
    template = "{% if tools %}{{ tools[0].function.description }}{% endif %}" + named
    own = codec("qwen2_5_vl", chat_template={"chat_template": template})

    def prompt(text):
        function = {"name": "look", "description": text}
        row = {
            "prompt": [{"role": "user", "name": text, "content": "q"}],
            "image": PICTURE["image"],
            "tools": [{"type": "function", "function": function}],
        }
        context = own.encode([row])[0]
        assert own.readable(context.prompt_ids.tolist(), context.pictures).count("words") == 2
        return special(own, context.prompt_ids.tolist())

    assert prompt("words " + attacks(own)) == prompt("words")


def test_a_template_that_makes_placeholders_of_texts_is_refused():
    undone = "{% for message in messages %}{{ message.content | replace(' ', '') }}{% endfor %}"
    own = codec("gemma3", chat_template={"chat_template": undone})
    for name in names(own)[:2]:
        with pytest.raises(UserError, match=r"policy\.chat_template"):
            own.encode([{"prompt": [{"role": "user", "content": name}]}])


def test_names_written_apart_count_as_the_words_that_they_are():
    own = codec("qwen2_5_vl")
    text = own.shortened(names(own)[0] * 50, 60)
    assert text.endswith(" [... cut]")
    assert len(own.tokenizer([text.removesuffix(" [... cut]")])["input_ids"][0]) <= 60
    assert own.shortened([part(names(own)[0])], 100)[0]["text"].startswith("< |")


# ---- pictures of tools


def encoded(image):
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_a_picture_that_does_not_fit_is_measured_and_not_read():
    own = codec("qwen2_5_vl")
    cut = {"type": "image", "image": encoded(standins.picture(32, 32))[:80]}
    assert "is left out: the most are 3" in own.shortened([cut], 3)[0]["text"]
    assert "cannot be shown" in own.shortened([cut], 100)[0]["text"]


def test_a_picture_of_a_tool_is_opened_once(monkeypatch):
    opened = Mock(wraps=images.opened)
    monkeypatch.setattr("groupwise_llm.vision.reader.opened", opened)
    own = codec("qwen2_5_vl")
    shown = {"type": "image", "image": encoded(PICTURE["image"])}
    content = own.shortened([shown, part("words")], 100)
    assert content == [shown, part("words")]
    longer = own.extend(begun(own), [{"role": "tool", "content": content}])
    assert len(longer.pictures) == opened.call_count == 1
