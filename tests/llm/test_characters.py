"""`ends`: where in the text the characters of each token end, for all kinds of tokenizers."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from groupwise.rewards import Reward
from groupwise.scoring.scorer import Scorer
from groupwise_llm.characters import ends
from groupwise_llm.prompts import decoded
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


def by_definition(tokenizer, ids, text):
    """By token, the longest common prefix of `text` and the tokens decoded so far; quadratic."""
    result, length = [], 0
    for stop in range(1, len(ids) + 1):
        prefix = decoded(tokenizer, ids[:stop])
        length = max(n for n in range(len(text) + 1) if n <= length or prefix[:n] == text[:n])
        result.append(length)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_any_tokens_match_the_definition(kind):
    tokenizer = TOKENIZERS[kind]

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.integers(0, len(tokenizer) - 1), max_size=14))
    @example([])
    @example([0])
    def check(ids):
        text = decoded(tokenizer, ids)
        places = ends(tokenizer, ids, text)
        assert places == by_definition(tokenizer, ids, text)
        assert places == sorted(places)
        assert not ids or places[-1] == len(text)

    check()


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_ends_of_any_text_match_the_definition(kind):
    tokenizer = TOKENIZERS[kind]

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.text(st.sampled_from("ab 8=\n+1üé語🙂\ufffd"), max_size=30))
    def check(text):
        ids = tokenizer(text)["input_ids"]
        text = decoded(tokenizer, ids)
        assert ends(tokenizer, ids, text) == by_definition(tokenizer, ids, text)

    check()


def test_tokens_of_several_characters_and_of_none():
    tokenizer = TOKENIZERS[byte_level]
    vocabulary = tokenizer.get_vocab()
    one = [vocabulary[piece] for piece in ("1", "=", "11", "Ċ", "1", END)]
    assert ends(tokenizer, one, decoded(tokenizer, one)) == [1, 2, 4, 5, 6, 6]
    smile = [vocabulary[piece] for piece in ("ð", "Ł", "Ļ", "Ĥ", "a")]
    assert ends(tokenizer, smile, "🙂a") == [0, 0, 0, 1, 2]


def test_the_number_of_decoded_tokens_is_linear_in_the_length(monkeypatch):
    """Decoding each prefix anew would be quadratic."""
    from groupwise_llm import characters

    counts = {}
    tokenizer = TOKENIZERS[byte_level]
    for repeats in (10, 40):
        ids = tokenizer("8+3=11\nné 🙂 the red disk" * repeats)["input_ids"]
        text = decoded(tokenizer, ids)
        decoded_lengths = []
        monkeypatch.setattr(
            characters,
            "decoded",
            lambda t, part, lengths=decoded_lengths: lengths.append(len(part)) or decoded(t, part),
        )
        ends(tokenizer, ids, text)
        counts[repeats] = sum(decoded_lengths) / len(ids)
    assert counts[40] < 1.1 * counts[10]


@pytest.mark.parametrize("prompt", ["ab", [{"role": "user", "content": "ab"}]])
def test_a_policy_states_character_ends_if_a_reward_needs_them(make, prompt):
    """For every sampled token; without such a reward they are not computed."""
    policy = make(temperature=4.0, stop=list("aeiou0123456789"), max_new_tokens=40)
    rows = [{"prompt": prompt}]
    draw = {"group_size": 8, "seeds": range(8)}
    assert "character_ends" not in policy.sample(rows, **draw).facts
    policy.requested = policy.optional_facts
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
    policy.requested = policy.optional_facts
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
