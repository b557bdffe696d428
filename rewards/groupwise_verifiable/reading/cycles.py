"""Permutations in the notation of cycles: (1 3 2)(4 5) is (3 2 1)(5 4)."""

import re

_CYCLES = re.compile(
    r"(?:[A-Za-z\\]{1,8}\s*=\s*)?((?:\(\s*[0-9](?:[\s,~]|\\[,; ]|[0-9]){1,80}\)\s*){1,20})"
)


def cycles(text: str) -> dict[int, int] | None:
    """Returns what a permutation maps to what; None where a text is no product of cycles.

    Digits side by side are elements of their own: (132) is (1 3 2).
    """
    match = _CYCLES.fullmatch(text.strip().strip("$"))
    if match is None:
        return None
    images: dict[int, int] = {}
    for cycle in re.findall(r"\(([^()]*)\)", match[1]):
        parts = re.findall("[0-9]+", cycle)
        elements = [int(part) for part in (parts if len(parts) > 1 else parts[0])]
        if len(set(elements)) < len(elements) or images.keys() & set(elements):
            return None
        images |= dict(zip(elements, [*elements[1:], elements[0]], strict=True))
    return images
