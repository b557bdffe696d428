"""Dates and times of day: 6th of April and April 6, 13:15 and 1:15 p.m."""

import re

_NAMES = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTHS = {name[:size]: n for n, name in enumerate(_NAMES, 1) for size in (3, 4, len(name))}
_DAY = r"([0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s+([0-9]{4}))?"
_DATES = (
    re.compile(rf"(?P<month>[a-z]+)\.?\s+(?:the\s+)?{_DAY}{_YEAR}"),
    re.compile(rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?(?P<month>[a-z]+)\.?{_YEAR}"),
)
_TIME = re.compile(
    r"([0-9]{1,2}):([0-9]{2})\s*(am|pm|in the (?:morning|afternoon|evening))?(?: o'clock)?"
)


def moment(words: str) -> tuple[object, ...] | None:
    """Returns the month, day and year of a date, or the hour and minute of a time; else None.

    A time before 13:00 without a.m. or p.m. may be two, and is none.
    """
    plain = " ".join(re.sub(r"\\[a-z]+", " ", words.lower()).split())
    plain = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", plain)
    plain = re.sub(r"^(?:at|on)\s+", "", plain.rstrip("."))
    for pattern in _DATES:
        match = pattern.fullmatch(plain)
        if match is not None and match["month"] in _MONTHS:
            day, year = (part for part in match.groups() if part != match["month"])
            return _MONTHS[match["month"]], int(day), year
    match = _TIME.fullmatch(plain)
    if match is None:
        return None
    hour, minute, half = int(match[1]), int(match[2]), match[3]
    if half is None:
        return (hour, minute) if hour > 12 or hour == 0 else None
    if not 1 <= hour <= 12:
        return None
    return hour % 12 + (0 if half in ("am", "in the morning") else 12), minute
