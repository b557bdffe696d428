"""A reward for the share of a completion that is in the target language."""

import difflib
import random
import re
import unicodedata
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise_verifiable.columns import column
from groupwise_verifiable.completion import content

# Not counted as language: mathematics, code, tags and LaTeX commands.
_NOT_PROSE = re.compile(r"```[^`]*```|\$[^$\n]*\$|\\[A-Za-z]+|</?[A-Za-z_]+>")
_SENTENCE_END = re.compile("[.!?\u3002\uff01\uff1f\n]+")
# Fewer letters than this determine the script, but hardly the language.
_ENOUGH_LETTERS = 20
# langdetect takes 1 ms per piece, up to 10 ms for mixed languages; longer texts are sampled.
_MOST_PIECES = 60
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


class LanguageConsistency:
    """Letters in the target language / all letters: 0.0 to 1.0.

    DeepSeek-R1 (arXiv:2501.12948, section 2.3.2) rewards the share of words in the target language.
    Single words are too short to recognise, so each sentence is divided by script into pieces, and
    langdetect names the language of each piece. Chinese, Japanese and Korean are distinguished by
    their letters, and below 20 letters the script decides. So a few Chinese words in an English
    sentence count as Chinese. Code, mathematics between dollars, LaTeX commands and tags are
    ignored; None where no letters are left. Of texts with more than 60 pieces a random sample of 60
    is recognised, with fixed seeds: equal texts get equal values.
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
    right, total = 0.0, 0
    long: list[tuple[str, str, int]] = []
    for sentence in _SENTENCE_END.split(_NOT_PROSE.sub(" ", text)):
        for script, piece, letters in _pieces(sentence):
            total += letters
            if letters >= _ENOUGH_LETTERS:
                long.append((script, piece, letters))
            else:
                right += letters * (script == _script_of(target))
    if long:
        sample = _sample(long, text)
        matching = sum(
            n for script, piece, n in sample if _language(script, piece) == _base(target)
        )
        right += matching * sum(n for _, _, n in long) / sum(n for _, _, n in sample)
    return right / total if total else None


def _sample(pieces: list[tuple[str, str, int]], text: str) -> list[tuple[str, str, int]]:
    """The pieces to recognise; of many a sample, whose seed depends on the whole text."""
    if len(pieces) <= _MOST_PIECES:
        return pieces
    seed = zlib.crc32(text.encode("utf-8", "surrogatepass"))
    return random.Random(seed).sample(pieces, _MOST_PIECES)


def _pieces(sentence: str) -> Iterator[tuple[str, str, int]]:
    """The words of each script in a sentence, as (script, text, number of letters)."""
    words: dict[str, list[str]] = {}
    last_word: dict[str, int] = {}
    word = 0
    for character in sentence:
        script = _script(character)
        if script is None:  # a space, digit or mark ends a word
            word += 1
            continue
        letters = words.setdefault(script, [])
        if last_word.setdefault(script, word) != word:
            letters.append(" ")
            last_word[script] = word
        letters.append(character)
    for script, letters in words.items():
        piece = "".join(letters)
        yield script, piece, len(piece) - piece.count(" ")


@lru_cache(maxsize=65536)
def _script(character: str) -> str | None:
    """The script of a letter, by its Unicode name; None for anything else."""
    if not unicodedata.category(character).startswith(("L", "M")):
        return None
    name = unicodedata.name(character, "unnamed").partition(" ")[0].partition("-")[0]
    if name == "COMBINING":
        return None
    return "east_asian" if name in _EAST_ASIAN else name


def _language(script: str, piece: str) -> str:
    """The language of a piece, without its region."""
    if script != "east_asian":
        return _base(_detected(piece))
    # langdetect sometimes takes Chinese for Korean, so the letters decide.
    if _HANGUL.search(piece):
        return "ko"
    return "ja" if _KANA.search(piece) else "zh"


def _script_of(language: str) -> str:
    return _SCRIPT_OF.get(_base(language), "LATIN")


def _base(language: str) -> str:
    """Without the region: zh-cn and zh-tw are zh."""
    return language.partition("-")[0]


@lru_cache(maxsize=1)
def _factory() -> Any:  # langdetect has no types
    from langdetect import PROFILES_DIRECTORY, DetectorFactory  # an extra

    factory = DetectorFactory()  # our own: the shared one's seed is the user's
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(0)
    return factory


def _known(language: object) -> str:
    """The code, if langdetect knows it. Raises ValueError otherwise."""
    codes = {*_factory().get_lang_list(), "zh"}
    if language in codes:
        return str(language)
    near = difflib.get_close_matches(str(language), codes, n=3) or sorted(codes)
    raise ValueError(f"unknown language {language!r}; langdetect knows: {', '.join(near)}")


def _detected(text: str) -> str:
    """The most likely language; "unknown" where langdetect recognises nothing."""
    from langdetect.lang_detect_exception import LangDetectException  # an extra

    detector = _factory().create()
    detector.append(text)
    try:
        return str(detector.detect())
    except LangDetectException:  # no n-gram of the text is in any profile
        return "unknown"
