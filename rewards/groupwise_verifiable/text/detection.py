"""Languages of texts and of words, by langdetect's profiles of letters."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

# Mean logarithm (base 10) of the frequency of a word's trigrams. In English these are "the",
# "and", "that" and a few dozen more; they alone decide what langdetect finds in a mixed text.
_FREQUENT = -2.65
_NEVER = 1e-9
_CLOSE = (
    {"ca", "es", "fr", "it", "pt", "ro"},
    {"da", "no", "sv"},
    {"af", "de", "nl"},
    {"cs", "hr", "pl", "sk", "sl"},
    {"bg", "mk", "ru", "uk"},
    {"id", "tl"},
)


@lru_cache(maxsize=1)
def factory() -> Any:  # langdetect has no types
    from langdetect import PROFILES_DIRECTORY, DetectorFactory  # an extra

    factory = DetectorFactory()  # our own: the shared one's seed is the user's
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(0)
    return factory


def language(text: str) -> str:
    """Returns the most likely language; "unknown" where langdetect recognises nothing."""
    return next(iter(_likely(text)), "unknown")


def may_be(text: str, target: str) -> bool:
    """Returns whether the target or a close relative is among a text's likely languages."""
    close = {target}.union(*(group for group in _CLOSE if target in group))
    return any(name.partition("-")[0] in close for name in _likely(text))


def rare(words: Sequence[str], target: str) -> list[str]:
    """Returns the words that are not among the most frequent ones of the target."""
    profiles = factory()
    index = [name.partition("-")[0] for name in profiles.get_lang_list()].index(target)
    return [word for word in words if _commonness(word.lower(), index) < _FREQUENT]


@lru_cache(maxsize=65536)
def _commonness(word: str, index: int) -> float:
    """Mean logarithm of the frequency of the word's trigrams, with its ends as spaces."""
    frequencies, padded = factory().word_lang_prob_map, f" {word} "
    grams = [padded[start : start + 3] for start in range(len(word))]
    probabilities = (frequencies[gram][index] if gram in frequencies else 0.0 for gram in grams)
    return sum(math.log10(max(each, _NEVER)) for each in probabilities) / len(grams)


def _likely(text: str) -> list[str]:
    """Languages with a probability of 0.1 or more, most likely first."""
    from langdetect.lang_detect_exception import LangDetectException  # an extra

    detector = factory().create()
    detector.append(text)
    try:
        return [each.lang for each in detector.get_probabilities()]
    except LangDetectException:  # no n-gram of the text is in any profile
        return []
