"""Long texts of others: how much of them is encoded depends on what is kept."""

import re
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.llm.conftest import make_tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from groupwise.kit.errors import UserError
from groupwise_llm.codec.codec import Codec
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.codec.cutter import Cutter
from groupwise_llm.settings import Settings

ROOM, LONG = 40, 3_000_000
CHAT = [{"role": "user", "content": "Hi"}]


class Counting:
    """A tokenizer that knows how many characters it has read."""

    def __init__(self, tokenizer):
        self.tokenizer, self.characters = tokenizer, 0

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, texts, **options):
        self.characters += sum(map(len, texts))
        return self.tokenizer(texts, **options)


def codec(**options):
    """A codec of one token for each byte, whose tokenizer counts what it has read."""
    own = Settings(model="m", max_new_tokens=ROOM, **options)
    return Codec(Counting(make_tokenizer()), own, [0], positions=200)


def merging():
    """A codec whose tokens are parts of words, and runs of spaces and letters."""
    tokenizer = make_tokenizer()
    trainer = BpeTrainer(initial_alphabet=ByteLevel.alphabet(), special_tokens=["<|end|>"])
    corpus = ["ab abab aaaaaaaaaaaaaaaa   \n\n é éé", " " * 32 + "b", "abé bbbbbbbb ba"]
    tokenizer.backend_tokenizer.train_from_iterator(corpus * 3, trainer)
    return Codec(tokenizer, Settings(model="m", max_new_tokens=ROOM), [0], positions=200)


MERGING = merging()


def after_turn(codec, prompt):
    (context,) = codec.encode([{"prompt": prompt}])
    return context.with_turn(Turn(ids=(5,), text="a", ended="stop"))


def by_tool(codec, text):
    return codec.extend(after_turn(codec, CHAT), [{"role": "tool", "content": text}])


def by_parts(codec, text):
    parts = [{"type": "text", "text": text}]
    return codec.extend(after_turn(codec, CHAT), [{"role": "user", "content": parts}])


READERS = {
    "answer": lambda codec, text: codec.shortened(text, 30),
    "parts": lambda codec, text: codec.shortened([{"type": "text", "text": text}], 30),
    "bare text": lambda codec, text: codec.extend(after_turn(codec, "Hi"), text),
    "message": by_tool,
    "message of parts": by_parts,
}


@pytest.mark.parametrize("text", ["a b", "é", " ", "\ud83d"])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_what_is_encoded_depends_on_what_is_kept(reader, text):
    own = codec()
    made = reader(own, text * (LONG // len(text)))
    assert own.tokenizer.characters < 5000
    if isinstance(made, str):
        assert made.endswith(" [... cut]")
    else:
        assert own.room(made) < 1  # refused, as with all of it


@pytest.mark.parametrize("prompt", [lambda text: text, lambda text: [{**CHAT[0], "content": text}]])
def test_a_prompt_of_others_that_is_too_long_is_not_read_to_its_end(prompt):
    own, row = codec(), {"prompt": prompt("a" * LONG + "xyz")}
    with pytest.raises(UserError, match=r"a prompt of at least \d+ tokens is longer than the 160"):
        own.encode([row])
    assert own.tokenizer.characters < 10_000
    own = codec(long_prompts="cut")
    (context,) = own.encode([row])
    assert own.tokenizer.characters < 10_000
    assert len(context.prompt_ids) == 160
    assert re.search("axyz", own.tokenizer.decode(context.prompt_ids))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.text("ab é\n", max_size=40), st.integers(1, 200), st.integers(0, 60))
def test_a_text_is_cut_where_all_of_its_tokens_say(text, times, most):
    own, text = MERGING, text * times
    (ids,) = own.tokenizer([text], add_special_tokens=False)["input_ids"]
    expected = text
    if len(ids) > most:
        expected = own.tokenizer.decode(ids[:most]).rstrip("\ufffd") + " [... cut]"
    assert own.shortened(text, most) == expected


def test_a_tokenizer_that_drops_characters():
    own = codec()
    none = Mock(return_value={"input_ids": [[]]}, get_vocab=own.tokenizer.get_vocab)
    own.cutter.tokenizer = none
    assert len(own.cutter.beginning(" " * LONG, 30)) < 10_000


@pytest.mark.parametrize("length", [1, 40])
def test_a_part_has_more_tokens_than_are_asked_for(length):
    """Also of a tokenizer whose tokens are longer than those of most texts."""

    class Words:
        def __call__(self, texts, **options):
            return {"input_ids": [text.split() for text in texts]}

        def get_vocab(self):
            return {"x" * length: 0}

    text = " ".join("x" * length for _ in range(1000))
    for part in (Cutter(Words()).beginning(text, 30), Cutter(Words()).end(text, 30)):
        assert 30 < len(part.split()) < 300
