"""A reward for the share of a completion that is in the target language."""

import difflib
import random
import re
import unicodedata
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from groupwise_messages.completion import content
from groupwise_verifiable.columns import column
from groupwise_verifiable.text import detection

# Not counted as language: code, mathematics between dollars, LaTeX commands, tags; then variables.
_NOT_PROSE = re.compile(r"```[^`]*```|\$[^$\n]*\$|\\[A-Za-z]+|</?[A-Za-z_]+>")
_LETTER, _OPERATOR = r"[^\W\d_]", r"(?:[\d=+*/^<>]| - | \u2212 )"
_VARIABLE = re.compile(
    rf"(?<!{_LETTER}){_LETTER} ?(?={_OPERATOR})|{_OPERATOR} ?{_LETTER}(?!{_LETTER})"
)
_SENTENCE_END = re.compile("[.!?\u3002\uff01\uff1f\n]+")
# Fewer letters than this determine the script, but hardly the language.
_ENOUGH_LETTERS = 20
# langdetect takes 1 ms per piece, up to 10 ms for mixed languages; longer texts are sampled.
_MOST_PIECES = 60
# Scripts of words that are longer than a letter. What is shorter than this on average is no words
# but parts of them: prose has at least 3 letters a word, without single ones.
_ALPHABETS = ("LATIN", "CYRILLIC", "GREEK")
_MANY_WORDS, _SHORTEST_MEAN = 8, 2.5
_ENOUGH_RARE = 60  # letters of rare words whose language langdetect tells reliably
_SCRIPTS = {
    "east_asian": ("zh", "ja", "ko"),
    "CYRILLIC": ("ru", "uk", "bg", "mk"),
    "ARABIC": ("ar", "fa", "ur"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "GREEK": ("el",),
    "HEBREW": ("he",),
    "THAI": ("th",),
    "BENGALI": ("bn",),
    "GUJARATI": ("gu",),
    "KANNADA": ("kn",),
    "MALAYALAM": ("ml",),
    "GURMUKHI": ("pa",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
}
_SCRIPT_OF = {language: script for script, languages in _SCRIPTS.items() for language in languages}
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
_KANA, _HANGUL = re.compile("[\u3040-\u30ff]"), re.compile("[\uac00-\ud7af]")


class Piece(NamedTuple):
    """Words of one script. words: without single letters; text: with them."""

    script: str
    words: list[str]
    text: str

    @property
    def letters(self) -> int:
        return _letters(self.words)


_Judged = TypeVar("_Judged")


class LanguageConsistency:
    """Letters in the target language / all letters, 0.0 to 1.0: against mixed languages.

    DeepSeek-R1 (arXiv:2501.12948, section 2.3.2) rewards the share of words in the target language.
    Single words are too short to recognise, so each sentence is divided by script into pieces, and
    langdetect names the language of each piece. Chinese, Japanese and Korean are distinguished by
    their letters. So a few Chinese words in an English sentence count as Chinese. Shorter sentences
    than 20 letters are joined, and may be in any language that is likely; where too few words
    differ the script decides.

    What is no word counts for nothing: single letters (more of them than words count as wrong),
    and words of under 2.5 letters on average, as pieces of words are. Rare words have to be in the
    target language by themselves, 60 letters at a time. Code, mathematics between dollars,
    variables beside operators, LaTeX commands and tags are ignored; None where no letters are left.
    Of texts with more than 60 pieces a random sample of 60 is recognised, with fixed seeds: equal
    texts get equal values.
    """

    judges = False

    class Config(BaseModel):
        """Settings of the reward `language_consistency`."""

        model_config = ConfigDict(extra="forbid", frozen=True)

        language: str = Field(
            default="en", description="The target language, a langdetect code; zh is any Chinese."
        )
        column: str | None = Field(
            default=None,
            description="Column with the target language of each prompt, instead of `language`.",
        )

    def __init__(self, config: Config | None = None) -> None:
        """Raises ValueError where langdetect is missing or does not know the language."""
        if find_spec("langdetect") is None:
            raise ValueError(
                "reward 'language_consistency' needs langdetect: pip install 'groupwise[llm]'"
            )
        self.config = config or self.Config()
        _known(self.config.language)

    @property
    def required_columns(self) -> Mapping[str, str]:
        return {} if self.config.column is None else {"column": self.config.column}

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        **columns: Sequence[Any],
    ) -> list[float | None]:
        targets = self._targets(columns, len(completions))
        return [
            _share(content(completion), _known(target))
            for completion, target in zip(completions, targets, strict=True)
        ]

    def _targets(self, columns: Mapping[str, Sequence[Any]], count: int) -> Sequence[Any]:
        if self.config.column is None:
            return [self.config.language] * count
        return column(columns, self.config.column, reward="language_consistency")


def _share(text: str, target: str) -> float | None:
    """Letters in the target language / letters."""
    right, total, alone, words = 0.0, 0, 0, 0
    long: list[Piece] = []
    short: dict[str, list[str]] = {}
    for sentence in _SENTENCE_END.split(_VARIABLE.sub(" ", _NOT_PROSE.sub(" ", text))):
        for script, script_words in _scripts(sentence):
            whole = [word for word in script_words if len(word) > 1 or script not in _ALPHABETS]
            alone += len(script_words) - len(whole)
            words += len(whole) if script in _ALPHABETS else _letters(whole)
            if _letters(whole) >= _ENOUGH_LETTERS:
                long.append(Piece(script, whole, " ".join(script_words)))
            else:
                short.setdefault(script, []).extend(whole)
    seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    for script, script_words in short.items():
        groups = list(_groups(script_words, 2 * _ENOUGH_LETTERS))
        judged = _sample(groups, seed)
        held = sum(_letters(group) * _may_be(script, group, target) for group in judged)
        right += held * _letters(script_words) / max(sum(map(_letters, judged)), 1)
        total += _letters(script_words)
    if long:
        sample = _sample(long, seed)
        letters = sum(piece.letters for piece in long)
        kept = _in_target(sample, _base(target), seed)
        right += kept * letters / sum(piece.letters for piece in sample)
        total += letters
    # A variable for every word is prose about mathematics; more are letters, and no language.
    total += max(0, alone - words)
    return right / total if total else None


def _in_target(pieces: Sequence[Piece], target: str, seed: int) -> float:
    """Letters of pieces in the target language, without rare words of other languages."""
    right = [
        piece
        for piece in pieces
        if not _broken(piece.script, piece.words) and _language(piece) == target
    ]
    letters = sum(piece.letters for piece in right)
    words = [word for piece in right if piece.script in _ALPHABETS for word in piece.words]
    rare = detection.rare([word for word in words if len(word) > 2], target) if words else []
    groups = [group for group in _groups(rare, _ENOUGH_RARE) if _letters(group) >= _ENOUGH_RARE]
    if not groups:
        return letters
    judged = _sample(groups, seed)
    foreign = [group for group in judged if not detection.may_be(" ".join(group), target)]
    scale = sum(map(_letters, groups)) / sum(map(_letters, judged))
    return letters - scale * sum(map(_letters, foreign))


def _may_be(script: str, words: Sequence[str], target: str) -> bool:
    """Whether words of short sentences may be in the target language.

    Of few different words only the script is clear, as of numbered steps.
    """
    if script != _script_of(target) or _broken(script, words):
        return False
    if script == "east_asian" or _letters({*words}) < _ENOUGH_LETTERS:
        return True
    return detection.may_be(" ".join(words), _base(target))


def _broken(script: str, words: Sequence[str]) -> bool:
    """Whether words are so short that they are pieces of words."""
    enough = script in _ALPHABETS and len(words) >= _MANY_WORDS
    return enough and _letters(words) < _SHORTEST_MEAN * len(words)


def _groups(words: Sequence[str], letters: int) -> Iterator[list[str]]:
    """Neighbouring words, in groups of at least so many letters; the last may have fewer."""
    group: list[str] = []
    for word in words:
        group.append(word)
        if _letters(group) >= letters:
            yield group
            group = []
    if group:
        yield group


def _letters(words: Collection[str]) -> int:
    return sum(map(len, words))


def _sample(pieces: list[_Judged], seed: int) -> list[_Judged]:
    """The pieces to recognise; of many a sample, whose seed depends on the whole text."""
    if len(pieces) <= _MOST_PIECES:
        return pieces
    return random.Random(seed).sample(pieces, _MOST_PIECES)


def _scripts(sentence: str) -> Iterator[tuple[str, list[str]]]:
    """The words of each script in a sentence, with single letters."""
    words: dict[str, list[list[str]]] = {}
    last_word: dict[str, int] = {}
    word = 0
    for character in sentence:
        script = _script(character)
        if script is None:  # a space, digit or mark ends a word
            word += 1
            continue
        script_words = words.setdefault(script, [])
        if last_word.get(script) != word:
            script_words.append([])
            last_word[script] = word
        script_words[-1].append(character)
    for script, script_words in words.items():
        yield script, ["".join(letters) for letters in script_words]


@lru_cache(maxsize=65536)
def _script(character: str) -> str | None:
    """The script of a letter, by its Unicode name; None for anything else."""
    if not unicodedata.category(character).startswith(("L", "M")):
        return None
    name = unicodedata.name(character, "unnamed").partition(" ")[0].partition("-")[0]
    if name == "COMBINING":
        return None
    return "east_asian" if name in _EAST_ASIAN else name


def _language(piece: Piece) -> str:
    """The language of a piece, without its region."""
    if piece.script != "east_asian":
        return _base(detection.language(piece.text))
    # langdetect sometimes takes Chinese for Korean, so the letters decide.
    if _HANGUL.search(piece.text):
        return "ko"
    return "ja" if _KANA.search(piece.text) else "zh"


def _script_of(language: str) -> str:
    return _SCRIPT_OF.get(_base(language), "LATIN")


def _base(language: str) -> str:
    """Without the region: zh-cn and zh-tw are zh."""
    return language.partition("-")[0]


def _known(language: object) -> str:
    """The code, if langdetect knows it. Raises ValueError otherwise."""
    codes = {*detection.factory().get_lang_list(), "zh"}
    if language in codes:
        return str(language)
    near = difflib.get_close_matches(str(language), codes, n=3) or sorted(codes)
    raise ValueError(f"unknown language {language!r}; langdetect knows: {', '.join(near)}")
