"""Which characters a token has written: for tokenizers of each kind, against their definition."""

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
    """Byte-level BPE, as of GPT and Qwen: tokens may end within a character."""
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
    """As of T5: the space before the first word is not written."""
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
    """As of Llama 2: characters out of bytes, which are all unknown where some of them are."""
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
    """One token a word: spaces stand between tokens and belong to none."""
    names = [END, "<unk>", "the", "red", "disk", ".", ",", "8", "+", "3", "=", "11"]
    raw = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens([END])
    return raw


def pieces():
    """As of BERT: written anew before marks and apostrophes."""
    names = [END, "[UNK]", "the", "red", ".", "n't", "do", "##ing", "##s", "11", "'", "t"]
    raw = Tokenizer(models.WordPiece({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=True)
    raw.add_special_tokens([END])
    return raw


KINDS = [byte_level, unigram, byte_fallback, words, pieces]
MADE = {
    kind: PreTrainedTokenizerFast(
        tokenizer_object=kind(), eos_token=END, clean_up_tokenization_spaces=kind is pieces
    )
    for kind in KINDS
}


def by_definition(tokenizer, ids, text):
    """What the tokens up to each decode to, as far as the text begins with it; quadratic."""
    places, most = [], 0
    for stop in range(1, len(ids) + 1):
        so_far = decoded(tokenizer, ids[:stop])
        most = max(n for n in range(len(text) + 1) if n <= most or so_far[:n] == text[:n])
        places.append(most)
    return places


@pytest.mark.parametrize("kind", KINDS)
def test_any_tokens(kind):
    tokenizer = MADE[kind]

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
def test_any_text(kind):
    tokenizer = MADE[kind]

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.text(st.sampled_from("ab 8=\n+1üé語🙂\ufffd"), max_size=30))
    def check(text):
        ids = tokenizer(text)["input_ids"]
        text = decoded(tokenizer, ids)
        assert ends(tokenizer, ids, text) == by_definition(tokenizer, ids, text)

    check()


def test_a_token_across_a_boundary_and_what_writes_nothing():
    tokenizer = MADE[byte_level]
    vocabulary = tokenizer.get_vocab()
    one = [vocabulary[piece] for piece in ("1", "=", "11", "Ċ", "1", END)]
    assert ends(tokenizer, one, decoded(tokenizer, one)) == [1, 2, 4, 5, 6, 6]
    smile = [vocabulary[piece] for piece in ("ð", "Ł", "Ļ", "Ĥ", "a")]
    assert ends(tokenizer, smile, "🙂a") == [0, 0, 0, 1, 2]


def test_the_tokens_decoded_grow_with_the_tokens_alone(monkeypatch):
    """And not with their square."""
    from groupwise_llm import characters

    counts = {}
    tokenizer = MADE[byte_level]
    for repeats in (10, 40):
        ids = tokenizer("8+3=11\nné 🙂 the red disk" * repeats)["input_ids"]
        text = decoded(tokenizer, ids)
        read = []
        monkeypatch.setattr(
            characters,
            "decoded",
            lambda t, part, read=read: read.append(len(part)) or decoded(t, part),
        )
        ends(tokenizer, ids, text)
        counts[repeats] = sum(read) / len(ids)
    assert counts[40] < 1.1 * counts[10]


@pytest.mark.parametrize("prompt", ["ab", [{"role": "user", "content": "ab"}]])
def test_a_policy_states_them_where_a_reward_asks(make, prompt):
    """Of every token that was drawn; and not where nobody asks."""
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


def test_a_function_of_steps_judges_what_a_model_wrote(make):
    """Steps that a letter closes: each is judged where the token stands that wrote the letter."""

    @stepwise(separator="e")
    def length(prompts, steps):
        return [[float(len(step)) for step in own] for own in steps]

    policy = make(temperature=4.0, max_new_tokens=60)
    policy.requested = policy.optional_facts
    rollouts = policy.sample([{"prompt": "ab"}], group_size=16, seeds=range(16))
    scores = Scorer([Reward(name="length", function=length)])(rollouts)
    (letter,) = policy.tokenizer("e")["input_ids"]
    closed = 0
    for row, ids in enumerate(rollouts.facts["completion_ids"]):
        places = set((~scores.steps[row].isnan()).nonzero().flatten().tolist())
        last = len(ids) - 1
        letters = {place for place, token in enumerate(ids) if token == letter}
        assert places - {last} <= letters
        closed += len(places & letters)
    assert closed > 0
