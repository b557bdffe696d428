"""Options of a multiple choice: the letter C in `\\text{(C)}`, "C. 12" and "Option C"."""

import re
from functools import lru_cache

from groupwise_verifiable.reading.notation import tidy

_TEXT = re.compile(r"\\(?:text|math)[a-z]*\s*\{([^{}]*)\}")
_STATEMENT = (
    r"(?i:(?:the )?(?:correct |final |right )?(?:answer|option|choice|\u7b54\u6848|\u9009\u9879)"
    r"(?: is|\u662f|\u4e3a)?(?: option)?[: ]*)"
)
_LETTER = re.compile(rf"{_STATEMENT}?[(\[]?([A-J])[)\]]?[.:)]?")
# Behind the letter of an option: another letter, or a denial.
_OTHERWISE = re.compile(
    r"\([A-J]\)|\b[A-J][.)]|(?:^|,|\b(?:or|and|is|be)\b|/|&)\s*[A-J]\s*(?:$|[,.):])"
    r"|\b(?:wrong|incorrect|false|not|no)\b"
)
# A letter behind its content: "Canberra, which is option C", "Canberra (C)".
_ENDING = re.compile(
    r"(\S.{0,300}?)(?:[,;:.]?\s+|\s*\()(?:(?:which|that|this|it|so|and|hence|thus|therefore|i\.e\.|is|the"
    r"|correct|right|final|answer|corresponds|matches|to|with|in|option|choice|letter|answer:)[,:]?\s+)*"
    r"(?:(?:option|choice|answer|letter)\s*:?\s*\(?|(?<=is\s)\(?|\()([A-J])\)*\.?"
)
_QUOTES = "\"'\u201c\u201d\u300c\u300d"
_LISTED = re.compile(r"(?:^|(?<=\s))(?:\(([A-J])\)|([A-J])[.):](?=\s))")
_LONGEST = 3_000  # characters of a prompt that are searched for options
# An option and its content: \textbf{(C) }12, (C) 12, C. 12, C) 12.
_OPTION = re.compile(
    r"(?:(?i:option|choice)\s+)?(?:\(([A-J])\)|([A-J])(?:[.):]|(?:,|\s[-\u2013\u2014])(?=\s[A-Za-z]{3})))"
    r"\s*(\S.*)",
    re.DOTALL,
)


@lru_cache(maxsize=4096)
def choice(text: str) -> str | None:
    """Returns the letter of an option, alone or with its content after it; else None."""
    plain = plain_words(text)
    match = _LETTER.fullmatch(plain)
    if match is not None:
        return match[1]
    match = _OPTION.fullmatch(plain)
    if match is not None:
        return None if _OTHERWISE.search(match[3]) else match[1] or match[2]
    match = _ENDING.fullmatch(plain)
    return None if match is None or _OTHERWISE.search(match[1]) else match[2]


@lru_cache(maxsize=512)
def options(prompt: str) -> dict[str, str]:
    """Returns the options that a prompt lists, by their letters."""
    parts = _LISTED.split(plain_words(prompt[-_LONGEST:].replace("$", " ")))
    letters = [one or other for one, other in zip(parts[1::3], parts[2::3], strict=True)]
    if letters != [chr(ord("A") + n) for n in range(len(letters))] or len(letters) < 2:
        return {}
    return dict(zip(letters, (part.strip(" ,;") for part in parts[3::3]), strict=True))


def content(text: str) -> str:
    """Returns what stands beside the letter of an option, or the text itself."""
    plain = plain_words(text)
    if _LETTER.fullmatch(plain):
        return text
    match = _OPTION.fullmatch(plain)
    if match is not None:
        return match[3]
    match = _ENDING.fullmatch(plain)
    return text if match is None else match[1]


def stated_word(text: str) -> str:
    """Returns a text without "The answer is" before it, too."""
    return re.sub(rf"^{_STATEMENT}", "", plain_words(text)).strip(_QUOTES)


@lru_cache(maxsize=4096)
def plain_words(text: str) -> str:
    """Returns a text without the signs of LaTeX and Markdown around it."""
    text = tidy(text)
    text = _TEXT.sub(r"\1", text)
    text = " ".join(re.sub(r"[{}]|^\*(?=.*\*$)|(?<=\w)\*$(?<=\*\w\*)", " ", text).split())
    return text.strip(_QUOTES).strip().removesuffix(".").strip(_QUOTES)
