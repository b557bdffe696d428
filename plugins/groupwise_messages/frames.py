"""Frames: which of a video's frames are looked at, where not all of them are."""


def evenly(length: int, count: int) -> list[int]:
    """Numbers of at most `count` of `length` frames, evenly spaced, the first and the last among
    them; of one it is the first. Each once, so of a short video all."""
    if count >= length:
        return list(range(length))
    if count == 1:
        return [0]
    return [round(number * (length - 1) / (count - 1)) for number in range(count)]
