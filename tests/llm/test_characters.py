"""Completions: their texts, and where in them each token ends, for all kinds of tokenizers."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer
from groupwise_llm.codec.characters import ends
from groupwise_llm.codec.completions import Completions
from groupwise_verifiable.steps import stepwise

END = "<|end|>"
CORPUS = [
    "the red disk, left of a blue square.\n",
    "8+3=11\n11-5=6\n",
    "größer 日本語 🙂🙂 né\n",
    "<step>a b</step> <step> c</step>",
] * 20


def byte_level():
    """Byte-level BPE, as GPT's and Qwen's: tokens may end within a character."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
        ),
    )
    return raw


def unigram():
    """As T5's: the space before the first word is not part of the text."""
    raw = Tokenizer(models.Unigram())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    raw.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=120, special_tokens=[END, "<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return raw


def byte_fallback():
    """As Llama 2's: characters from bytes; incomplete sequences of bytes decode as unknown."""
    pieces = [END, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "8", "=", "\n", "+", "1", "▁a", "▁b", "11"]
    raw = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "a"), ("▁", "b"), ("1", "1")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    raw.add_special_tokens([END])
    return raw


def words():
    """A token per word; the spaces between belong to no token."""
    names = [END, "<unk>", "the", "red", "disk", ".", ",", "8", "+", "3", "=", "11"]
    raw = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens([END])
    return raw


def pieces():
    """As BERT's: later tokens remove spaces before punctuation and apostrophes."""
    names = [END, "[UNK]", "the", "red", ".", "n't", "do", "##ing", "##s", "11", "'", "t"]
    raw = Tokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=True)
    raw.add_special_tokens([END])
    return raw


KINDS = [byte_level, unigram, byte_fallback, words, pieces]
TOKENIZERS = {
    kind: PreTrainedTokenizerFast(
        tokenizer_object=kind(), eos_token=END, clean_up_tokenization_spaces=kind is pieces
    )
    for kind in KINDS
}


def completions(tokenizer, keep=True):
    return Completions(tokenizer, [tokenizer.eos_token_id], keep_special=keep)


def by_definition(tokenizer, ids, text, keep=True):
    """By token, the longest common prefix of `text` and the tokens decoded so far; quadratic."""
    result, length = [], 0
    for stop in range(1, len(ids) + 1):
        prefix = tokenizer.decode(ids[:stop], skip_special_tokens=not keep)
        length = max(n for n in range(len(text) + 1) if n <= length or prefix[:n] == text[:n])
        result.append(length)
    return result


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_any_tokens_match_the_definition(kind, keep):
    tokenizer = TOKENIZERS[kind]
    own = completions(tokenizer, keep)

    @settings(max_examples=150)
    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=14))
    @example([])
    @example([0])
    @example([0, 5, 0, 1, 5, 0, 0])
    def check(ids):
        text = own.text(ids)
        places = own.character_ends(ids, text)
        assert places == by_definition(tokenizer, ids, text, keep)
        assert places == sorted(places)
        assert not ids or places[-1] == len(text)

    check()


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_ends_of_any_text_match_the_definition(kind):
    tokenizer = TOKENIZERS[kind]
    own = completions(tokenizer)

    @settings(max_examples=100)
    @given(st.text(st.sampled_from("ab 8=\n+1üé語🙂\ufffd"), max_size=30))
    def check(text):
        ids = tokenizer(text)["input_ids"]
        text = own.text(ids)
        assert own.character_ends(ids, text) == by_definition(tokenizer, ids, text)

    check()


def test_tokens_of_several_characters_and_of_none():
    tokenizer = TOKENIZERS[byte_level]
    vocabulary = tokenizer.get_vocab()
    one = [vocabulary[piece] for piece in ("1", "=", "11", "Ċ", "1", END)]
    own = completions(tokenizer)
    assert own.text(one) == "1=11\n1"
    assert own.character_ends(one, own.text(one)) == [1, 2, 4, 5, 6, 6]
    smile = [vocabulary[piece] for piece in ("ð", "Ł", "Ļ", "Ĥ", "a")]
    assert own.character_ends(smile, "🙂a") == [0, 0, 0, 1, 2]


def test_only_end_tokens_and_padding_at_the_end_are_left_out():
    """With `keep_special_tokens: false` no special token is in the text, as in TRL."""
    names = ["[THINK]", "[/THINK]", "[PAD]", END]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token=END, pad_token="[PAD]"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": names[:2]})
    opening, closing, pad, end = tokenizer.convert_tokens_to_ids(names)
    (a,), (b,) = tokenizer(["a", "b"])["input_ids"]
    for ids, text, places, plain in [
        ([opening, a, closing, b, end], "[THINK]a[/THINK]b", [7, 8, 16, 17, 17], "ab"),
        ([opening, a, closing, b], "[THINK]a[/THINK]b", [7, 8, 16, 17], "ab"),
        ([end, a, pad, b, pad, end, pad], f"{END}a[PAD]b", [7, 8, 13, 14, 14, 14, 14], "ab"),
        ([a, b, end, end], "ab", [1, 2, 2, 2], "ab"),
        ([end], "", [0], ""),
        ([], "", [], ""),
    ]:
        own, without = completions(tokenizer), completions(tokenizer, keep=False)
        assert own.text(ids) == text
        assert own.character_ends(ids, text) == places
        assert without.text(ids) == plain
        assert without.character_ends(ids, plain) == by_definition(tokenizer, ids, plain, False)


def test_the_number_of_decoded_tokens_is_linear_in_the_length():
    """Decoding each prefix anew would be quadratic."""
    counts = {}
    tokenizer = TOKENIZERS[byte_level]
    for repeats in (10, 40):
        ids = tokenizer("8+3=11\nné 🙂 the red disk" * repeats)["input_ids"]
        text, lengths = tokenizer.decode(ids), []

        def decoded(part, lengths=lengths):
            lengths.append(len(part))
            return tokenizer.decode(part)

        assert ends(decoded, ids, text)[-1] == len(text)
        counts[repeats] = sum(lengths) / len(ids)
    assert counts[40] < 1.1 * counts[10]


@pytest.mark.parametrize("prompt", ["ab", [{"role": "user", "content": "ab"}]])
def test_a_policy_states_character_ends_if_a_reward_needs_them(make, prompt):
    """For every sampled token; without such a reward they are not computed."""
    policy = make(temperature=4.0, stop=list("aeiou0123456789"), max_new_tokens=40)
    rows = [{"prompt": prompt}]
    draw = {"group_size": 8, "seeds": range(8)}
    assert "character_ends" not in policy.sample(rows, **draw).facts
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    rollouts = policy.sample(rows, **draw)
    lengths = rollouts.lengths.tolist()
    assert min(lengths) < max(lengths)
    for row, stated in enumerate(rollouts.facts["character_ends"]):
        answer = rollouts.completions[row]
        text = answer if isinstance(prompt, str) else answer[0]["content"]
        ids = rollouts.facts["completion_ids"][row]
        assert len(stated) == lengths[row]
        assert stated == by_definition(policy.tokenizer, ids, text)


def test_a_reward_of_steps_scores_the_completions_of_a_model(make):
    """The letter e ends a step, whose score stands at the token of that letter."""

    @stepwise(separator="e")
    def length(prompts, steps):
        return [[float(len(step)) for step in own] for own in steps]

    policy = make(temperature=4.0, max_new_tokens=60)
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    rollouts = policy.sample([{"prompt": "ab"}], group_size=16, seeds=range(16))
    scores = Scorer([Reward(name="length", function=length)])(rollouts)
    (letter,) = policy.tokenizer("e")["input_ids"]
    count = 0
    for row, ids in enumerate(rollouts.facts["completion_ids"]):
        scored = set((~scores.steps[row].isnan()).nonzero().flatten().tolist())
        last = len(ids) - 1
        letters = {place for place, token in enumerate(ids) if token == letter}
        assert scored - {last} <= letters
        count += len(scored & letters)
    assert count > 0
